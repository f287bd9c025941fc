"""What this machine reaches now: a large matrix product and a large copy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seqdiag.measure.timing import clock_for, time_interleaved


@dataclass(frozen=True, slots=True)
class Rates:
    """What was reached."""

    flops_per_s: float
    bytes_per_s: float
    """Read and written together."""


def calibrate(device: torch.device, dtype: torch.dtype, budget_s: float = 1.0) -> Rates:
    """Returns the rates of a device now: products in `dtype`, and a copy; medians."""
    on_gpu = device.type == "cuda"
    side = 8192 if on_gpu else 1024
    count = 2**28 if on_gpu else 2**25
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.randn(count // 4, device=device)
    target = torch.empty_like(source)
    calls = {
        "product": lambda: torch.mm(a, b, out=product),
        "copy": lambda: target.copy_(source),
    }
    timings = time_interleaved(calls, clock_for(device), budget_s=budget_s)
    for timing in timings.values():
        if timing.error is not None:
            raise timing.error
    flops = 2 * side**3 / (timings["product"].median_ms / 1e3)
    return Rates(flops, 2 * count / (timings["copy"].median_ms / 1e3))
