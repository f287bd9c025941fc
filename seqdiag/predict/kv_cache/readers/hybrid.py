"""Models that mix attention with a recurrent state, between layers or inside one."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, Layer
from seqdiag.predict.kv_cache.readers.attention import ClassDefaults, read_heads
from seqdiag.predict.kv_cache.readers.mamba import check_heads, mamba2_parts, mamba_parts


def read_jamba(fields: Fields) -> tuple[Layer, ...]:
    """Jamba (arXiv 2403.19887): layer i is attention where i % period == offset, else Mamba."""
    kv_heads, head_dim = read_heads(fields, ClassDefaults(kv_heads=8))
    attention = Layer((Attention(kv_heads, head_dim, head_dim),))
    d_inner = int(fields.number("mamba_expand", default=2) * fields.integer("hidden_size"))
    mamba = Layer(
        mamba_parts(
            d_inner,
            fields.integer("mamba_d_state", default=16),
            fields.integer("mamba_d_conv", default=4),
        )
    )
    layers = fields.integer("num_hidden_layers")
    kinds = fields.layer_kinds(layers, {"mamba", "attention", "linear_attention", "full_attention"})
    if kinds is not None:
        full = ("attention", "full_attention")
        return tuple(attention if kind in full else mamba for kind in kinds)
    period = fields.integer("attn_layer_period", default=8)
    offset = fields.integer("attn_layer_offset", default=4, minimum=0)
    if offset >= period:
        raise fields.inconsistent(
            f"attn_layer_offset {offset} is not below attn_layer_period {period}"
        )
    return tuple(attention if i % period == offset else mamba for i in range(layers))


def read_falcon_h1(fields: Fields) -> tuple[Layer, ...]:
    """Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side in every layer."""
    kv_heads, head_dim = read_heads(fields, ClassDefaults(kv_heads=8))
    if fields.has("mamba_d_ssm"):  # wins over expand
        d_inner = fields.integer("mamba_d_ssm")
    else:
        d_inner = int(fields.number("mamba_expand", default=2) * fields.integer("hidden_size"))
    heads = fields.integer("mamba_n_heads", default=128)
    if fields.has("mamba_d_head") and not fields.is_auto("mamba_d_head"):
        mamba_head_dim = fields.integer("mamba_d_head")
    else:
        mamba_head_dim = d_inner // heads
    check_heads(fields, heads, mamba_head_dim, d_inner)
    parts = mamba2_parts(
        heads,
        mamba_head_dim,
        fields.integer("mamba_d_state", default=256),
        fields.integer("mamba_n_groups", default=1),
        fields.integer("mamba_d_conv", default=4),
        d_inner,
    )
    layer = Layer((Attention(kv_heads, head_dim, head_dim), *parts))
    return (layer,) * fields.integer("num_hidden_layers")
