"""One JSON envelope; its `spec` replays with `--config FILE.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, TextIO

from seqdiag.report.document import SCHEMA_VERSION, Document
from seqdiag.report.schema import Column, Record


class JsonWriter:
    """Writes the whole document at the end."""

    shows_findings = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, columns: Sequence[Column]) -> None:
        pass

    def row(self, record: Record) -> None:
        pass

    def end(self, document: Document) -> None:
        json.dump(_envelope(document), self._stream, indent=2, allow_nan=False)
        self._stream.write("\n")


def _envelope(document: Document) -> dict[str, Any]:
    verdict = document.verdict
    return {
        "schema_version": SCHEMA_VERSION,
        "command": document.command,
        "argv": document.argv,
        "spec": document.spec,
        "environment": document.environment(),
        "columns": [dataclasses.asdict(column) for column in document.columns],
        "rows": document.records,
        "findings": document.findings,
        "verdict": {
            "passed": verdict.passed,
            "fail_if": verdict.fail_if,
            "unmet": verdict.unmet,
            "tripped": [{"fail_if": e, "rows": rows} for e, rows in verdict.tripped.items()],
            "unjudged": [{"fail_if": e, "rows": n} for e, n in verdict.unjudged.items()],
        },
        "partial": document.partial,
    }
