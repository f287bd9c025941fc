"""Allocating tensors and counting their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from seqdiag.units import format_bytes

CPU_LIMIT = 2 * 1024**3
_TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Allocated:
    """The bytes of the storages, or why there are none."""

    bytes: int | None
    status: Literal["ok", "skipped", "oom"] = "ok"
    note: str = ""


def allocate(
    tensors: Sequence[tuple[tuple[int, ...], str]], device: torch.device, limit: int | None
) -> Allocated:
    """Returns the bytes of the storages of `tensors`, given as (shape, dtype name).

    Every tensor is allocated and zeroed at once, as an engine would hold them. Above `limit` bytes
    (default 2 GiB on the CPU) nothing is allocated.
    """
    wanted = [(shape, _TORCH[dtype]) for shape, dtype in tensors]
    limit = CPU_LIMIT if limit is None and device.type == "cpu" else limit
    need = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in wanted)
    if limit is not None and need > limit:
        note = f"not measured: {format_bytes(need)} is above --limit {format_bytes(limit)}"
        return Allocated(None, "skipped", note)
    held: list[torch.Tensor] = []
    try:
        for shape, dtype in wanted:
            held.append(torch.zeros(shape, dtype=dtype, device=device))
    except RuntimeError as error:  # torch.OutOfMemoryError on a GPU, a plain one on the CPU
        held.clear()
        reason = str(error).splitlines()[0]
        return Allocated(None, "oom", f"cannot allocate {format_bytes(need)}: {reason}")
    return Allocated(sum(tensor.untyped_storage().nbytes() for tensor in held))


def available_bytes(device: torch.device) -> int | None:
    """Returns the memory that is free on a device, None where the system does not say."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + held
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
