"""Convolution and recurrent states of Mamba (arXiv 2312.00752) and Mamba-2 (arXiv 2405.21060)."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import ConvState, Layer, Part, RecurrentState

LINEAR = 5
"""Operations of a step for each number of a state: decay, write and sum, read and sum."""
SELECTIVE = 6
"""The same, and the exponent of a decay of its own."""


def mamba_parts(d_inner: int, d_state: int, d_conv: int) -> tuple[Part, ...]:
    """Mamba: (d_inner, K-1) inputs and a (d_inner, d_state) state, each number with its decay."""
    return (ConvState(d_inner, d_conv - 1), RecurrentState((d_inner, d_state), SELECTIVE))


def mamba2_parts(
    heads: int, head_dim: int, d_state: int, groups: int, d_conv: int, d_inner: int
) -> tuple[Part, ...]:
    """Mamba-2: the convolution also covers B and C of each group."""
    return (
        ConvState(d_inner + 2 * groups * d_state, d_conv - 1, groups, 2 * d_state),
        RecurrentState((heads, head_dim, d_state), LINEAR),
    )


def check_heads(fields: Fields, heads: int, head_dim: int, d_inner: int) -> None:
    """Raises if heads x head_dim is not the inner width, as the model class does."""
    if heads * head_dim != d_inner:
        raise fields.inconsistent(
            f"{heads} Mamba heads of {head_dim} do not make the inner width {d_inner}"
        )


def read_mamba(fields: Fields) -> tuple[Layer, ...]:
    """`intermediate_size` wins over `expand`: falcon-mamba has expand 16 but 2 x hidden."""
    if fields.has("intermediate_size"):
        d_inner = fields.integer("intermediate_size")
    else:
        d_inner = int(fields.number("expand", default=2) * fields.integer("hidden_size"))
    parts = mamba_parts(
        d_inner,
        fields.integer("state_size", default=16),
        fields.integer("conv_kernel", default=4),
    )
    return (Layer(parts),) * fields.layers("num_hidden_layers")


def read_mamba2(fields: Fields) -> tuple[Layer, ...]:
    heads = fields.integer("num_heads", default=128)
    head_dim = fields.integer("head_dim", default=64)
    d_inner = int(fields.number("expand", default=2) * fields.integer("hidden_size"))
    check_heads(fields, heads, head_dim, d_inner)
    parts = mamba2_parts(
        heads,
        head_dim,
        fields.integer("state_size", default=128),
        fields.integer("n_groups", default=8),
        fields.integer("conv_kernel", default=4),
        d_inner,
    )
    return (Layer(parts),) * fields.layers("num_hidden_layers")
