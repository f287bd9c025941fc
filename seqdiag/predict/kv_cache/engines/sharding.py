"""Tensor parallelism: what one rank holds of a part."""

from __future__ import annotations

import dataclasses

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    CrossAttention,
    Part,
    RecurrentState,
)


def shard(part: Part, ranks: int) -> Part:
    """Returns the part of one of `ranks` ranks.

    Key/value heads are divided, and replicated where there are fewer than ranks; a latent is whole
    on every rank; states are divided by channel or head. Raises `UsageError` where ranks do not
    divide what they must.
    """
    if isinstance(part, Attention | CrossAttention):
        # With more heads than ranks the largest share counts where they do not divide.
        return dataclasses.replace(part, kv_heads=-(-part.kv_heads // ranks))
    if isinstance(part, ConvState):
        grouped = part.groups * part.group_width
        groups = part.groups if part.groups % ranks == 0 else max(part.groups, ranks)
        rest = _divide(part.channels - grouped, ranks, "channels of a convolution")
        shared = -(-groups // ranks) * part.group_width
        return dataclasses.replace(part, channels=rest + shared, groups=0, group_width=0)
    if isinstance(part, RecurrentState):
        first = _divide(part.shape[0], ranks, "heads or channels of a recurrent state")
        return dataclasses.replace(part, shape=(first, *part.shape[1:]))
    return part


def _divide(number: int, ranks: int, what: str) -> int:
    if number % ranks:
        raise UsageError(f"--tp: {ranks} ranks do not divide the {number} {what}")
    return number // ranks
