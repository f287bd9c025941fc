"""`--baseline`: joins an earlier result on the identity columns, so that a gate sees changes."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from seqdiag.config import parse_json, read_text
from seqdiag.errors import UsageError
from seqdiag.report.document import SCHEMA_VERSION
from seqdiag.report.schema import Column, Record, Value

_Key = tuple[Value, ...]
_MACHINE = ("device", "dtype")
"""What a comparison holds fixed unless --cross-device says otherwise."""


@dataclass(slots=True)
class Baseline:
    """An earlier result's rows by identity, and the columns it adds."""

    path: Path
    columns: tuple[Column, ...]
    """What it adds to a row."""
    _identity: list[str]
    _metrics: list[Column]
    _rows: dict[_Key, Record]
    """By identity, less the device and dtype."""
    _cross_device: bool
    matched: int = 0
    missing: int = 0
    """How many rows had no counterpart."""

    def join(self, record: Record) -> Record:
        """Returns `record` with `<metric>_baseline` and `<metric>_change_ratio` added.

        Raises `UsageError` if the counterpart is of another device or dtype and that was not
        allowed.
        """
        before = self._rows.get(_key(record, self._identity))
        if before is not None and not self._cross_device:
            for name in _MACHINE:
                _refuse_other(self.path, name, before.get(name), record.get(name))
        self.matched += before is not None
        self.missing += before is None
        joined = dict(record)
        for metric in self._metrics:
            old = before.get(metric.name) if before else None
            joined[f"{metric.name}_baseline"] = old
            joined[f"{metric.name}_change_ratio"] = _change(old, record[metric.name])
        return joined


def load_baseline(
    path: Path, command: str, columns: Sequence[Column], machine: dict[str, str], cross_device: bool
) -> Baseline:
    """Returns the earlier result in `path` (JSON or CSV), ready to join.

    Raises `UsageError` for another command's result, for rows that say nothing of the identity
    columns, and for one from another device or dtype unless `cross_device`.
    """
    if path.suffix.lower() == ".json":
        rows, environment = _read_json(path, command, columns)
    elif path.suffix.lower() == ".csv":
        rows, environment = _read_csv(path, columns), {}
    else:
        raise UsageError(f"--baseline: {path} is neither .json nor .csv")
    if not cross_device:
        for name in _MACHINE:
            _refuse_other(path, name, environment.get(name), machine.get(name))
    identity = [c.name for c in columns if c.identity and c.name not in _MACHINE]
    if not rows:
        raise UsageError(f"--baseline: {path} has no rows")
    if absent := [name for name in identity if name not in rows[0]]:
        raise UsageError(f"--baseline: {path} lacks the column {absent[0]!r}")
    metrics = [c for c in columns if not c.identity and c.type in ("int", "float")]
    added = tuple(column for metric in metrics for column in _added(metric))
    by_key = {_key(row, identity): row for row in rows}
    if len(by_key) < len(rows):
        raise UsageError(
            f"--baseline: {path} has several rows for one of this result: it is of another view"
        )
    return Baseline(path, added, identity, metrics, by_key, cross_device)


def _refuse_other(path: Path, name: str, old: object, new: object) -> None:
    """Raises if a device or dtype is known on both sides and differs."""
    if old and new and old != new:
        raise UsageError(
            f"--baseline: {path} has {name} {old}, this run {new}",
            hint="--cross-device compares all the same",
        )


def _added(metric: Column) -> tuple[Column, Column]:
    before = f"{metric.name} of the baseline"
    change = f"({metric.name} - baseline) / baseline"
    return (
        Column(f"{metric.name}_baseline", metric.type, metric.unit, before, identity=False),
        Column(f"{metric.name}_change_ratio", "float", "", change, identity=False),
    )


def _key(record: Record, identity: Sequence[str]) -> _Key:
    return tuple(record.get(name) for name in identity)


def _change(old: Value, new: Value) -> float | None:
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return None
    if old == 0:
        return 0.0 if new == 0 else None
    return (new - old) / old


def _read_json(
    path: Path, command: str, columns: Sequence[Column]
) -> tuple[list[Record], dict[str, Any]]:
    data = parse_json("--baseline", path)
    rows, environment = data.get("rows"), data.get("environment")
    if not isinstance(rows, list) or not isinstance(environment, dict):
        raise UsageError(f"--baseline: {path} is not a seqdiag result")
    if data.get("command") != command:
        raise UsageError(f"--baseline: {path} is a result of {data.get('command')!r}")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"--baseline: {path} is not of schema version {SCHEMA_VERSION}")
    return [_checked(row, columns, path) for row in rows], environment


def _checked(row: object, columns: Sequence[Column], path: Path) -> Record:
    """Returns the known columns of a JSON row; raises if a value is not of its column's type."""
    if not isinstance(row, dict):
        raise UsageError(f"--baseline: {path} holds a row that is not an object")
    record: Record = {}
    for column in columns:
        value = row.get(column.name)
        accepted = {"str": str, "int": int, "float": int | float, "bool": bool}[column.type]
        wrong = not isinstance(value, accepted) or (
            isinstance(value, bool) != (column.type == "bool")
        )
        if value is not None and (wrong or value in (math.inf, -math.inf)):
            raise UsageError(f"--baseline: {path}: {column.name} = {value!r:.60} in a row")
        if column.name in row:
            record[column.name] = value
    return record


def _read_csv(path: Path, columns: Sequence[Column]) -> list[Record]:
    types = {column.name: column.type for column in columns}
    reader = csv.DictReader(StringIO(read_text("--baseline", path), newline=""))
    rows: list[Record] = []
    try:
        rows += [
            {k: _parse(types[k], v or "") for k, v in line.items() if k in types} for line in reader
        ]
    except (ValueError, csv.Error) as error:
        raise UsageError(f"--baseline: {path}, line {reader.line_num}: {error}") from None
    return rows


def _parse(kind: str, text: str) -> Value:
    if kind == "str":
        return text
    if text == "":
        return None
    if kind == "bool":
        return text == "True"
    return int(text) if kind == "int" else float(text)
