"""What this machine reaches now: a large matrix product and a large copy."""

from __future__ import annotations

import torch

from seqdiag.measure.timing import clock_for, time_interleaved
from seqdiag.predict.accelerators import Peak


def calibrate(device: torch.device, dtype: torch.dtype, budget_s: float = 1.0) -> Peak:
    """Returns the measured rates of a device for `dtype`, as medians, in both kinds of FLOPs."""
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
    return Peak(flops, flops, 2 * count / (timings["copy"].median_ms / 1e3))
