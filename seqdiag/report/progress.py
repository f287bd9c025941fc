"""A progress bar on stderr, for people at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO

from seqdiag.report.result import Live

_WORTH_SHOWING = 64
"""Fewer rows than this come in one go."""


def tracked(
    rows: Iterator[Any], total: int, name: str, quiet: bool, live: Live | None = None
) -> Iterator[Any]:
    """Yields the rows, showing how many of `total` have come, and what `live` says of the next."""
    # A closed stderr is None.
    stderr: TextIO | None = sys.stderr
    few = total < _WORTH_SHOWING and live is None
    if quiet or few or stderr is None or not stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task
    from rich.text import Text

    class Now(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if live is None else live.text)

    columns = (*Progress.get_default_columns(), Now())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(rows, total=total, description=name)
