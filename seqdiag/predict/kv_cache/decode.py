"""The arithmetic of one decode step on what is kept; projections and feed-forward layers apart.

An operation is one addition or multiplication, as in `seqdiag.predict.work`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    CrossAttention,
    Latent,
    Part,
    RecurrentState,
)


def step_flops(parts: Iterable[Part], tokens: int, heads: int | None) -> int | None:
    """Returns the operations of one step of one sequence that holds `tokens` tokens.

    `heads` are query heads. None where a part's are not known: attention without `heads`, a state
    without its update rule, a token shift.
    """
    total = 0
    for part, count in Counter(parts).items():
        operations = _of(part, tokens, heads)
        if operations is None:
            return None
        total += count * operations
    return total


def _of(part: Part, tokens: int, heads: int | None) -> int | None:
    if isinstance(part, ConvState):
        # Kernel K takes K products a channel.
        return None if part.shift else 2 * part.channels * (part.columns + 1)
    if isinstance(part, RecurrentState):
        return None if part.flops is None else part.flops * part.numbers
    if heads is None:
        return None
    if isinstance(part, Attention):
        seen = tokens if part.window is None else min(tokens, part.window)
        return 2 * heads * seen * (part.head_dim + part.v_head_dim)
    if isinstance(part, CrossAttention):
        return 4 * heads * part.encoder_tokens * part.head_dim
    if isinstance(part, Latent):
        # Queries are taken into the latent space once: scores over rank + rotary, sums over rank.
        seen = part.attended(tokens)
        attended = 2 * heads * seen * (2 * part.rank + part.rope_dim)
        if not part.index_dim:
            return attended
        if part.index_heads is None:
            return None
        return attended + 2 * part.index_heads * tokens * part.index_dim
    return None
