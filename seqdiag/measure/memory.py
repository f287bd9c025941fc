"""The most bytes a call holds beyond what was there before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

_EVENT = "[memory]"


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """Returns the peak of PyTorch's allocator during a call, less what was allocated before.

    On the CPU it is summed over the allocator's events, on a GPU it is the allocator's own count;
    memory that a library takes past the allocator is not seen. The result of the call counts.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return _cpu_peak(call)


def _cpu_peak(call: Callable[[], Any]) -> int:
    # The profiler's library writes to stderr each time it starts, unless told before its first use.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.autograd.profiler import profile

    with profile(profile_memory=True, use_kineto=True) as profiled:
        result = call()
    del result
    events = [e for e in profiled.kineto_results.events() if e.name() == _EVENT]
    held = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest
