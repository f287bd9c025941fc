"""The row contract: a frozen dataclass whose fields are the columns, in order."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any, Literal

Value = str | int | float | bool | None
Record = dict[str, Value]

Status = Literal[
    "ok", "inaccurate", "nonfinite", "unsupported", "unavailable", "oom", "error", "skipped"
]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, the type of its values, its unit and what it says."""

    name: str
    type: str
    unit: str
    description: str
    identity: bool
    """Whether the column says which measurement this is, rather than what was measured."""


def column(description: str, *, unit: str = "", identity: bool = False) -> Any:
    """Declares a column as a dataclass field."""
    metadata = {"description": description, "unit": unit, "identity": identity}
    return dataclasses.field(metadata=metadata)


def columns_of(row_type: type) -> tuple[Column, ...]:
    """Returns the columns of a row type."""
    hints = typing.get_type_hints(row_type)
    return tuple(
        Column(
            name=_column_name(field.name),
            type=_type_name(hints[field.name]),
            unit=field.metadata["unit"],
            description=field.metadata["description"],
            identity=field.metadata["identity"],
        )
        for field in dataclasses.fields(row_type)
    )


def _type_name(hint: Any) -> str:
    """Returns `str`, `int`, `float` or `bool` for `T` and `T | None`; a Literal is a `str`."""
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Literal:
        return "str"
    base = options[0] if options else hint
    return "str" if typing.get_origin(base) is Literal else str(base.__name__)


def record_of(row: Any) -> Record:
    """Returns a row's values by column; a number that is not finite is missing."""
    return {
        _column_name(field.name): _finite(getattr(row, field.name))
        for field in dataclasses.fields(row)
    }


def _column_name(field: str) -> str:
    """Returns the column of a field: `pass` cannot be a field, so `pass_` stands for it."""
    return field.removesuffix("_")


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
