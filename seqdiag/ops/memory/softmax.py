"""The memory that keeps every pair: a softmax over keys, as in a modern Hopfield network."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_read(q: Tensor, k: Tensor, v: Tensor, beta: float) -> Tensor:
    """Returns softmax(beta q k^T) v for q (..., Q, K), k (..., N, K), v (..., N, V).

    beta is the inverse temperature; 1/sqrt(K) is attention (Ramsauer 2021, arXiv 2008.02217).
    """
    return torch.softmax(beta * (q @ k.transpose(-1, -2)), dim=-1) @ v
