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

_LETTERS = {"F": "full", "S": "sliding", "C": "chunked", "L": "linear"}


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
    listed = fields.either("layer_types", "layers_block_type")
    if not fields.has("num_hidden_layers") and listed is not None:
        value = fields.raw(listed)
        layers = len(value) if isinstance(value, list) else 0
        return fields.within_layers(listed, layers)
    return fields.layers("num_hidden_layers")


def read_heads(fields: Fields) -> tuple[int, int]:
    """Returns kv heads and head_dim.

    A null `num_key_value_heads` means as many as query heads, a null `head_dim` hidden / heads.
    """
    if fields.known("num_key_value_heads"):
        kv_heads = fields.integer("num_key_value_heads")
    else:
        kv_heads = fields.integer("num_attention_heads")
    own = fields.known("head_dim")
    head_dim = fields.integer("head_dim") if own else hidden_per_head(fields)
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
        # Some classes have the switch but not the number, and ignore it in a config.
        if "max_window_layers" in fields.class_defaults:
            first = fields.integer("max_window_layers", minimum=0)
        return ["full"] * min(first, layers) + ["sliding"] * max(layers - first, 0)
    if "max_window_layers" in fields.class_defaults and fields.known("sliding_window"):
        first = min(fields.integer("max_window_layers", minimum=0), layers)
        return ["full"] * first + ["sliding"] * (layers - first)
    if fields.has("global_attn_every_n_layers"):
        every = fields.integer("global_attn_every_n_layers")
        return ["sliding" if i % every else "full" for i in range(layers)]
    if fields.has("sliding_window_pattern"):
        every = fields.integer("sliding_window_pattern")
        return ["sliding" if (i + 1) % every else "full" for i in range(layers)]
    pattern = fields.class_defaults.get("kinds")
    if isinstance(pattern, str):
        fields.assumed["layer_types"] = pattern
        return [_LETTERS[pattern[i % len(pattern)]] for i in range(layers)]
    if fields.has("attention_chunk_size"):
        return ["chunked"] * layers
    return ["sliding" if fields.known("sliding_window") else "full"] * layers
