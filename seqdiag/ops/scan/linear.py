"""h_t = a_t h_{t-1} + b_t: the definition, a chunked form and the parallel prefix."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 64


def loop(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Returns h (B, T, ...), one step at a time."""
    h, states = h0, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, dim=1)


def reference(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Returns the loop computed in double precision."""
    wide = torch.complex128 if b.is_complex() else torch.float64
    return loop(a.to(wide), b.to(wide), h0.to(wide)).to(b.dtype)


def associative(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Returns h by a parallel prefix in log2(T) rounds (Hillis and Steele 1986).

    The pair (a, b) stands for the map h -> a h + b; composing neighbours doubles the span.
    """
    b = torch.cat([(b[:, :1] + a[:, :1] * h0.unsqueeze(1)), b[:, 1:]], dim=1)
    span = 1
    while span < b.shape[1]:
        b = torch.cat([b[:, :span], b[:, span:] + a[:, span:] * b[:, :-span]], dim=1)
        a = torch.cat([a[:, :span], a[:, span:] * a[:, :-span]], dim=1)
        span *= 2
    return b


def chunked(a: Tensor, b: Tensor, h0: Tensor, chunk: int = _CHUNK) -> Tensor:
    """Returns h by a parallel prefix inside chunks and a carry between them."""
    h, pieces = h0, []
    for a_chunk, b_chunk in zip(torch.split(a, chunk, 1), torch.split(b, chunk, 1), strict=True):
        states = associative(a_chunk, b_chunk, h)
        h = states[:, -1]
        pieces.append(states)
    return torch.cat(pieces, dim=1)
