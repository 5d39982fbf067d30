"""What a model's config.json says about its size: enough to judge legality and to estimate memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import UserError
from autotune.spec.recurrent_state import read_recurrent_state

_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_EXPERT_INTERMEDIATE = ("moe_intermediate_size", "expert_intermediate_size")
_BITS = {"fp8": 8.0, "fbgemm_fp8": 8.0, "modelopt": 8.0, "awq": 4.0, "gptq": 4.0, "mxfp4": 4.25, "modelopt_fp4": 4.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """`head_size` in elements, `weight_bytes` of the whole checkpoint (estimated from the shape unless it was counted).

    `experts` is 0 in a dense model, and so is `expert_intermediate`, the width of one. `quantization_block`: rows and
    columns of weights that share a scale, where the checkpoint is quantized in blocks. `kv_latent` is the width of a
    token's compressed key and value in MLA models (DeepSeek), which tensor parallelism doesn't split; 0 elsewhere.
    `window_layers` of the layers see only the last `window` tokens; `state_layers` keep a state of `state_bytes` each
    instead of keys and values, `bare_layers` nothing.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_positions: int | None
    dtype: str
    dtype_bytes: int
    weight_bytes: int
    linear_parameters: int
    quantization: str | None = None
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    quantization_block: tuple[int, int] | None = None
    kv_latent: int = 0
    window: int | None = None
    window_layers: int = 0
    state_layers: int = 0
    state_bytes: int = 0
    bare_layers: int = 0

    @property
    def attention_layers(self) -> int:
        return self.layers - self.state_layers - self.bare_layers

    @property
    def rotary_bytes(self) -> int:
        """Of vLLM's table of sines and cosines, one for all layers. It counts as weights."""
        return (self.max_positions or 0) * self.head_size * self.dtype_bytes

    def weight_bytes_as(self, quantization: str | None) -> int:
        """Weight bytes when vLLM itself quantizes an unquantized checkpoint while loading (fp8 and the like)."""
        if quantization is None or self.quantization is not None:
            return self.weight_bytes
        bits = 8.0 if "8" in quantization else _BITS.get(quantization, 8.0)
        return self.weight_bytes - int(self.linear_parameters * (self.dtype_bytes - bits / 8))


def parse_model_shape(config: Mapping[str, object], *, name: str, weight_bytes: int | None = None) -> ModelShape:
    """From a parsed config.json. `weight_bytes`: what the checkpoint's index counts, where it is known.

    Raises UserError when the file isn't a language model's.
    """
    text = _text_part(config)
    reader = _Reader(text, name)
    layers = reader.whole("num_hidden_layers", "n_layer", "num_layers")
    hidden = reader.whole("hidden_size", "n_embd", "d_model")
    heads = reader.whole("num_attention_heads", "n_head", "num_heads")
    kv_heads = reader.maybe("num_key_value_heads", "multi_query_group_num") or heads
    head_size = reader.maybe("head_dim") or hidden // heads
    vocabulary = reader.whole("vocab_size")
    intermediate = reader.maybe("intermediate_size", "ffn_hidden_size", "n_inner") or 4 * hidden
    experts = reader.maybe("num_experts", "num_local_experts", "n_routed_experts") or 0
    latent = reader.maybe("kv_lora_rank") or 0
    rope = reader.maybe("qk_rope_head_dim") or 0
    dtype = str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or "bfloat16")
    dtype = dtype.removeprefix("torch.")
    dtype_bytes = _DTYPE_BYTES.get(dtype, 2)
    quantization, bits = _quantization(config, text)
    linear = layers * _attention_parameters(reader, hidden, heads, kv_heads, head_size) + _feed_forward_parameters(
        reader, layers, hidden, intermediate, experts
    )
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    embeddings = vocabulary * hidden * (1 if tied else 2)
    estimated = embeddings * dtype_bytes + int(linear * (bits / 8 if bits else dtype_bytes))
    architectures = config.get("architectures")
    state = read_recurrent_state(text, layers=layers, dtype_bytes=dtype_bytes)
    window = reader.maybe("sliding_window") if text.get("use_sliding_window", True) else None
    return ModelShape(
        name=name,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "unknown",
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=vocabulary,
        max_positions=reader.maybe("max_position_embeddings", "n_positions", "seq_length"),
        dtype=dtype,
        dtype_bytes=dtype_bytes,
        weight_bytes=weight_bytes if weight_bytes is not None else estimated,
        linear_parameters=linear,
        quantization=quantization,
        experts=experts,
        experts_per_token=reader.maybe("num_experts_per_tok", "num_experts_per_token", "moe_topk") or 0,
        expert_intermediate=_expert_width(reader, intermediate) if experts else 0,
        quantization_block=_quantization_block(config, text),
        kv_latent=latent + rope if latent else 0,
        window=window,
        window_layers=_window_layers(text, layers, window),
        state_layers=state.layers,
        state_bytes=state.bytes,
        bare_layers=state.bare_layers,
    )


