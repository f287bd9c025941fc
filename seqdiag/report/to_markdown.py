"""A GitHub table with exact values, then the findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from seqdiag.report.document import Document
from seqdiag.report.schema import Column, Record, Value


class MarkdownWriter:
    """Writes a row as it comes."""

    shows_findings = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, columns: Sequence[Column]) -> None:
        self._line(column.name for column in columns)
        self._line("---" if column.type == "str" else "---:" for column in columns)

    def row(self, record: Record) -> None:
        self._line(_cell(value) for value in record.values())

    def end(self, document: Document) -> None:
        for finding in document.findings:
            self._stream.write(f"\n{finding}\n")

    def _line(self, cells: Iterable[str]) -> None:
        self._stream.write("| " + " | ".join(cells) + " |\n")


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
