"""A file of finished rows: appended as they come, so that a sweep can be taken up again."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Generic, TypeVar

from seqdiag.errors import UsageError

Row = TypeVar("Row")


class Journal(Generic[Row]):
    """Rows by the question they answer, one JSON object a line.

    A line that was cut short, by a full disk or a kill, is dropped when the file is read; a file
    that is no journal is refused and left as it is.
    """

    def __init__(self, option: str, path: Path, row_type: type[Row]) -> None:
        self.option, self.path, self.row_type = option, path, row_type
        self.rows: dict[str, Row] = {}
        text = ""
        try:
            if path.is_file():
                text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{option}: cannot read {path}: {error}") from None
        whole = text[: text.rfind("\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            self._read(option, number, line)
        try:
            with path.open("a", encoding="utf-8") as stream:
                if whole != text:
                    stream.truncate(len(whole.encode()))
        except OSError as error:
            raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from None

    def _read(self, option: str, number: int, line: str) -> None:
        try:
            entry = json.loads(line)
            self.rows[json.dumps(entry["job"])] = self.row_type(**entry["row"])
        except (ValueError, TypeError, KeyError):
            raise UsageError(
                f"{option}: line {number} of {self.path} is not a finished row",
                hint=f"name a file that {option} wrote, or one that does not exist",
            ) from None

    def find(self, job: dict[str, Any]) -> Row | None:
        """Returns the row of a job that is finished."""
        return self.rows.get(json.dumps(job))

    def add(self, job: dict[str, Any], row: Any) -> None:
        """Appends a row and sees it to the disk. Raises `UsageError` where that fails."""
        line = json.dumps({"job": job, "row": dataclasses.asdict(row)})
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UsageError(
                f"{self.option}: cannot write {self.path}: {error.strerror}",
                hint="the rows before are in it; take the sweep up again with the same file",
            ) from None
