"""An engine's command line and environment."""

from __future__ import annotations

import pytest

from autotune.engine.command import (
    Platform,
    engine_arguments,
    engine_environment,
    environment_for_record,
    inherited_environment,
    served_model_name,
)
from autotune.errors import UserError
from autotune.spec.config import EngineConfig, FlagValue


def config(model: str = "org/Model-7B", env: dict[str, str] | None = None, **flags: FlagValue) -> EngineConfig:
    return EngineConfig(model=model, flags={name.replace("_", "-"): v for name, v in flags.items()}, env=env or {})


def environment(
    c: EngineConfig, inherited: dict[str, str], platform: Platform = "cpu", cores: int = 8
) -> dict[str, str]:
    return engine_environment(
        c, ["1", "3"], platform=platform, inherited=inherited, extra={}, cores=cores, caches={"TRITON_CACHE_DIR": "/c"}
    )


def test_the_engine_listens_on_loopback_only() -> None:
    words = engine_arguments(config(), port=4711)
    assert words[:6] == ["--model", "org/Model-7B", "--host", "127.0.0.1", "--port", "4711"]


def test_the_candidates_flags_come_as_vllm_spells_them() -> None:
    words = engine_arguments(config(enable_chunked_prefill=False, max_num_seqs=64), port=1)
    assert words[-3:] == ["--no-enable-chunked-prefill", "--max-num-seqs", "64"]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, ["--disable-uvicorn-access-log"]),
        (
            {"disable-uvicorn-access-log", "no-enable-log-requests"},
            ["--disable-uvicorn-access-log", "--no-enable-log-requests"],
        ),
        ({"disable-log-requests"}, ["--disable-log-requests"]),
        (set(), []),
    ],
)
def test_logging_is_quietened_with_flags_this_vllm_knows(known: set[str] | None, expected: list[str]) -> None:
    words = engine_arguments(config(), port=1, known_flags=known)
    assert [word for word in words if "log" in word] == expected


@pytest.mark.parametrize("flag", ["port", "host", "api-key", "model"])
def test_a_flag_that_vtune_owns_is_refused_by_name(flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        engine_arguments(EngineConfig(model="m", flags={flag: "x"}), port=1)


def test_the_served_name_is_the_models_last_part_unless_given() -> None:
    assert served_model_name(config("/data/models/qwen/")) == "qwen"
    assert served_model_name(config(served_model_name="mine")) == "mine"


def test_a_gpu_engine_sees_its_devices_only() -> None:
    env = environment(config(), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "cuda")
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")


def test_a_cache_size_by_flag_is_not_overruled_by_a_variable() -> None:
    inherited = {"VLLM_CPU_KVCACHE_SPACE": "4"}
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(config(kv_cache_memory_bytes="64M"), inherited)
    assert environment(config(), inherited)["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_ranks_on_a_cpu_share_the_cores() -> None:
    env = environment(config(tensor_parallel_size=2), {}, cores=8)
    assert (env["VLLM_CPU_OMP_THREADS_BIND"], env["OMP_NUM_THREADS"]) == ("nobind", "4")
    assert "OMP_NUM_THREADS" not in environment(config(), {})


def test_rays_thread_count_and_a_ban_on_bytecode_do_not_reach_the_engine() -> None:
    env = inherited_environment(
        {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/h"}
    )
    assert env == {"RAY_JOB_ID": "1", "HOME": "/h"}


def test_a_users_thread_count_does_reach_it() -> None:
    assert inherited_environment({"OMP_NUM_THREADS": "6"}) == {"OMP_NUM_THREADS": "6"}


def test_the_candidates_own_variables_win() -> None:
    c = config(env={"VLLM_NO_USAGE_STATS": "0"})
    assert environment(c, {"VLLM_NO_USAGE_STATS": "1"})["VLLM_NO_USAGE_STATS"] == "0"


def test_compile_caches_are_vtunes_unless_someone_has_set_them() -> None:
    assert environment(config(), {})["TRITON_CACHE_DIR"] == "/c"
    assert environment(config(), {"TRITON_CACHE_DIR": "/mine"})["TRITON_CACHE_DIR"] == "/mine"
    assert environment(config(env={"TRITON_CACHE_DIR": "/its"}), {})["TRITON_CACHE_DIR"] == "/its"


def test_what_is_written_down_has_no_secrets_and_no_strangers_values() -> None:
    env = {"HF_TOKEN": "hf_x", "VLLM_API_KEY": "k", "VLLM_USE_X": "1", "https_proxy": "http://u:p@h", "PATH": "/bin"}
    record = environment_for_record(env, config())
    assert record == {"HF_TOKEN": None, "VLLM_API_KEY": None, "VLLM_USE_X": "1", "https_proxy": None, "PATH": None}
