"""The output formats. To add one: a file with a `Writer`, and a line here."""

from __future__ import annotations

import importlib
from pathlib import Path

from seqdiag.errors import UsageError, unknown
from seqdiag.report.document import Writer

FORMATS = {
    "table": "seqdiag.report.to_table:TableWriter",
    "csv": "seqdiag.report.to_csv:CsvWriter",
    "json": "seqdiag.report.to_json:JsonWriter",
    "jsonl": "seqdiag.report.to_jsonl:JsonlWriter",
    "md": "seqdiag.report.to_markdown:MarkdownWriter",
}
SUFFIXES = {
    ".txt": "table",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".md": "md",
}


def load_format(name: str) -> type[Writer]:
    """Returns the writer of a format by name."""
    if name not in FORMATS:
        raise unknown("--format", name, FORMATS)
    module, _, attribute = FORMATS[name].partition(":")
    writer: type[Writer] = getattr(importlib.import_module(module), attribute)
    return writer


def format_of(path: Path, fallback: str) -> str:
    """Returns the format for a file by its suffix; one with no suffix takes `fallback`."""
    if not path.suffix:
        return fallback
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"--output: {path} has the unknown suffix {path.suffix!r}",
            hint=f"known: {', '.join(SUFFIXES)}",
        )
    return SUFFIXES[path.suffix.lower()]
