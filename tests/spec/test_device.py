import pytest
from spec_shapes import DEEPSEEK_V2_LITE, QWEN_7B, QWEN_72B_FP8, shape

from autotune.errors import EnvironmentProblem
from autotune.spec.capacity import GPU_GIB
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.device import Device, beyond_device, named_capability, read_capability, weight_only_notices
from autotune.spec.legality import legal_space
from autotune.spec.space import Choice, Dimension, SearchSpace

CPU = Device(platform="cpu")


def gpu(name: str) -> Device:
    return Device(platform="cuda", capability=named_capability(name))


def config(**flags: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in flags.items()})


def test_every_nvidia_gpu_that_has_a_size_has_a_capability() -> None:
    assert [name for name in GPU_GIB if named_capability(name) is None] == ["MI300X", "MI325X"]


@pytest.mark.parametrize(
    ("given", "capability"), [("nvidia h100 80gb", (9, 0)), ("A100-SXM4-40GB", (8, 0)), ("80", None), ("H2OO", None)]
)
def test_a_name_is_read_as_its_memory_is(given: str, capability: object) -> None:
    assert named_capability(given) == capability


@pytest.mark.parametrize(("text", "capability"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("", None), ("unknown", None)])
def test_what_a_driver_reports(text: str, capability: object) -> None:
    assert read_capability(text) == capability


@pytest.mark.parametrize(
    ("flags", "on", "part"),
    [
        ({"dtype": "bfloat16"}, "T4", "needs compute capability 8.0, and this GPU has 7.5"),
        ({"dtype": "bfloat16"}, "A100", None),
        ({"dtype": "float16"}, "V100", None),
        ({"quantization": "fp8"}, "V100", "quantization fp8 needs compute capability 7.5"),
        ({"quantization": "fp8"}, "A100", None),
        ({"quantization": "mxfp4"}, "T4", "needs compute capability 8.0"),
        ({"quantization": "of tomorrow"}, "T4", None),
        ({"block-size": 16}, "H200", None),
    ],
)
def test_formats_that_a_gpu_is_too_old_for(flags: dict[str, FlagValue], on: str, part: str | None) -> None:
    reason = beyond_device(config(**flags), shape(QWEN_7B), gpu(on))
    assert (reason is None) is (part is None)
    assert part is None or part in str(reason)


def test_a_checkpoint_brings_its_format_along_and_another_model_does_not() -> None:
    assert beyond_device(config(), shape(QWEN_72B_FP8), gpu("V100")) is not None
    assert beyond_device(EngineConfig(model="other"), shape(QWEN_72B_FP8), gpu("V100")) is None


@pytest.mark.parametrize(("size", "legal"), [(16, False), (32, True), (48, False), (128, True)])
def test_blocks_on_a_cpu(size: int, legal: bool) -> None:
    assert (beyond_device(config(block_size=size), shape(QWEN_7B), CPU) is None) is legal
    assert beyond_device(config(block_size=size), shape(DEEPSEEK_V2_LITE), CPU) is None  # another backend


def test_of_an_unknown_gpu_nothing_is_said() -> None:
    assert beyond_device(config(dtype="bfloat16"), shape(QWEN_7B), Device(platform="cuda")) is None


@pytest.mark.parametrize("space", ["fixed", "searched", "neither"])
def test_fp8_weights_on_gpus_that_do_not_compute_in_fp8(space: str) -> None:
    dimension = Dimension(name="quantization", domain=Choice(values=(None, "fp8")))
    asked = SearchSpace(
        name="s",
        model="m",
        dimensions=(dimension,) if space == "searched" else (),
        fixed={"quantization": "fp8"} if space == "fixed" else {},
    )
    said = [len(weight_only_notices(asked, gpu(name))) for name in ("A100", "L40S", "H200", "MI300X")]
    assert said == ([0, 0, 0, 0] if space == "neither" else [1, 0, 0, 0])


def test_what_only_this_machine_forbids_is_removed_and_no_error() -> None:
    dimension = Dimension(name="block-size", domain=Choice(values=(16, 32, 64)))
    space = SearchSpace(name="s", model="m", dimensions=(dimension,))
    left, removed = legal_space(space, shape(QWEN_7B), gpus_available=None, device=CPU)
    assert left.dimensions[0].domain == Choice(values=(32, 64))
    assert [(one.name, one.value) for one in removed] == [("block-size", 16)]
    assert legal_space(space, shape(QWEN_7B), gpus_available=None) == (space, ())


def test_a_default_that_the_devices_cannot_run_is_the_environments_fault() -> None:
    searched = Dimension(name="tensor-parallel-size", domain=Choice(values=(1, 2)))
    space = SearchSpace(name="s", model="m", dimensions=(searched,), fixed={"dtype": "bfloat16"})
    with pytest.raises(EnvironmentProblem, match=r"s\.yaml: the default can't run here: dtype bfloat16 needs"):
        legal_space(space, shape(QWEN_7B), gpus_available=2, device=gpu("T4"), file="s.yaml")
    assert legal_space(space, shape(QWEN_7B), gpus_available=2, device=gpu("A100"))[1] == ()
