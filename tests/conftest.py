"""Fixtures: the command in this process, and in one of its own."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# As the command does, before torch is imported: spinning threads stall busy machines.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from seqdiag.cli.app import main
from seqdiag.ops import interpreter

# Triton reads this once, at its import: a test that imports it first must not spoil the others.
if not torch.cuda.is_available():
    os.environ.setdefault(interpreter.VARIABLE, "1")

# The processes of a run in parallel share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# A busy machine is no failure.
settings.register_profile("seqdiag", deadline=None)
settings.load_profile("seqdiag")

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, str]]:
        """Returns the CSV rows on stdout."""
        return list(csv.DictReader(io.StringIO(self.out)))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs the command line in this process."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def spawn() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m seqdiag` in a process of its own, in a plain environment."""

    def call(
        *arguments: object, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "COLUMNS")}
        command = [sys.executable, "-m", "seqdiag", *map(str, arguments)]
        settings: dict[str, object] = {"capture_output": True, "text": True, **options}
        return subprocess.run(command, check=False, env={**plain, **(env or {})}, **settings)

    return call


@pytest.fixture(scope="session")
def kernel_device() -> torch.device:
    """Where Triton kernels run: compiled on a GPU where there is one, else interpreted."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return torch.device("cuda")
    interpreter.enable()
    return torch.device("cpu")


@pytest.fixture
def strict_kernels(kernel_device: torch.device) -> Iterator[torch.device]:
    """`kernel_device`, and where it interprets, held to the rules of a GPU."""
    if kernel_device.type == "cuda":
        yield kernel_device
        return
    from seqdiag.ops.interpreter.strict import strict

    with strict():
        yield kernel_device
