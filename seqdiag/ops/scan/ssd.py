"""The state space dual form: a scalar decay a head makes the scan a masked matrix product."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_CHUNK = 64
_LOG2_E = 1.0 / math.log(2.0)


def _heads(x: Tensor, heads: int) -> Tensor:
    """Returns (B, T, G, N) with each group repeated for its heads."""
    return x.repeat_interleave(heads // x.shape[2], dim=2)


def loop(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, H, P) and the last state (B, H, P, N), one step at a time."""
    B, C = _heads(B, x.shape[2]), _heads(C, x.shape[2])
    decay = torch.exp(dt * A)[..., None, None]
    h, outputs = h0, []
    for t in range(x.shape[1]):
        h = decay[:, t] * h + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]
        outputs.append((h @ C[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, dim=1), h


def reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the loop computed in float64."""
    y, last = loop(*(t.double() for t in (x, dt, A, B, C, h0)))
    return y.to(x.dtype), last.to(x.dtype)


def chunked(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    chunk: int = _CHUNK,
) -> tuple[Tensor, Tensor]:
    """Returns the scan chunk by chunk: inside a masked product, between them a carried state.

    y_i = sum_{j <= i} (C_i . B_j) 2^(s_i - s_j) dt_j x_j + 2^(s_i) C_i h, with s the cumulative
    decay in powers of two. The difference is masked before it is exponentiated, so nothing
    overflows; s is summed in float64 and split in two float32 parts, so the difference of two long
    sums keeps its digits.
    """
    batch, _, heads, width = x.shape
    groups, n = B.shape[2:]
    shared = heads // groups
    # The state as (B, G, N, heads of the group x P): reading and writing are plain products.
    h = h0.reshape(batch, groups, shared * width, n).transpose(2, 3)
    pieces = []
    for x_c, dt_c, B_c, C_c in zip(
        *(torch.split(t, chunk, dim=1) for t in (x, dt, B, C)), strict=True
    ):
        y, h = _chunk(x_c, dt_c, A, B_c.transpose(1, 2), C_c.transpose(1, 2), h, groups)
        pieces.append(y)
    return torch.cat(pieces, dim=1), h.transpose(2, 3).reshape(h0.shape)


def _chunk(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """Returns y (B, Q, H, P) of one chunk and the state after it. B, C (B, G, Q, N)."""
    batch, steps, heads, width = x.shape
    shared = heads // groups
    rates = (dt * (A * _LOG2_E)).transpose(1, 2)  # (B, H, Q)
    high, low = _split(torch.cumsum(rates.double(), dim=-1), x.dtype)
    differences = (high[..., :, None] - high[..., None, :]) + (
        low[..., :, None] - low[..., None, :]
    )
    future = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
    mask = torch.exp2(differences.masked_fill(future, -torch.inf))  # (B, H, Q, Q)
    grow = torch.exp2(high + low)  # (B, H, Q): from the state before the chunk to step i
    written = (dt.unsqueeze(-1) * x).transpose(1, 2)  # (B, H, Q, P)
    scores = (C @ B.transpose(-1, -2)).unsqueeze(2)  # (B, G, 1, Q, Q)
    within = (scores * mask.view(batch, groups, shared, steps, steps)).flatten(1, 2) @ written
    carried = (C @ h).view(batch, groups, steps, shared, width).transpose(2, 3).flatten(1, 2)
    y = within + grow.unsqueeze(-1) * carried
    # What step j wrote decays to the end of the chunk, as the state before it does.
    weighted = (mask[..., -1, :, None] * written).view(batch, groups, shared, steps, width)
    added = B.transpose(-1, -2) @ weighted.transpose(2, 3).flatten(3)
    whole = grow[..., -1].view(batch, groups, 1, shared, 1)
    kept = (h.reshape(batch, groups, -1, shared, width) * whole).flatten(3)
    return y.transpose(1, 2), kept + added


def _split(s: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns two numbers of `dtype` whose sum is the float64 `s`.

    A decay so strong that it exceeds the range of float32 resets the state: any number whose
    power of two is zero says the same.
    """
    s = s.clamp(min=-1e30)
    high = s.to(dtype)
    return high, (s - high.double()).to(dtype)
