"""`builtin:tiny`: a two-layer Qwen2 with random weights and a working tokenizer: a real vLLM can be tuned anywhere.

Written byte for byte by this file, without torch or transformers: the same model on every machine.
"""

from __future__ import annotations

import array
import json
import os
import random
import shutil
import string
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = "builtin:tiny"
_EDITION = 1
"""Raised whenever the files change, so that an older copy in the cache isn't taken for this one."""

HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, POSITIONS = 128, 2, 4, 2, 2048, 4096
_INNER = 3 * HIDDEN
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config() -> dict[str, object]:
    """Its config.json."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_sliding_window": False,
        "max_window_layers": LAYERS,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def make_tiny_model(folder: Path) -> Path:
    """The model's own folder inside `folder`, made if it isn't there yet: complete or not at all, also when several
    processes do it at once."""
    made = folder / f"tiny-{_EDITION}"
    if (made / "config.json").is_file():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=".tiny-"))
    try:
        for name, value in (
            ("config.json", config()),
            ("generation_config.json", {"bos_token_id": 0, "eos_token_id": 0}),
            ("tokenizer.json", _tokenizer()),
            ("tokenizer_config.json", _tokenizer_config()),
        ):
            (draft / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        (draft / "model.safetensors").write_bytes(_safetensors(dict(_weights())))
        draft.chmod(0o755)
        try:
            os.rename(draft, made)
        except OSError:
            if not (made / "config.json").is_file():  # not because another process was first
                raise
        return made
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _weights() -> Iterator[tuple[str, tuple[tuple[int, ...], bytes]]]:
    """Name -> (shape, bfloat16 bytes), the projections near N(0, 0.02) as initializer_range has it."""
    chance = random.Random(0)  # noqa: S311 - weights, not secrets
    head = HIDDEN // HEADS

    def noise(*shape: int) -> tuple[tuple[int, ...], bytes]:
        count = shape[0] * shape[1]
        spread = 0.02 * 12**0.5  # a uniform's standard deviation is its width / sqrt(12)
        return shape, _bfloat16([(chance.random() - 0.5) * spread for _ in range(count)])

    def constant(value: float, size: int) -> tuple[tuple[int, ...], bytes]:
        return (size,), _bfloat16([value] * size)

    yield "model.embed_tokens.weight", noise(VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, width in (("q", HEADS * head), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            yield f"{prefix}.self_attn.{name}_proj.weight", noise(width, HIDDEN)
            yield f"{prefix}.self_attn.{name}_proj.bias", constant(0.0, width)
        yield f"{prefix}.self_attn.o_proj.weight", noise(HIDDEN, HEADS * head)
        yield f"{prefix}.mlp.gate_proj.weight", noise(_INNER, HIDDEN)
        yield f"{prefix}.mlp.up_proj.weight", noise(_INNER, HIDDEN)
        yield f"{prefix}.mlp.down_proj.weight", noise(HIDDEN, _INNER)
        yield f"{prefix}.input_layernorm.weight", constant(1.0, HIDDEN)
        yield f"{prefix}.post_attention_layernorm.weight", constant(1.0, HIDDEN)
    yield "model.norm.weight", constant(1.0, HIDDEN)


def _bfloat16(values: list[float]) -> bytes:
    """The upper half of each float32, little-endian (cut, not rounded: these are random numbers)."""
    words = array.array("I", array.array("f", values).tobytes())
    upper = array.array("H", (word >> 16 for word in words))
    if sys.byteorder == "big":
        upper.byteswap()
    return upper.tobytes()


def _safetensors(tensors: Mapping[str, tuple[tuple[int, ...], bytes]]) -> bytes:
    """https://github.com/huggingface/safetensors#format: header length, JSON header, data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


def _tokenizer() -> dict[str, object]:
    """A byte-level BPE whose merges are pairs of letters and digits: every text can be encoded, every id decoded."""
    alphabet = _byte_alphabet()
    vocabulary = {token: place for place, token in enumerate([*_SPECIAL, *alphabet])}
    merges: list[list[str]] = []
    for left, right in _pairs():
        if len(vocabulary) == VOCABULARY:
            break
        merges.append([left, right])
        vocabulary[left + right] = len(vocabulary)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": place,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for place, token in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [" ".join(pair) for pair in merges],
        },
    }


def _pairs() -> Iterator[tuple[str, str]]:
    space = "Ġ"  # how byte-level BPE writes a space
    for letters in (string.ascii_lowercase, string.ascii_uppercase, string.digits):
        yield from ((left, right) for left in letters for right in letters)
    yield from ((space, letter) for letter in string.ascii_letters)
    yield from ((space, left + right) for left in string.ascii_lowercase for right in string.ascii_lowercase)


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + place) for place in range(len(others))]


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL[0],
        "pad_token": _SPECIAL[0],
        "model_max_length": POSITIONS,
        "chat_template": _TEMPLATE,
    }
