"""`--baseline`: joins an earlier result on the identity columns, so that a gate sees changes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from seqdiag.config import parse_json, read_text
from seqdiag.errors import UsageError
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
    if path.suffix == ".json":
        rows, environment = _read_json(path, command)
    else:
        rows, environment = _read_csv(path, columns), {}
    if not cross_device:
        for name in _MACHINE:
            _refuse_other(path, name, environment.get(name), machine.get(name))
    identity = [c.name for c in columns if c.identity and c.name not in _MACHINE]
    if rows and (absent := [name for name in identity if name not in rows[0]]):
        raise UsageError(f"--baseline: {path} lacks the column {absent[0]!r}")
    metrics = [c for c in columns if not c.identity and c.type in ("int", "float")]
    added = tuple(column for metric in metrics for column in _added(metric))
    by_key = {_key(row, identity): row for row in rows}
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


def _read_json(path: Path, command: str) -> tuple[list[Record], dict[str, Any]]:
    data = parse_json("--baseline", path)
    rows, environment = data.get("rows"), data.get("environment")
    if not isinstance(rows, list) or not isinstance(environment, dict):
        raise UsageError(f"--baseline: {path} is not a seqdiag result")
    if data.get("command") != command:
        raise UsageError(f"--baseline: {path} is a result of {data.get('command')!r}")
    return rows, environment


def _read_csv(path: Path, columns: Sequence[Column]) -> list[Record]:
    types = {column.name: column.type for column in columns}
    reader = csv.DictReader(StringIO(read_text("--baseline", path), newline=""))
    rows: list[Record] = []
    for line in reader:
        try:
            rows.append({k: _parse(types[k], v or "") for k, v in line.items() if k in types})
        except ValueError as error:
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
