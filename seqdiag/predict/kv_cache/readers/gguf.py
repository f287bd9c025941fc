"""From the metadata of a GGUF file to a layout: what llama.cpp reads of it.

Key names: `gguf-py/gguf/constants.py`; which architectures slide and how: `src/llama-model.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    Latent,
    Layer,
    Layout,
    Part,
    RecurrentState,
)

_PERIOD = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
"""The last of this many layers is full, the others slide."""
_WITH_STATE = {
    "mamba", "mamba2", "jamba", "granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1",
    "qwen3next", "qwen35", "qwen35moe", "lfm2", "lfm2moe",
    "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7",
}  # fmt: skip
_DELTA_NET = {"qwen3next", "qwen35", "qwen35moe"}
_MOST_LAYERS = 100_000


def read_gguf(name: str, header: Mapping[str, object], where: str) -> Layout:
    """Returns the layout of the model whose metadata is `header`.

    Raises `UsageError` for architectures with a state of a kind that is not known here.
    """
    architecture = Fields(header, where).text("general.architecture")
    if architecture is None:
        raise UsageError(f"{where}: the field 'general.architecture' is missing")
    prefix = f"{architecture}."
    fields = Fields(
        {key.removeprefix(prefix): value for key, value in header.items() if prefix in key[:64]},
        where,
    )
    states = fields.given("ssm.conv_kernel", "wkv.head_size", "shortconv.l_cache")
    if states and architecture not in _WITH_STATE:
        raise UsageError(
            f"{where}: the state of architecture {architecture!r} is not known ({states})",
            hint="write its layout as TOML, see configs/models/mamba-32l.toml",
        )
    layers = fields.integer("block_count")
    if layers > _MOST_LAYERS:
        raise fields.inconsistent(f"block_count = {layers} is more than {_MOST_LAYERS}")
    fields.read["general.architecture"] = architecture
    return Layout(
        name=name,
        layers=tuple(_layer(fields, architecture, i, layers) for i in range(layers)),
        dtype="float16",
        source=where,
        fields=fields.read,
        assumed=fields.assumed,
        query_heads=_query_heads(fields),
        float32_state=True,
    )


def _query_heads(fields: Fields) -> int | None:
    """Returns the query heads where all layers with attention have as many."""
    heads = fields.peek(("attention.head_count",))
    counts = {n for n in heads if n} if isinstance(heads, list) else {heads}
    only = counts.pop() if len(counts) == 1 else None
    return only if type(only) is int and only > 0 else None


def _layer(fields: Fields, architecture: str, index: int, layers: int) -> Layer:
    if architecture not in _WITH_STATE:
        return Layer(_attention(fields, architecture, index, layers))
    kv_heads = _per_layer(fields, "attention.head_count_kv", index, layers, default=0)
    if architecture == "falcon-h1":
        return Layer((*_attention(fields, architecture, index, layers), *_state(fields)))
    if architecture in _DELTA_NET:
        every = fields.integer("full_attention_interval", default=4)
        is_state = (index + 1) % every != 0
    else:
        is_state = kv_heads == 0
    if not is_state:
        return Layer(_attention(fields, architecture, index, layers))
    if _per_layer(fields, "feed_forward_length", index, layers, default=0) and architecture in (
        "nemotron_h",
        "nemotron_h_moe",
    ):
        return Layer(())  # an MLP takes the place of a mixer
    return Layer(_state(fields))


def _state(fields: Fields) -> tuple[Part, ...]:
    """(K-1) x (d_inner + 2 groups x d_state), and d_state x d_inner; RWKV's shifts and heads."""
    if fields.has("shortconv.l_cache"):
        width = fields.integer("embedding_length")
        return (ConvState(width, fields.integer("shortconv.l_cache") - 1),)
    if fields.has("wkv.head_size"):
        width = fields.integer("embedding_length")
        shifts = fields.integer("token_shift_count", default=2)
        return (ConvState(width, shifts), RecurrentState((width, fields.integer("wkv.head_size"))))
    inner, state = fields.integer("ssm.inner_size"), fields.integer("ssm.state_size")
    groups = fields.integer("ssm.group_count", minimum=0) if fields.has("ssm.group_count") else 0
    columns = fields.integer("ssm.conv_kernel") - 1
    return (
        ConvState(inner + 2 * groups * state, columns, groups, 2 * state),
        RecurrentState((inner, state)),
    )


def _attention(fields: Fields, architecture: str, index: int, layers: int) -> tuple[Part, ...]:
    shared = 0
    if fields.has("attention.shared_kv_layers"):
        shared = fields.integer("attention.shared_kv_layers", minimum=0)
    if index >= layers - shared:
        return ()
    heads = _per_layer(fields, "attention.head_count", index, layers)
    kv_heads = _per_layer(fields, "attention.head_count_kv", index, layers, default=heads)
    if not kv_heads:
        return ()
    window = _window(fields, architecture, index, layers)
    suffix = "_swa" if window is not None and fields.has("attention.key_length_swa") else ""
    key = _length(fields, f"attention.key_length{suffix}", heads)
    value = _length(fields, f"attention.value_length{suffix}", heads)
    if fields.has("attention.kv_lora_rank") and fields.has("attention.key_length_mla"):
        expanded = (
            heads,
            fields.integer("attention.key_length_mla"),
            fields.integer("attention.value_length_mla"),
        )
        rank = fields.integer("attention.kv_lora_rank")
        return (Latent(rank, fields.integer("rope.dimension_count"), 0, expanded),)
    return (Attention(kv_heads, key, value, window),)


def _length(fields: Fields, name: str, heads: int) -> int:
    if fields.has(name):
        return fields.integer(name)
    width = fields.integer("embedding_length")
    if not heads or width % heads:
        raise fields.inconsistent(f"embedding_length {width} is no multiple of {heads} heads")
    return width // heads


def _window(fields: Fields, architecture: str, index: int, layers: int) -> int | None:
    """Returns the layer's window. llama.cpp ignores one without a pattern, and so does this."""
    if not fields.has("attention.sliding_window"):
        return None
    if fields.has("attention.sliding_window_pattern"):
        slides = _per_layer(fields, "attention.sliding_window_pattern", index, layers)
        if not isinstance(fields.raw("attention.sliding_window_pattern"), list):
            slides = (index + 1) % slides
    elif architecture in _PERIOD:
        slides = (index + 1) % _PERIOD[architecture]
    else:
        return None
    return fields.integer("attention.sliding_window") if slides else None


def _per_layer(
    fields: Fields, name: str, index: int, layers: int, default: int | None = None
) -> int:
    """Returns a number that may be one for all layers or a list of one for each."""
    if not fields.has(name) and default is not None:
        return default
    value = fields.raw(name)
    if isinstance(value, list):
        if len(value) != layers:
            raise fields.inconsistent(f"{name} lists {len(value)} layers, block_count is {layers}")
        value = value[index]
        if not isinstance(value, int) or not 0 <= value <= 2**40:
            raise fields.inconsistent(f"{name} lists {value!r} for layer {index}")
        return int(value)
    return fields.integer(name, minimum=0)
