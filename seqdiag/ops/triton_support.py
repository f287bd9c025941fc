"""Whether Triton kernels can run here, and on which device they are launched."""

from __future__ import annotations

import contextlib
import importlib.util

import torch

from seqdiag.ops import interpreter


def why_not_triton(dtype: torch.dtype, device: torch.device) -> str | None:
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels compute in float32, not {str(dtype).removeprefix('torch.')}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" and not interpreter.is_enabled():
        return "needs a CUDA device"
    return None


def launched_on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Makes `device` the current one: Triton launches there, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
