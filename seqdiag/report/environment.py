"""The environment block: versions, device, threads, dtype, seed; never host, user or paths."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from seqdiag import __version__

_PACKAGES = ("torch", "triton", "numpy", "pandas")


def environment(device: str, dtype: str, seed: int | None) -> dict[str, Any]:
    """Returns what a reader needs to compare two results."""
    torch = sys.modules.get("torch")  # only if the measurement used it: importing it costs seconds
    return {
        "seqdiag": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "device": device,
        "threads": torch.get_num_threads() if torch is not None else None,
        "dtype": dtype or None,
        "seed": seed,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
