"""One CPU thread for chains of small operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


@contextlib.contextmanager
def one_thread(x: Tensor) -> Iterator[None]:
    """Runs on one CPU thread: chains of small operations lose more at barriers than they gain."""
    if x.device.type != "cpu" or torch.get_num_threads() == 1:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
