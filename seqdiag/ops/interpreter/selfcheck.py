"""Proves that the mended interpreter computes bfloat16, on two tiny kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seqdiag.errors import UnavailableError

_SIZE = 16


@triton.jit
def _round_trip(source, target, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(target + at, tl.load(source + at).to(tl.bfloat16))


@triton.jit
def _product(a, b, c, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tile = at[:, None] * SIZE + at[None, :]
    left = tl.load(a + tile) * 0.5
    tl.store(c + tile, tl.dot(left, tl.load(b + tile), input_precision="ieee"))


def check() -> None:
    """Raises `UnavailableError` if a round trip or a matrix product is not what a GPU gives."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(_SIZE, generator=generator)
    target = torch.full((_SIZE,), torch.nan, dtype=torch.bfloat16)
    _round_trip[(1,)](source, target, SIZE=_SIZE)
    a, b = (torch.randn(_SIZE, _SIZE, generator=generator).bfloat16() for _ in range(2))
    c = torch.full((_SIZE, _SIZE), torch.nan)
    _product[(1,)](a, b, c, SIZE=_SIZE)
    exact = (a.double() * 0.5) @ b.double()
    if not torch.equal(target, source.bfloat16()) or (c.double() - exact).norm() > 1e-5:
        raise UnavailableError(
            f"the interpreter of Triton {triton.__version__} gives wrong bfloat16 here",
            hint="--dtype float32 with another version of triton, or a GPU",
        )
