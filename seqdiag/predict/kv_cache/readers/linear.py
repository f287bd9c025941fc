"""Linear attention with a matrix state: Gated DeltaNet, KDA, lightning attention."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import ConvState, Layer, Part, RecurrentState
from seqdiag.predict.kv_cache.readers.attention import (
    KINDS,
    attention_kinds,
    hidden_per_head,
    layer_count,
    read_mixed,
)
from seqdiag.predict.kv_cache.readers.latent import latent_part
from seqdiag.predict.kv_cache.readers.mamba import LINEAR

_DELTA = LINEAR + 2
"""Operations of a step for each number of a state whose old value is read first and replaced."""


def read_delta_net(fields: Fields) -> tuple[Layer, ...]:
    """Gated DeltaNet (arXiv 2412.06464): Hv x dk x dv, and a convolution over q, k and v."""

    return read_mixed(fields, lambda: delta_net_parts(fields), _full_at_every)


def delta_net_parts(fields: Fields) -> tuple[Part, ...]:
    key_heads = fields.integer("linear_num_key_heads")
    value_heads = fields.integer("linear_num_value_heads")
    key_dim = fields.integer("linear_key_head_dim")
    value_dim = fields.integer("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    columns = fields.integer("linear_conv_kernel_dim") - 1
    return (
        ConvState(channels, columns),
        RecurrentState((value_heads, key_dim, value_dim), _DELTA),
    )


def _full_at_every(fields: Fields, layers: int) -> list[str]:
    if not fields.has("full_attention_interval") and "kinds" in fields.class_defaults:
        return attention_kinds(fields, layers)
    every = fields.integer("full_attention_interval", default=4)
    return ["linear" if (i + 1) % every else "full" for i in range(layers)]


def read_kimi_linear(fields: Fields) -> tuple[Layer, ...]:
    """Kimi Linear (arXiv 2510.26692): KDA states, every fourth layer a latent.

    The published form numbers its layers from 1 in `linear_attn_config`.
    """
    layers = layer_count(fields)
    full = Layer((latent_part(fields),))
    published = fields.raw("linear_attn_config")
    if isinstance(published, dict):
        inner = Fields(published, f"{fields.where}: linear_attn_config")
        listed = set(inner.integers("full_attn_layers"))
        if max(listed) > layers:
            raise fields.inconsistent(f"full_attn_layers names layer {max(listed)} of {layers}")
        kinds = ["full" if i + 1 in listed else "linear" for i in range(layers)]
    else:
        given = fields.layer_kinds(layers, KINDS)
        every = 4
        if given is None and fields.has("layer_group_size"):
            every = fields.integer("layer_group_size")
        kinds = given or ["linear" if (i + 1) % every else "full" for i in range(layers)]
    state = Layer(kda_parts(fields))
    return tuple(full if kind == "full" else state for kind in kinds)


def kda_parts(fields: Fields) -> tuple[Part, ...]:
    """The state of Kimi Delta Attention, in the fields of the model or in `linear_attn_config`."""
    inner, names = fields, ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    published = fields.raw("linear_attn_config")
    if isinstance(published, dict):
        inner = Fields(published, f"{fields.where}: linear_attn_config")
        names = ("num_heads", "head_dim", "short_conv_kernel_size")
    heads, dim = inner.integer(names[0]), inner.integer(names[1])
    kernel = inner.integer(names[2], default=4)
    return (ConvState(3 * heads * dim, kernel - 1), RecurrentState((heads, dim, dim), _DELTA))


def read_minimax(fields: Fields) -> tuple[Layer, ...]:
    """MiniMax-01 (arXiv 2501.08313): heads x d x d of lightning attention, in the model's dtype."""

    def parts() -> tuple[Part, ...]:
        heads = fields.integer("num_attention_heads")
        dim = fields.integer("head_dim") if fields.has("head_dim") else hidden_per_head(fields)
        return (RecurrentState((heads, dim, dim), LINEAR),)

    def fallback(fields: Fields, layers: int) -> list[str]:
        listed = fields.raw("attn_type_list")
        if isinstance(listed, list):
            if len(listed) != layers or not set(map(repr, listed)) <= {"0", "1"}:
                raise fields.inconsistent(f"attn_type_list is no list of {layers} zeros and ones")
            return ["full" if kind else "linear" for kind in listed]
        fields.assumed["layer_types"] = "full_attention linear_attention"
        return ["linear" if i % 2 else "full" for i in range(layers)]

    return read_mixed(fields, parts, fallback)
