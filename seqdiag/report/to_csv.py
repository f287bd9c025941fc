"""RFC 4180 CSV with LF: a header always, rows flushed as measured, missing values empty."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import TextIO

from seqdiag.report.document import Document
from seqdiag.report.schema import Column, Record


class CsvWriter:
    """Writes full floats and exact integers."""

    shows_findings = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._writer = csv.writer(stream, lineterminator="\n")

    def begin(self, columns: Sequence[Column]) -> None:
        self._writer.writerow([column.name for column in columns])

    def row(self, record: Record) -> None:
        self._writer.writerow(["" if value is None else value for value in record.values()])
        self._stream.flush()

    def end(self, document: Document) -> None:
        pass
