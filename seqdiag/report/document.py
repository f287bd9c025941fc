"""The finished document that every format renders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from seqdiag.errors import UsageError
from seqdiag.report.schema import Column, Record

SCHEMA_VERSION = 1


@dataclass(slots=True)
class Verdict:
    """The outcome of the gates, by expression."""

    fail_if: list[str] = field(default_factory=list)
    tripped: dict[str, list[int]] = field(default_factory=dict)
    """The rows for which it holds."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """How many rows lack a value that decides."""
    error: UsageError | None = None
    """Why an expression could not be judged at all."""
    unmet: list[str] = field(default_factory=list)
    """What the question itself required and the rows do not meet, in sentences."""

    @property
    def passed(self) -> bool:
        return not self.tripped and not self.unmet and self.error is None


@dataclass(slots=True)
class Document:
    """Everything a format may show. `environment` is a call: only JSON pays for it."""

    command: str
    argv: list[str]
    spec: dict[str, Any]
    environment: Callable[[], dict[str, Any]]
    columns: Sequence[Column]
    records: list[Record]
    headline: list[bool] | None
    findings: list[str]
    verdict: Verdict
    partial: bool


class Writer(Protocol):
    """One output format. Rows are written as they come where the format allows it."""

    shows_findings: bool

    def __init__(self, stream: TextIO) -> None: ...

    def begin(self, columns: Sequence[Column]) -> None: ...

    def row(self, record: Record) -> None: ...

    def end(self, document: Document) -> None: ...
