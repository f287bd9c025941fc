"""One JSON object a row, flushed as measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from seqdiag.report.document import Document
from seqdiag.report.schema import Column, Record


class JsonlWriter:
    """Writes the rows alone; the envelope is the `json` format's."""

    shows_findings = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, columns: Sequence[Column]) -> None:
        pass

    def row(self, record: Record) -> None:
        self._stream.write(json.dumps(record, allow_nan=False) + "\n")
        self._stream.flush()

    def end(self, document: Document) -> None:
        pass
