import hashlib
import json
import multiprocessing
import struct
from pathlib import Path

import pytest

from autotune.engine.tiny_model import VOCABULARY, config, make_tiny_model


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_it_is_the_same_model_every_time(tmp_path: Path) -> None:
    assert digest(make_tiny_model(tmp_path / "a")) == digest(make_tiny_model(tmp_path / "b"))


def test_an_existing_one_is_left_as_it_is(tmp_path: Path) -> None:
    made = make_tiny_model(tmp_path)
    before = made.stat().st_mtime_ns
    assert make_tiny_model(tmp_path) == made
    assert made.stat().st_mtime_ns == before


def test_its_weights_are_a_safetensors_file_of_the_shapes_in_its_config(tmp_path: Path) -> None:
    data = (make_tiny_model(tmp_path) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    embedding = header["model.embed_tokens.weight"]
    assert embedding["shape"] == [VOCABULARY, config()["hidden_size"]]
    assert max(tensor["data_offsets"][1] for name, tensor in header.items() if name[0] != "_") == len(data) - 8 - length


def test_its_tokenizer_has_a_token_for_every_id(tmp_path: Path) -> None:
    model = json.loads((make_tiny_model(tmp_path) / "tokenizer.json").read_text())["model"]
    assert sorted(model["vocab"].values()) == list(range(VOCABULARY))
    assert all("".join(merge.split(" ")) in model["vocab"] for merge in model["merges"])


@pytest.mark.timeout(30)
def test_processes_that_make_it_at_once_all_get_the_whole(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        made = pool.map(make_tiny_model, [tmp_path] * 3)
    assert len(set(made)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [made[0].name]
