"""The memory in chunks: matrix products inside a chunk, a carried state between chunks."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 64
_GATED_CHUNK = 16
"""A gate for each key entry needs a (Q, Q, K) tensor of decays, so its chunks are short."""


def additive(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, log_g: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns reads (B, H, T, V) and the last state (B, H, K, V) of writes that erase nothing.

    log_g is None, (B, H, T) or (B, H, T, K). y_i = sum_{j <= i} (q_i . exp(s_i - s_j) k_j) v_j with
    s the cumulative log decay; only differences of what came before are exponentiated, so nothing
    overflows (GLA, arXiv 2312.06635, section 4).
    """
    by_entry = log_g is not None and log_g.ndim == 4
    size = _GATED_CHUNK if by_entry else _CHUNK
    reads = []
    for q_c, k_c, v_c, g_c in _chunks(size, q, k, v, log_g):
        if g_c is None:
            scores = (q_c @ k_c.transpose(-1, -2)).tril()
            reads.append(scores @ v_c + q_c @ state)
            state = state + k_c.transpose(-1, -2) @ v_c
            continue
        s = torch.cumsum(_finite(g_c), dim=2)
        s = s if by_entry else s.unsqueeze(-1)
        if by_entry:
            scores = torch.einsum("bhik,bhjk,bhijk->bhij", q_c, k_c, _decays(s))
        else:
            scores = (q_c @ k_c.transpose(-1, -2)) * _decays(s).squeeze(-1)
        reads.append(scores @ v_c + (q_c * torch.exp(s)) @ state)
        to_end = torch.exp(s[:, :, -1:] - s)
        state = state * torch.exp(s[:, :, -1]).unsqueeze(-1)
        state = state + (k_c * to_end).transpose(-1, -2) @ v_c
    return torch.cat(reads, dim=2), state


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor,
    log_g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns reads and the last state of the (gated) delta rule.

    beta (B, H, T), log_g None or (B, H, T). What each step really writes, u, solves a unit lower
    triangular system: u_i + beta_i sum_{j < i} d_ij (k_i . k_j) u_j = beta_i (v_i - d_i k_i S),
    with d the decay between the steps (Gated DeltaNet, arXiv 2412.06464, section 3.3).
    """
    reads = []
    for q_c, k_c, v_c, b_c, g_c in _chunks(_CHUNK, q, k, v, beta, log_g):
        rates = torch.zeros_like(b_c) if g_c is None else _finite(g_c)
        s = torch.cumsum(rates, dim=2).unsqueeze(-1)
        decays = _decays(s).squeeze(-1)
        b = b_c.unsqueeze(-1)
        overlap = (b * (k_c @ k_c.transpose(-1, -2)) * decays).tril(-1)
        target = b * (v_c - (k_c * torch.exp(s)) @ state)
        eye = torch.eye(overlap.shape[-1], dtype=q.dtype, device=q.device)
        u = torch.linalg.solve_triangular(overlap + eye, target, upper=False, unitriangular=True)
        scores = (q_c @ k_c.transpose(-1, -2)) * decays
        reads.append(scores @ u + (q_c * torch.exp(s)) @ state)
        to_end = torch.exp(s[:, :, -1:] - s)
        state = state * torch.exp(s[:, :, -1]).unsqueeze(-1)
        state = state + (k_c * to_end).transpose(-1, -2) @ u
    return torch.cat(reads, dim=2), state


def _decays(s: Tensor) -> Tensor:
    """Returns exp(s_i - s_j) for j <= i and 0 after, (B, H, Q, Q, K), masked before exp."""
    steps = s.shape[2]
    future = torch.ones(steps, steps, dtype=torch.bool, device=s.device).triu(1).unsqueeze(-1)
    differences = s.unsqueeze(3) - s.unsqueeze(2)
    return torch.exp(differences.masked_fill(future, -torch.inf))


def _finite(log_g: Tensor) -> Tensor:
    """Returns log decays whose sums stay finite: below -1e4 a state is gone in any dtype."""
    return log_g.clamp(min=-1e4)


def _chunks(size: int, *tensors: Tensor | None) -> list[tuple[Tensor, ...]]:
    """Returns the tensors split over time, None kept as it is."""
    present = next(t for t in tensors if t is not None)
    count = -(-present.shape[2] // size)
    split = [[None] * count if t is None else torch.split(t, size, dim=2) for t in tensors]
    return list(zip(*split, strict=True))