class _Reader:
    def __init__(self, config: Mapping[str, object], name: str) -> None:
        self._config, self._name = config, name

    def maybe(self, *keys: str) -> int | None:
        for key in keys:
            value = self._config.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return int(value)
        return None

    def whole(self, *keys: str) -> int:
        value = self.maybe(*keys)
        if value is None or value < 1:
            raise UserError(
                "this config.json doesn't describe a language model that can be judged here",
                file=self._name,
                key=keys[0],
                value=self._config.get(keys[0]),
                remedy="give the config.json of the model itself with --model-config PATH",
            )
        return value


def _text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """Models with images keep the language model's shape one level down."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return _text_part(inner)
    return config


def _attention_parameters(reader: _Reader, hidden: int, heads: int, kv_heads: int, head_size: int) -> int:
    latent = reader.maybe("kv_lora_rank")
    if not latent:
        return hidden * head_size * (2 * heads + 2 * kv_heads)
    rope, nope, value = (reader.maybe(key) or 0 for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    queries = reader.maybe("q_lora_rank")
    asking = hidden * queries + queries * heads * (nope + rope) if queries else hidden * heads * (nope + rope)
    return asking + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden


def _feed_forward_parameters(reader: _Reader, layers: int, hidden: int, intermediate: int, experts: int) -> int:
    """Gated feed-forward layers (three matrices), as all but the oldest models have them."""
    dense = 3 * hidden * intermediate
    if not experts:
        return layers * dense
    inner = _expert_width(reader, intermediate)
    shared = reader.maybe("shared_expert_intermediate_size") or (reader.maybe("n_shared_experts") or 0) * inner
    first = reader.maybe("first_k_dense_replace") or 0
    sparse = experts * 3 * hidden * inner + 3 * hidden * shared + hidden * experts
    return first * dense + (layers - first) * sparse


def _expert_width(reader: _Reader, intermediate: int) -> int:
    return reader.maybe(*_EXPERT_INTERMEDIATE) or intermediate


def _given_quantization(config: Mapping[str, object], text: Mapping[str, object]) -> object:
    return config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")


def _quantization_block(config: Mapping[str, object], text: Mapping[str, object]) -> tuple[int, int] | None:
    given = _given_quantization(config, text)
    block = given.get("weight_block_size") if isinstance(given, Mapping) else None
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            return None


def _quantization(config: Mapping[str, object], text: Mapping[str, object]) -> tuple[str | None, float | None]:
    """(method, bits per weight with its scales) of a checkpoint that is quantized already."""
    given = _given_quantization(config, text)
    if not isinstance(given, Mapping):
        return None, None
    method = str(given.get("quant_method") or "unknown").lower()
    bits = given.get("bits") or given.get("w_bit")
    groups = given.get("config_groups")
    if bits is None and isinstance(groups, Mapping):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        bits = next((one.get("num_bits") for one in weights if isinstance(one, Mapping)), None)
    if bits is None and given.get("load_in_4bit"):
        bits = 4
    known = float(bits) if isinstance(bits, int | float) else _BITS.get(method, 8.0)
    # 4-bit formats keep a 16-bit scale (and a zero point) per group of 128 or fewer weights.
    return method, known + (0.25 if known <= 4 else 0.0)


def _window_layers(text: Mapping[str, object], layers: int, window: int | None) -> int:
    if not window:
        return 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return sum("sliding" in str(kind) for kind in kinds)
    return layers
