"""Which device a measurement runs on."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiag.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str) -> tuple[torch.device, str]:
    """Returns the device for `auto`, `cpu`, `cuda` or `cuda:N`, and its name for people.

    Raises `UsageError` for another word and `UnavailableError` for a GPU that is not there.
    """
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", name) is None:
        raise UsageError(f"--device: {name!r} is not auto, cpu, cuda or cuda:N")
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu"), _cpu_name()
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise UnavailableError(
            f"--device: {name} is not there: PyTorch sees {count} CUDA devices",
            hint="--device cpu",
        )
    return device, torch.cuda.get_device_name(device)


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()
