"""A progress bar on stderr, for people at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO

_WORTH_SHOWING = 64
"""Fewer rows than this come in one go."""


def tracked(rows: Iterator[Any], total: int, name: str, quiet: bool) -> Iterator[Any]:
    """Yields the rows, showing how many of `total` have come."""
    # A closed stderr is None.
    stderr: TextIO | None = sys.stderr
    if quiet or total < _WORTH_SHOWING or stderr is None or not stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(rows, description=name, total=total, console=console, transient=True)
