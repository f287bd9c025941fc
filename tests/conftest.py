"""Fixtures: the command in this process, and in one of its own."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from seqdiag.cli.app import main

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
