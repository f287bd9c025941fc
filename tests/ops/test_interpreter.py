"""The mended interpreter computes bfloat16, and the strict one finds planted faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from seqdiag.ops.interpreter.strict import strict  # noqa: E402

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
pytestmark = interpreted


@pytest.fixture(autouse=True)
def _enabled(kernel_device: torch.device) -> Iterator[None]:
    yield


@triton.jit
def arithmetic(x, y, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a + b)
    tl.store(out + SIZE + at, a * b)
    tl.store(out + 2 * SIZE + at, a * 1.5 - b)
    tl.store(out + 3 * SIZE + at, tl.where(a > b, a, b))
    tl.store(out + 4 * SIZE + at, tl.abs(a) + tl.maximum(a, b))


def test_bfloat16_arithmetic_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, generator=generator).bfloat16() for _ in range(2))
    out = torch.full((5, 64), torch.nan, dtype=torch.bfloat16)
    arithmetic[(1,)](x, y, out, SIZE=64)
    expected = [x + y, x * y, x * 1.5 - y, torch.maximum(x, y), x.abs() + torch.maximum(x, y)]
    assert torch.equal(out, torch.stack(expected))


@triton.jit
def reduced(x, out, ROWS: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + tl.arange(0, ROWS), tl.sum(tl.load(x + at), axis=1))


def test_bfloat16_sums() -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.full((4,), torch.nan)
    reduced[(1,)](x, out, ROWS=4, SIZE=32)
    torch.testing.assert_close(out, x.float().sum(1), rtol=1e-2, atol=1e-2)


@triton.jit
def affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def scanned(a, b, out, TIME: tl.constexpr, WIDTH: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, TIME)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    _, state = tl.associative_scan((tl.load(a + at), tl.load(b + at)), 0, affine, reverse=REVERSE)
    tl.store(out + at, state)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_walk_the_axis(reverse: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(16, 8, generator=generator) for _ in range(2))
    out = torch.full((16, 8), torch.nan)
    scanned[(1,)](a, b, out, TIME=16, WIDTH=8, REVERSE=reverse)
    state = torch.zeros(8)
    for t in reversed(range(16)) if reverse else range(16):
        state = a[t] * state + b[t]
        torch.testing.assert_close(out[t], state)


@triton.jit
def copied(x, out, n, BLOCK: tl.constexpr, PAST: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n + PAST), mask=at < n)


@triton.jit
def summed_with_masked_lanes(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < n)))


@triton.jit
def raced(out):
    tl.store(out + tl.arange(0, 4), tl.program_id(0).to(tl.float32))


@triton.jit
def chained(x, n):
    """Each program needs the one before it, which no GPU promises."""
    pid = tl.program_id(0)
    before = tl.load(x + pid)
    tl.store(x + pid + 1, before + 1.0)


def test_strict_finds_what_a_gpu_would_punish() -> None:
    x, out = torch.randn(100), torch.zeros(100)
    with strict():
        copied[(4,)](x, out, 100, BLOCK=32, PAST=0)
        assert torch.equal(x, out)
        with pytest.raises(Exception, match="loads 3 values outside its arguments, the first 0"):
            copied[(4,)](x, out, 100, BLOCK=32, PAST=3)
        with pytest.raises(Exception, match="writes what program"):
            raced[(2,)](torch.zeros(4))
        total = torch.zeros(1)
        summed_with_masked_lanes[(1,)](x, total, 10, BLOCK=16)
        assert total.isnan().all()
        counted = torch.zeros(17)
        chained[(16,)](counted, 16)
        assert not torch.equal(counted, torch.arange(17.0))
    counted = torch.zeros(17)
    chained[(16,)](counted, 16)
    assert torch.equal(counted, torch.arange(17.0))
