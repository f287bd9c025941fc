"""Inputs and gradients for tests of the scans."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def selective_inputs(
    steps: int, n: int = 3, width: int = 5, batch: int = 2, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    return {
        "u": randn(batch, steps, width, seed=1, dtype=dtype),
        "delta": randn(batch, steps, width, seed=2, dtype=dtype),
        "A": -torch.arange(1, n + 1, dtype=dtype).repeat(width, 1),
        "B": randn(batch, steps, n, seed=3, dtype=dtype),
        "C": randn(batch, steps, n, seed=4, dtype=dtype),
        "D": randn(width, seed=5, dtype=dtype),
        "z": randn(batch, steps, width, seed=6, dtype=dtype),
        "delta_bias": randn(width, seed=7, dtype=dtype),
        "h0": randn(batch, width, n, seed=8, dtype=dtype),
    }


def outputs_and_gradients(
    op: Any, inputs: dict[str, Tensor], dtype: torch.dtype | None = None, **options: Any
) -> list[Tensor]:
    """Returns what `op` returns and the gradients of every input, for a loss linear in the results.

    `dtype` rounds the weights of the first result, for a reference of what has it in that dtype.
    """
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    results = op(**leaves, **options)
    results = results if isinstance(results, tuple) else (results,)
    dtypes = (dtype, *[None] * (len(results) - 1))
    loss = sum((r * weights(r, d)).sum() for r, d in zip(results, dtypes, strict=True))
    if loss.is_complex():
        loss = loss.real
    return [*results, *torch.autograd.grad(loss, list(leaves.values()))]


def weights(result: Tensor, dtype: torch.dtype | None) -> Tensor:
    wide = torch.complex128 if result.is_complex() else torch.float64
    line = torch.linspace(-1, 1, result.numel(), dtype=wide)
    rounded = line.to(dtype or result.dtype).to(result.dtype)
    return rounded.view_as(result).to(result.device)
