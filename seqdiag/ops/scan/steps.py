"""One step of each recurrence in plain PyTorch: what a model does for a token that it generates.

Each takes the operands of its scan without the time axis, and the state before; it returns y and
the state after. Stepping over a sequence in float64 is the definition that everything is held to.
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear_step(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = a_t h_{t-1} + b_t; y is the state. a, b, h (B, D)."""
    h = a * h + b
    return h, h


def invariant_step(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """u (B, D); a, b, c (D, N); h (B, D, N)."""
    h = a * h + b * u.unsqueeze(-1)
    y = (c * h).sum(-1)
    return (y.real if y.is_complex() else y), h


def selective_step(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """u, delta (B, D), the step size itself; A (D, N); B, C (B, N); h (B, D, N)."""
    written = (delta * u).unsqueeze(-1) * B.unsqueeze(1)
    h = torch.addcmul(written, torch.exp(delta.unsqueeze(-1) * A), h)
    return torch.bmm(h, C.unsqueeze(-1)).squeeze(-1), h


def ssd_step(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """x (B, H, P); dt (B, H); A (H,); B, C (B, G, N); h (B, H, P, N)."""
    shared = x.shape[1] // B.shape[1]
    B, C = (t.repeat_interleave(shared, dim=1) if shared > 1 else t for t in (B, C))
    written = (dt.unsqueeze(-1) * x).unsqueeze(-1) * B.unsqueeze(-2)
    h = torch.addcmul(written, torch.exp(dt * A)[..., None, None], h)
    return (h @ C.unsqueeze(-1)).squeeze(-1), h
