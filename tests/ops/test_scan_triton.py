"""The Triton scans against the float64 loop, in the strict interpreter or on a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from scans import outputs_and_gradients, randn, selective_inputs
from torch import Tensor

from seqdiag.ops.scan import selective_scan, ssd_scan

pytest.importorskip("triton")

from seqdiag.ops.scan import selective_triton, ssd_triton

BOUND = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""||result - exact|| / ||exact||: one rounding of the output alone is 2e-4 and 1.7e-3 in 16 bits.
The gradients that stay in float32 are held to the bound of the dtype all the same."""
CANCELS = 4.0
"""The gradient of a head's decay is one number, a sum over all steps and channels whose terms
cancel; the rounding of the states in matrix products does not."""
DTYPES = list(BOUND)
KEPT = {"A", "D", "delta_bias", "h0", "dt"}
"""What stays in float32, as in a model in half precision."""


def as_dtype(inputs: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> Any:
    """Returns the inputs in `dtype`, and the same numbers in float64 for the reference."""
    ours = {n: x.to(torch.float32 if n in KEPT else dtype) for n, x in inputs.items()}
    return {n: x.to(device) for n, x in ours.items()}, {n: x.double() for n, x in ours.items()}


def assert_close(
    ours: list[Tensor], exact: list[Tensor], dtype: torch.dtype, cancels: int | None = None
) -> None:
    for index, (a, b) in enumerate(zip(ours, exact, strict=True)):
        assert torch.isfinite(a).all(), index
        error = (a.cpu().double() - b).norm() / b.norm()
        bound = BOUND[dtype] * (CANCELS if index == cancels else 1.0)
        assert error <= bound, (index, float(error))


def check_selective(
    dtype: torch.dtype,
    device: torch.device,
    steps: int,
    n: int,
    width: int,
    options: tuple[str, ...] = ("D", "z", "delta_bias"),
    batch: int = 2,
) -> None:
    inputs = selective_inputs(steps, n=n, width=width, batch=batch)
    for name in {"D", "z", "delta_bias"} - set(options):
        del inputs[name]
    ours, exact = as_dtype(inputs, dtype, device)
    results = outputs_and_gradients(selective_scan, ours, delta_softplus=True, impl="triton")
    expected = outputs_and_gradients(
        selective_scan, exact, dtype, delta_softplus=True, impl="reference"
    )
    assert_close(results, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("steps", "n", "width"), [(1, 1, 1), (23, 3, 5), (66, 16, 33), (9, 96, 7)])
def test_selective(
    dtype: torch.dtype, steps: int, n: int, width: int, strict_kernels: torch.device
) -> None:
    check_selective(dtype, strict_kernels, steps, n, width, batch=1 + (steps < 10))


@pytest.mark.parametrize("options", [(), ("z",), ("D", "delta_bias")])
def test_selective_with_less(options: tuple[str, ...], strict_kernels: torch.device) -> None:
    check_selective(torch.float32, strict_kernels, 11, 3, 5, options)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("steps", "n", "width"),
    list(itertools.product([1, 7, 63, 64, 65, 127], [1, 3, 16, 96], [1, 33])),
)
def test_selective_grid(
    dtype: torch.dtype, steps: int, n: int, width: int, strict_kernels: torch.device
) -> None:
    check_selective(dtype, strict_kernels, steps, n, width)


