"""The definition, with the whole score matrix in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def visible(
    q_len: int, kv_len: int, causal: bool, window: int | None, device: torch.device
) -> Tensor:
    """Returns which keys each query sees, (Lq, Lk) booleans."""
    queries = torch.arange(kv_len - q_len, kv_len, device=device)[:, None]
    keys = torch.arange(kv_len, device=device)[None, :]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
    if causal:
        seen &= keys <= queries
    if window is not None:
        seen &= keys > queries - window
    return seen


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """Returns (B, Hkv, L, D) with each head repeated for its group of query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def naive(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention in the dtype of the inputs, as written down."""
    k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
    seen = visible(q.shape[2], k.shape[2], causal, window, q.device)
    scores = (q @ k.transpose(-1, -2)) * scale
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
    # A row without a visible key is 0 / 0 in the softmax: it attends to nothing.
    return weights.masked_fill(~seen, 0.0) @ v


def reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention computed in float64, in the dtype of the inputs."""
    out = naive(q.double(), k.double(), v.double(), causal=causal, window=window, scale=scale)
    return out.to(q.dtype)
