"""The work of scans against counting: the products that PyTorch runs, additions one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from seqdiag.ops.scan import invariant_scan, ssd_scan
from seqdiag.predict.scan_work import ScanShape


class Counted:
    """A number that counts what is done to it."""

    operations = 0

    def __add__(self, other: object) -> Counted:
        Counted.operations += 1
        return Counted()

    __mul__ = __rmul__ = __radd__ = __add__


def counted(run: object) -> int:
    Counted.operations = 0
    run()  # type: ignore[operator]
    return Counted.operations


def test_the_recurrences_one_operation_at_a_time() -> None:
    batch, steps, width, n, heads = 2, 3, 4, 5, 2
    one = Counted()

    def selective() -> None:
        for _ in range(batch * steps * width):
            written = one * one  # delta u
            y = 0
            for _ in range(n):
                h = (one * one) * one + written * one  # (delta A) h + w B; exp is apart
                y = y + h * one

    def ssd() -> None:
        for _ in range(batch * steps * heads):
            one * one  # dt A
            for _ in range(width // heads):
                written, y = one * one, 0
                for _ in range(n):
                    y = y + (one * one + written * one) * one

    def lti() -> None:
        for _ in range(batch * steps * width):
            y = 0
            for _ in range(n):
                y = y + (one * one + one * one) * one

    for kind, run in (("selective", selective), ("ssd", ssd), ("lti", lti)):
        shape = ScanShape(kind, batch, steps, width, n, heads)  # type: ignore[arg-type]
        assert shape.min_flops == counted(run), kind
        assert shape.flops("loop") == shape.min_flops


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70))
def test_the_parallel_prefix_round_by_round(steps: int) -> None:
    def prefix() -> None:
        a, b = [Counted()] * steps, [Counted()] * steps
        span = 1
        while span < steps:
            b = b[:span] + [b[t] + a[t] * b[t - span] for t in range(span, steps)]
            a = a[:span] + [a[t] * a[t - span] for t in range(span, steps)]
            span *= 2

    shape = ScanShape("linear-rnn", 1, steps, 1, 1, 1)
    assert shape.flops("associative") == shape.min_flops + counted(prefix)


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_the_products_of_the_dual_form(chunk: int) -> None:
    """Equal to PyTorch's own count of matrix products, but for the mask (one an element)."""
    batch, steps, heads, p, n = 2, 128, 4, 8, 16
    x, dt = torch.randn(batch, steps, heads, p), torch.rand(batch, steps, heads)
    B, C = torch.randn(batch, steps, 1, n), torch.randn(batch, steps, 1, n)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ssd_scan(x, dt, -torch.ones(heads), B, C, chunk=chunk)
    masked = 2 * batch * steps * chunk * heads
    shape = ScanShape("ssd", batch, steps, heads * p, n, heads)
    assert shape.flops("chunked", chunk) == counter.get_total_flops() + masked


def test_the_products_of_the_chunked_filter() -> None:
    batch, steps, width, n, chunk = 2, 128, 6, 5, 32
    args = [torch.randn(width, n) * 0.1 for _ in range(3)]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        invariant_scan(torch.randn(batch, steps, width), *args, chunk=chunk)
    carries = 2 * batch * (steps // chunk) * width * n
    shape = ScanShape("lti", batch, steps, width, n, 1)
    assert shape.flops("chunked", chunk) == counter.get_total_flops() + carries


def test_sizes() -> None:
    shape = ScanShape("selective", 2, 100, 8, 16, 4)
    assert shape.exps == 2 * 100 * 8 * 16
    assert shape.state_numbers == 2 * 8 * 16
    assert shape.min_bytes(4) == 4 * 2 * 100 * (3 * 8 + 2 * 16)
    assert shape.flops("chunked") == shape.min_flops
    assert shape.flops("fft") is None
    assert shape.flops("mambapy") is None
