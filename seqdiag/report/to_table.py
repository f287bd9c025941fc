"""The table people read: scaled units, four digits, nothing cut.

Columns without a value in any row are left out. On a terminal, those that hold one value throughout
move to a line above the table when it would not fit, and long notes fold. In a pipe the table has
its natural width and no colour.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from seqdiag.report.document import Document
from seqdiag.report.schema import Column, Record, Value
from seqdiag.units import format_bytes, format_tokens

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

READABLE_ROWS = 40
"""A table of more rows than this shows the headline rows only."""
_NOTE_WIDTH = 48


class TableWriter:
    """Writes everything at the end: widths need all the rows."""

    shows_findings = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, columns: Sequence[Column]) -> None:
        pass

    def row(self, record: Record) -> None:
        pass

    def end(self, document: Document) -> None:
        terminal = is_terminal(self._stream)
        console = make_console(self._stream, terminal)
        records, left_out = _readable(document)
        columns = [column for column in document.columns if _is_used(column, records)]
        table = _build(columns, records, terminal)
        if terminal and _natural_width(console, table) > console.width:
            constant = {c.name: records[0][c.name] for c in columns if _is_constant(c, records)}
            columns = [column for column in columns if column.name not in constant]
            table = _build(columns, records, terminal)
            shared = ", ".join(f"{k} {_cell(_named(document, k), v)}" for k, v in constant.items())
            console.print(shared, style="dim", soft_wrap=True)
        if terminal and _natural_width(console, table) > console.width:
            table = _build(columns, records, terminal, fold_headers=True)
        # Wider than the terminal wraps there; a number is never cut.
        console.width = max(console.width, _natural_width(console, table))
        console.print(table)
        for line in _epilogue(document, left_out):
            console.print(line, soft_wrap=True)


def is_terminal(stream: TextIO) -> bool:
    """Returns whether people look at `stream` as it is written."""
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def make_console(stream: TextIO, terminal: bool) -> Console:
    """Returns a Rich console that leaves data alone: no markup, no emoji, no highlighting."""
    from rich.console import Console

    colour = terminal and not os.environ.get("NO_COLOR")
    return Console(
        file=stream,
        force_terminal=colour,
        no_color=not colour,
        color_system="auto" if colour else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def _readable(document: Document) -> tuple[list[Record], int]:
    if document.headline is None or len(document.records) <= READABLE_ROWS:
        return document.records, 0
    chosen = [r for r, shown in zip(document.records, document.headline, strict=True) if shown]
    return chosen, len(document.records) - len(chosen)


def _epilogue(document: Document, left_out: int) -> Iterator[str]:
    if left_out:
        yield f"{left_out} more rows in between; --csv and --json hold them all."
    if document.findings:
        yield ""
        yield from document.findings


def _build(
    columns: Sequence[Column],
    records: Sequence[Record],
    terminal: bool,
    fold_headers: bool = False,
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 1),
    )
    for column in columns:
        fold = terminal and column.name == "note"
        table.add_column(
            _folded(column.name) if fold_headers else column.name,
            justify="left" if column.type in ("str", "bool") else "right",
            overflow="fold",
            max_width=_NOTE_WIDTH if fold else None,
        )
    for record in records:
        style = "red" if record.get("status", "ok") != "ok" else ""
        table.add_row(*(Text(_cell(c, record[c.name]), style=style) for c in columns))
    return table


def _folded(name: str) -> str:
    """Returns a long column name broken at the underscore nearest its middle."""
    breaks = [i + 1 for i, letter in enumerate(name) if letter == "_"]
    if len(name) < 10 or not breaks:
        return name
    at = min(breaks, key=lambda i: abs(2 * i - len(name)))
    return f"{name[:at]}\n{name[at:]}"


def _natural_width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(width=100_000)).maximum


def _is_used(column: Column, records: Sequence[Record]) -> bool:
    return not records or any(record[column.name] not in (None, "") for record in records)


def _is_constant(column: Column, records: Sequence[Record]) -> bool:
    if not records or column.name in ("note", "status"):
        return all(record[column.name] in ("", "ok", None) for record in records)
    values = {record[column.name] for record in records}
    return column.identity and len(records) > 1 and len(values) == 1


def _named(document: Document, name: str) -> Column:
    return next(column for column in document.columns if column.name == name)


def _cell(column: Column, value: Value) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if column.unit == "B":
        return format_bytes(value)
    if column.unit == "tokens" and isinstance(value, int):
        return format_tokens(value)
    if column.unit == "log10":
        return f"{value:.2f}"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
