"""What can't start for lack of memory isn't suggested."""

from pathlib import Path

from search_problems import problem, suggestion

from autotune.search.study import Study
from autotune.spec.capacity_learned import Memory
from autotune.spec.config import EngineConfig
from autotune.spec.model import parse_model_shape
from autotune.spec.space import Choice, Dimension, IntRange, SearchSpace

QWEN_72B = parse_model_shape(
    {
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    },
    name="72b",
)
ON_H100 = Memory(shape=QWEN_72B, gpu_gib=79.2, defaults={"max-num-seqs": 1024, "max-num-batched-tokens": 8192})
SPACE = SearchSpace(
    name="s",
    model="72b",
    fixed={"max-model-len": 4096},
    dimensions=(
        Dimension(name="tensor-parallel-size", domain=Choice(values=(1, 2, 4))),
        Dimension(name="max-num-seqs", domain=IntRange(low=32, high=256, step=32)),
    ),
)


def test_only_the_default_is_run_where_its_memory_cant_do(tmp_path: Path) -> None:
    study = Study.open(tmp_path / "journal", problem(SPACE), sampler="tpe", defaults={}, study_name="s")
    asked = [suggestion(study.ask(accept=lambda config: ON_H100.doomed(config) is None)) for _ in range(12)]
    sizes = [one.config.flags.get("tensor-parallel-size") for one in asked]
    assert sizes[0] is None  # the default: everything is stated against it, so it is tried whatever is known
    assert set(sizes[1:]) == {2, 4}


def test_a_model_whose_shape_isnt_known_is_not_judged() -> None:
    other = EngineConfig(model="72b", flags={"model": "72b-awq"})
    assert ON_H100.doomed(EngineConfig(model="72b")) is not None
    assert ON_H100.doomed(other) is None
