"""The exact result of a problem, or of sampled queries of it, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.diagnostics.attn_bench.problem import Problem
from seqdiag.predict.work import AttentionShape

FULL_SCORES = 2**23
"""Up to as many scores the whole problem is computed; beyond, sampled queries on all keys."""
_SAMPLES = 64
_HELD_SCORES = 2**24
_EDGES = (0, 1, 63, 64, 127, 128, 129, 255, 256)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Attention and its gradients for some queries; dk and dv as if d_out were 0 elsewhere."""

    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor

    @property
    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.dq, self.dk, self.dv


def sampled_queries(shape: AttentionShape, seed: int) -> Tensor:
    """Returns which queries are checked: all, or the ends, block edges and some at random."""
    scores = shape.batch * shape.heads * shape.q_len * shape.kv_len
    if scores <= FULL_SCORES:
        return torch.arange(shape.q_len)
    fixed = {at for edge in _EDGES for at in (edge, shape.q_len - 1 - edge)}
    fixed = {at for at in fixed if 0 <= at < shape.q_len}
    drawn = torch.randperm(shape.q_len, generator=torch.Generator().manual_seed(seed))
    rows = list(dict.fromkeys([*sorted(fixed), *drawn[:_SAMPLES].tolist()]))
    return torch.tensor(sorted(rows[:_SAMPLES]))


def compute(
    problem: Problem, inputs: tuple[Tensor, ...], rows: Tensor, dtype: torch.dtype, backward: bool
) -> Outputs:
    """Returns attention of the queries `rows` as written down, computed in `dtype`.

    In float64 it is what results are held against, in the problem's own dtype the naive run whose
    error is the measure.
    """
    q, k, v, d_out = inputs
    rows = rows.to(q.device)
    seen = _seen(problem.shape, rows)
    group = problem.shape.heads // problem.shape.kv_heads
    grouped = (problem.shape.batch, problem.shape.kv_heads, group, len(rows), -1)
    q, d_out = (x[:, :, rows].reshape(grouped) for x in (q, d_out))
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=dtype, device=q.device)
    dq = torch.empty(q.shape, dtype=dtype, device=q.device)
    dk, dv = (torch.empty(x.shape, dtype=dtype, device=q.device) for x in (k, v))
    for at in _slices(problem.shape, len(rows)):
        leaves = tuple(x[at].to(dtype).requires_grad_(backward) for x in (q, k, v))
        out[at], found = _one(leaves, d_out[at].to(dtype), seen, problem.scale, backward)
        if backward:
            dq[at], dk[at], dv[at] = found
    return Outputs(out.flatten(1, 2), dq.flatten(1, 2), dk, dv)


def _slices(shape: AttentionShape, rows: int) -> Iterator[tuple[slice, slice]]:
    """Yields (batch, key head) parts that keep the scores held at once bounded."""
    group = shape.heads // shape.kv_heads
    heads = max(1, _HELD_SCORES // (group * rows * shape.kv_len))
    for batch in range(shape.batch):
        for head in range(0, shape.kv_heads, heads):
            yield slice(batch, batch + 1), slice(head, head + heads)


def _one(
    leaves: tuple[Tensor, ...], d_out: Tensor, seen: Tensor, scale: float, backward: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """q and d_out are (B, Hkv, G, R, D), k and v (B, Hkv, Lk, D)."""
    q, k, v = leaves
    with torch.set_grad_enabled(backward):
        scores = (q @ k[:, :, None].transpose(-1, -2)) * scale
        weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
        out = weights.masked_fill(~seen, 0.0) @ v[:, :, None]
        found = torch.autograd.grad(out, leaves, d_out) if backward else ()
    return out.detach(), found


def _seen(shape: AttentionShape, rows: Tensor) -> Tensor:
    """Returns which keys each query sees, from the definition, (R, Lk)."""
    ranges = torch.tensor([shape.keys_of(int(row)) for row in rows.cpu()], device=rows.device)
    keys = torch.arange(shape.kv_len, device=rows.device)
    return (keys >= ranges[:, :1]) & (keys < ranges[:, 1:])
