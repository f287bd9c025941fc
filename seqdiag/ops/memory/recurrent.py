"""The memory one step at a time: the definition, and the form that decodes."""

from __future__ import annotations

import torch
from torch import Tensor


def memory_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    log_g: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the read (B, H, V) after one write, and the state (B, H, K, V).

    q, k (B, H, K); v (B, H, V); log_g (B, H) or (B, H, K); beta (B, H) for the delta rule, None to
    write without erasing.
    """
    if log_g is not None:
        decay = torch.exp(log_g)
        state = state * (decay[..., None, None] if decay.ndim == 2 else decay.unsqueeze(-1))
    if beta is not None:
        held = (k.unsqueeze(-2) @ state).squeeze(-2)
        v = beta.unsqueeze(-1) * (v - held)
    state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
    return (q.unsqueeze(-2) @ state).squeeze(-2), state


def memory_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    log_g: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns all reads (B, H, T, V) and the last state, step by step."""
    reads = []
    for t in range(q.shape[2]):
        g_t = None if log_g is None else log_g[:, :, t]
        beta_t = None if beta is None else beta[:, :, t]
        read, state = memory_step(q[:, :, t], k[:, :, t], v[:, :, t], state, g_t, beta_t)
        reads.append(read)
    return torch.stack(reads, dim=2), state
