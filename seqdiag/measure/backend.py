"""Which of PyTorch's attention backends a call really took."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_PREFIX = "aten::_scaled_dot_product_"
_NAMES = {
    "flash_attention": "flash",
    "efficient_attention": "efficient",
    "cudnn_attention": "cudnn",
    "attention_math": "math",
}


def sdpa_backend(call: Callable[[], Any]) -> str | None:
    """Returns `flash`, `efficient`, `cudnn` or `math`, as the profiler saw it; None if none ran."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.autograd.profiler import profile

    with profile(use_kineto=True) as profiled:
        call()
    for event in profiled.kineto_results.events():
        name = event.name()
        if name.startswith(_PREFIX):
            rest = name.removeprefix(_PREFIX)
            return next((short for long, short in _NAMES.items() if rest.startswith(long)), rest)
    return None
