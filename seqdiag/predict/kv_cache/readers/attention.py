"""Keys and values of full, sliding-window and chunked attention, and layers mixed with others.

Most families differ only in the names and defaults of their fields, which `class_defaults` holds.
"""

from __future__ import annotations

from collections.abc import Callable

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, Layer, Part

KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
    "conv": "linear",
    "hybrid": "hybrid",
    "mlp": "none",
    "moe": "none",
    "indexed_attention": "full",
}
"""What configs call a layer, and what it keeps."""

_MOST_LAYERS = 100_000


def read(fields: Fields) -> tuple[Layer, ...]:
    """One attention part a layer: the form of Llama and about a hundred others."""
    return read_mixed(fields, None)


def read_mixed(
    fields: Fields,
    other: Callable[[], tuple[Part, ...]] | None,
    fallback: Callable[[Fields, int], list[str]] | None = None,
) -> tuple[Layer, ...]:
    """Attention layers, and `other()` where the layer map says linear, mamba or conv.

    The map is the config's list of layer types, else `fallback(fields, layers)`.
    """
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None:
        kinds = (fallback or attention_kinds)(fields, layers)
    if other is None and any(kind in ("linear", "hybrid") for kind in kinds):
        raise fields.inconsistent("lists layers without attention, which this model type has not")
    linear = other() if other is not None and {"linear", "hybrid"} & set(kinds) else ()
    kv_heads, head_dim = read_heads(fields) if set(kinds) - {"linear", "none"} else (0, 0)
    v_head_dim = fields.integer("v_head_dim") if fields.has("v_head_dim") else head_dim
    window = read_window(fields) if "sliding" in kinds else None
    chunk = fields.integer("attention_chunk_size") if "chunked" in kinds else None
    full = Attention(kv_heads, head_dim, v_head_dim)
    by_kind: dict[str, Layer] = {
        "full": Layer((full,)),
        "sliding": Layer((Attention(kv_heads, head_dim, v_head_dim, window),)),
        "chunked": Layer((Attention(kv_heads, head_dim, v_head_dim, chunk, chunked=True),)),
        "linear": Layer(linear),
        "hybrid": Layer((full, *linear)),
        "none": Layer(()),
    }
    return tuple(by_kind[kind] for kind in kinds)


def layer_count(fields: Fields) -> int:
    """Returns the number of layers; that of the layer list where there is no other."""
    listed = fields.given("layers_block_type", "layer_types")
    if not fields.has("num_hidden_layers") and listed is not None:
        value = fields.raw(listed)
        layers = len(value) if isinstance(value, list) else 0
    else:
        layers = fields.integer("num_hidden_layers")
    if not 1 <= layers <= _MOST_LAYERS:
        raise fields.inconsistent(f"num_hidden_layers = {layers} is not from 1 to {_MOST_LAYERS}")
    return layers


def read_heads(fields: Fields) -> tuple[int, int]:
    """Returns kv heads and head_dim.

    A null `num_key_value_heads` means as many as query heads, a null `head_dim` hidden / heads.
    """
    if fields.known("num_key_value_heads"):
        kv_heads = fields.integer("num_key_value_heads")
    else:
        kv_heads = fields.integer("num_attention_heads")
    if fields.known("head_dim"):
        head_dim = fields.integer("head_dim")
    else:
        head_dim = hidden_per_head(fields)
    if fields.has("num_attention_heads"):
        heads = fields.integer("num_attention_heads")
        if heads % kv_heads:
            raise fields.inconsistent(
                f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
    return kv_heads, head_dim


def hidden_per_head(fields: Fields) -> int:
    """Returns hidden_size / num_attention_heads; refuses a remainder."""
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size", minimum=heads)
    if hidden % heads:
        raise fields.inconsistent(
            f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and there is "
            "no head_dim"
        )
    return hidden // heads


def read_window(fields: Fields) -> int | None:
    """Returns the window, None where the config says null: all layers are full then."""
    return fields.integer("sliding_window") if fields.known("sliding_window") else None


def attention_kinds(fields: Fields, layers: int) -> list[str]:
    """Returns the kinds of attention layers where the config does not list them.

    A switch, a period of full layers, the model class's own pattern; else a window is everyone's.
    """
    if fields.known("use_sliding_window"):
        if not fields.flag("use_sliding_window", default=False):
            return ["full"] * layers
        first = 0
        if fields.known("max_window_layers"):
            first = fields.integer("max_window_layers", minimum=0)
        return ["full"] * min(first, layers) + ["sliding"] * max(layers - first, 0)
    if fields.has("global_attn_every_n_layers"):
        every = fields.integer("global_attn_every_n_layers")
        return ["sliding" if i % every else "full" for i in range(layers)]
    if fields.has("sliding_window_pattern"):
        every = fields.integer("sliding_window_pattern")
        return ["sliding" if (i + 1) % every else "full" for i in range(layers)]
    pattern = fields.class_defaults.get("kinds")
    if isinstance(pattern, list):
        fields.assumed["layer_types"] = " ".join(pattern)
        return [KINDS[pattern[i % len(pattern)]] for i in range(layers)]
    if fields.has("attention_chunk_size"):
        return ["chunked"] * layers
    return ["sliding" if fields.known("sliding_window") else "full"] * layers


def read_hidden(fields: Fields) -> tuple[Layer, ...]:
    """GPT-2 and its like: every query head has its own keys and values."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    return (Layer((Attention(heads, head_dim, head_dim),)),) * layer_count(fields)


def read_gpt_bigcode(fields: Fields) -> tuple[Layer, ...]:
    """One key/value head if `multi_query`."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    kv_heads = 1 if fields.flag("multi_query", default=True) else heads
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * layer_count(fields)


def read_falcon(fields: Fields) -> tuple[Layer, ...]:
    """Falcon: one head if `multi_query`; the new architecture repeats its heads in the cache."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    if fields.flag("new_decoder_architecture", default=False):
        kv_heads = fields.integer("num_kv_heads") if fields.has("num_kv_heads") else heads
        part = Attention(kv_heads, head_dim, head_dim, library_heads=heads)
    elif fields.flag("multi_query", default=True):
        part = Attention(1, head_dim, head_dim)
    else:
        part = Attention(heads, head_dim, head_dim)
    return (Layer((part,)),) * layer_count(fields)


def read_chatglm(fields: Fields) -> tuple[Layer, ...]:
    """ChatGLM: `multi_query_group_num` heads of `kv_channels` if `multi_query_attention`."""
    heads = fields.integer("num_attention_heads")
    if fields.has("num_key_value_heads"):
        kv_heads = fields.integer("num_key_value_heads")
    elif fields.flag("multi_query_attention", default=False):
        kv_heads = fields.integer("multi_query_group_num")
    else:
        kv_heads = heads
    name = fields.given("head_dim", "kv_channels")
    head_dim = fields.integer(name) if name else hidden_per_head(fields)
    layers = fields.integer(fields.given("num_hidden_layers", "num_layers") or "num_layers")
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * layers


def read_nas(fields: Fields) -> tuple[Layer, ...]:
    """Nemotron-NAS (DeciLM): key/value heads layer by layer, none where attention is removed."""
    name = fields.given("head_dim")
    head_dim = fields.integer(name) if name else hidden_per_head(fields)
    listed = fields.given("kv_heads_per_layer", "num_key_value_heads_per_layer")
    if listed is not None:
        counts = fields.raw(listed)
    else:
        blocks = fields.raw("block_configs")
        if not isinstance(blocks, list):
            raise fields.inconsistent("has neither block_configs nor kv_heads_per_layer")
        heads = fields.integer("num_attention_heads")
        counts = [_nas_heads(fields, heads, block) for block in blocks]
    layers = layer_count(fields)
    if (
        not isinstance(counts, list)
        or len(counts) != layers
        or not all(type(n) is int and 0 <= n <= 2**20 for n in counts)
    ):
        raise fields.inconsistent(f"needs key/value heads for each of {layers} layers")
    return tuple(Layer((Attention(n, head_dim, head_dim),) if n else ()) for n in counts)


def _nas_heads(fields: Fields, heads: int, block: object) -> int:
    """`n_heads_in_group` counts query heads for each key/value head."""
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise fields.inconsistent("a block of block_configs has no attention table")
    group = attention.get("n_heads_in_group")
    if attention.get("no_op") or attention.get("replace_with_linear") or group is None:
        return 0
    if type(group) is not int or group < 1 or heads % group:
        raise fields.inconsistent(f"n_heads_in_group = {group!r} does not divide {heads} heads")
    return heads // group


def read_gemma4(fields: Fields) -> tuple[Layer, ...]:
    """Gemma 4: full layers have their own head size; the last layers may share earlier caches."""
    full_dim = fields.integer("global_head_dim", default=512)
    layers = read_mixed(fields, None)
    full_heads = None
    if fields.flag("attention_k_eq_v", default=False) and fields.has("num_global_key_value_heads"):
        full_heads = fields.integer("num_global_key_value_heads")
    sized = []
    for layer in layers:
        (part,) = layer.parts
        assert isinstance(part, Attention)
        if part.window is None:
            part = Attention(full_heads or part.kv_heads, full_dim, full_dim)
        sized.append(Layer((part,)))
    return _shared(fields, sized)


def read_sharing(fields: Fields) -> tuple[Layer, ...]:
    """Gemma 3n: the last `num_kv_shared_layers` layers reuse the cache of earlier ones."""
    return _shared(fields, list(read_mixed(fields, None)))


def _shared(fields: Fields, layers: list[Layer]) -> tuple[Layer, ...]:
    shared = (
        fields.integer("num_kv_shared_layers", minimum=0)
        if fields.known("num_kv_shared_layers")
        else 0
    )
    if shared >= len(layers):
        raise fields.inconsistent(f"num_kv_shared_layers {shared} leaves no layer of its own")
    kept = len(layers) - shared
    return tuple(layers[:kept]) + (Layer(()),) * shared


def read_gpt_neo(fields: Fields) -> tuple[Layer, ...]:
    """GPT-Neo: a local layer's mask is a window, but transformers keeps everything."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    layers = layer_count(fields)
    types = fields.raw("attention_types")
    try:
        names = [
            name for group, count in types for _ in range(min(count, layers)) for name in group
        ]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise fields.inconsistent("attention_types is no list of [kinds, count]") from None
    if len(names) != layers or not set(names) <= {"global", "local"}:
        raise fields.inconsistent(f"attention_types does not name {layers} layers global or local")
    window = fields.integer("window_size", default=256)
    full = Layer((Attention(heads, head_dim, head_dim),))
    local = Layer((Attention(heads, head_dim, head_dim, window, trimmed=False),))
    return tuple(local if name == "local" else full for name in names)


def read_mimo_v2(fields: Fields) -> tuple[Layer, ...]:
    """MiMo-V2-Flash: window layers have their own heads, twice as many unless said."""
    kv_heads, head_dim = read_heads(fields)
    v_head_dim = fields.integer("v_head_dim")
    heads = fields.integer("swa_num_key_value_heads", default=2 * kv_heads)
    key = fields.integer("swa_head_dim", default=head_dim)
    value = fields.integer("swa_v_head_dim", default=v_head_dim)
    if fields.has("sliding_window_size"):
        window = fields.integer("sliding_window_size") + 1
    else:
        window = fields.integer("sliding_window")
    full = Layer((Attention(kv_heads, head_dim, v_head_dim),))
    local = Layer((Attention(heads, key, value, window),))
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None and fields.has("hybrid_layer_pattern"):
        pattern = fields.raw("hybrid_layer_pattern")
        if not isinstance(pattern, list) or len(pattern) != layers:
            raise fields.inconsistent(f"hybrid_layer_pattern does not list {layers} layers")
        kinds = ["sliding" if flag else "full" for flag in pattern]
    return tuple(
        local if kind == "sliding" else full for kind in kinds or attention_kinds(fields, layers)
    )
