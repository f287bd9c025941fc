"""The compiled attention kernels at sizes that only a GPU reaches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seqdiag.ops.attention import attention, flash
from seqdiag.ops.attention.reference import naive

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MASKS = ((True, None), (False, None), (True, 300))
BOUNDS = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("head_dim", (64, 80, 128, 256))
def test_shipped_tiles(head_dim: int, mask: tuple[bool, int | None], dtype: torch.dtype) -> None:
    """Every tile of this card against float64, with poisoned outputs, three times over."""
    causal, window = mask
    options: dict[str, Any] = {"causal": causal, "window": window, "scale": head_dim**-0.5}
    for seed, q_len in ((0, 1025), (1, 700), (2, 1)):
        generator = torch.Generator("cuda").manual_seed(seed)
        sizes = ((1, 4, q_len, head_dim), (1, 2, 1025, head_dim), (1, 2, 1025, head_dim))
        q, k, v = (torch.randn(s, generator=generator, device="cuda").to(dtype) for s in sizes)
        d_out = torch.randn(q.shape, generator=generator, device="cuda").to(dtype)
        exact_leaves = [x.double().requires_grad_() for x in (q, k, v)]
        exact = naive(*exact_leaves, **options)
        expected = torch.autograd.grad(exact, exact_leaves, d_out.double())
        torch.use_deterministic_algorithms(True, warn_only=True)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = flash.flash(*leaves, **options)
        grads = torch.autograd.grad(out, leaves, d_out)
        torch.use_deterministic_algorithms(False)
        for found, wanted in zip((out, *grads), (exact, *expected), strict=True):
            error = (found.double() - wanted).norm() / wanted.norm()
            assert float(error) < BOUNDS[dtype]


def test_offsets_beyond_32_bits() -> None:
    """Rows of a fused projection whose elements lie more than 2^31 apart."""
    length, heads, head_dim = 99_866, 56, 128
    fused = torch.randn(length, 3 * heads, head_dim, device="cuda", dtype=torch.bfloat16)
    assert fused.numel() > 2**31
    q, k, v = (x.transpose(0, 1)[None] for x in fused.split(heads, dim=1))
    out = attention(q[:, -1:], k[:, -1:], v[:, -1:], window=512, impl="flash-triton")
    last = attention(
        q[:, -1:, -8:].double(), k[:, -1:, -520:].double(), v[:, -1:, -520:].double(), window=512,
        impl="naive",
    )  # fmt: skip
    assert float((out[:, :, -8:].double() - last).norm() / last.norm()) < BOUNDS[torch.bfloat16]


def test_the_backward_pass_repeats_bit_by_bit() -> None:
    q, k, v = (torch.randn(1, 8, 1024, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    d_out = torch.randn_like(q)

    def once() -> tuple[torch.Tensor, ...]:
        out = attention(*leaves, impl="flash-triton")
        return torch.autograd.grad(out, leaves, d_out)

    first = once()
    for _ in range(29):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