def test_selective_split_over_time(
    strict_kernels: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few channels: spans of time run apart, and are joined, forward and backward."""
    assert selective_triton.spans_for(1, 32, 4096, 32) == 16
    assert selective_triton.spans_for(8, 4096, 4096, 32) == 1
    monkeypatch.setattr(selective_triton, "spans_for", lambda *_: 2)
    check_selective(torch.float32, strict_kernels, 101, 3, 5, batch=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_associative(dtype: torch.dtype, strict_kernels: torch.device) -> None:
    """A second algorithm for the same function; forward only, and it says so."""
    ours, exact = as_dtype(selective_inputs(70, n=3, width=5), dtype, strict_kernels)
    options = {"delta_softplus": True}
    with torch.no_grad():
        results = selective_scan(**ours, **options, impl="triton-associative")
    assert_close(list(results), list(selective_scan(**exact, **options, impl="reference")), dtype)
    ours["u"].requires_grad_()
    with pytest.raises(ValueError, match="forward only"):
        selective_scan(**ours, **options, impl="triton-associative")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 16])
def test_step(n: int, dtype: torch.dtype, strict_kernels: torch.device) -> None:
    """Steps, one by one and in place, are the scan."""
    ours, exact = as_dtype(selective_inputs(9, n=n, width=40), dtype, strict_kernels)
    y, last = selective_scan(**exact, delta_softplus=True, impl="reference")
    state, outputs = ours["h0"].clone(), []
    for t in range(9):
        u, delta, B, C, z = (ours[name][:, t] for name in ("u", "delta", "B", "C", "z"))
        more = (ours["D"], z, ours["delta_bias"], True, state)
        outputs.append(selective_triton.step(u, delta, ours["A"], B, C, *more))
    assert_close([torch.stack(outputs, 1), state], [y, last], dtype)


def ssd_inputs(steps: int, groups: int, heads: int, width: int, n: int, batch: int) -> Any:
    return {
        "x": randn(batch, steps, heads, width, seed=1),
        "dt": torch.nn.functional.softplus(randn(batch, steps, heads, seed=2)),
        "A": -torch.tensor([0.1, 1.0, 4.0, 16.0], dtype=torch.float64)[:heads],
        "B": randn(batch, steps, groups, n, seed=3),
        "C": randn(batch, steps, groups, n, seed=4),
        "D": randn(heads, seed=5),
        "h0": randn(batch, heads, width, n, seed=6),
    }


def check_ssd(
    dtype: torch.dtype,
    device: torch.device,
    shape: tuple[int, int, int, int, int],
    schedule: ssd_triton.Schedule,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int = 16,
    batch: int = 1,
) -> None:
    ours, exact = as_dtype(ssd_inputs(*shape, batch=batch), dtype, device)
    chunked = ssd_triton.chunked

    def scheduled(*args: Any, chunk: int) -> Any:
        return chunked(*args, chunk, schedule)

    monkeypatch.setattr(ssd_triton, "chunked", scheduled)
    results = outputs_and_gradients(ssd_scan, ours, impl="triton", chunk=chunk)
    expected = outputs_and_gradients(ssd_scan, exact, dtype, impl="reference")
    assert_close(results, expected, dtype, cancels=2 + list(ours).index("A"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule", ["fused", "chunks"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (37, 1, 2, 5, 3), (50, 2, 4, 16, 16)])
def test_ssd(
    shape: Any,
    schedule: Any,
    dtype: torch.dtype,
    strict_kernels: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_ssd(dtype, strict_kernels, shape, schedule, monkeypatch)


def test_ssd_wide(strict_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that does not fit beside a chunk: blocks of channels, chunk by chunk."""
    shape = (65, 1, 2, 80, 96)
    check_ssd(torch.bfloat16, strict_kernels, shape, "chunks", monkeypatch, chunk=64)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule", ["fused", "chunks"])
@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize(
    ("steps", "groups", "size"),
    list(itertools.product([1, 63, 64, 65, 127], [1, 2, 4], [(5, 3), (64, 16), (24, 96)])),
)
def test_ssd_grid(
    steps: int,
    groups: int,
    size: tuple[int, int],
    chunk: int,
    schedule: Any,
    dtype: torch.dtype,
    strict_kernels: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = (steps, groups, 4, *size)
    check_ssd(dtype, strict_kernels, shape, schedule, monkeypatch, chunk, batch=2)


def test_ssd_strong_decay_has_finite_gradients(strict_kernels: torch.device) -> None:
    """exp of the future half of a chunk would overflow: it is masked before (chunk 64, A -16)."""
    inputs = ssd_inputs(70, 1, 2, 8, 8, batch=1)
    inputs["A"] = torch.full((2,), -16.0, dtype=torch.float64)
    inputs["dt"] = torch.nn.functional.softplus(randn(1, 70, 2, seed=2) + 3)
    ours, exact = as_dtype(inputs, torch.bfloat16, strict_kernels)
    results = outputs_and_gradients(ssd_scan, ours, impl="triton", chunk=64)
    expected = outputs_and_gradients(ssd_scan, exact, torch.bfloat16, impl="reference")
    assert all(torch.isfinite(r).all() for r in results)
    assert_close(results[:2], expected[:2], torch.bfloat16)


def test_what_the_kernels_refuse(strict_kernels: torch.device) -> None:
    inputs = {n: x.to(strict_kernels) for n, x in selective_inputs(4, n=3, width=2).items()}
    with pytest.raises(ValueError, match="the kernels compute in float32, not float64"):
        selective_scan(**inputs, impl="triton")
    wide = {n: x.float().to(strict_kernels) for n, x in selective_inputs(2, n=129).items()}
    with pytest.raises(ValueError, match="up to 128 states"):
        selective_scan(**wide, impl="triton")
    ssd = {n: x.float().to(strict_kernels) for n, x in ssd_inputs(4, 1, 2, 3, 3, 1).items()}
    with pytest.raises(ValueError, match="a chunk of 16, 32, 64, 128"):
        ssd_scan(**ssd, impl="triton", chunk=48)
