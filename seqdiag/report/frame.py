"""Rows as a pandas DataFrame. Nothing else in the package imports pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from seqdiag.report.schema import Column, Record

_DTYPES: dict[str, Any] = {"int": "Int64", "float": "Float64", "bool": "boolean", "str": "string"}
_MOST = 2**63 - 1


def to_frame(columns: Sequence[Column], records: Sequence[Record]) -> pd.DataFrame:
    """Returns the records as a DataFrame: integers stay integers, a missing value is NA."""
    return pd.DataFrame(
        {
            column.name: _series(column, [record[column.name] for record in records])
            for column in columns
        }
    )


def _series(column: Column, values: list[Any]) -> pd.Series[Any]:
    dtype = _DTYPES[column.type]
    if column.type == "int" and any(value is not None and abs(value) > _MOST for value in values):
        dtype = object  # exact Python integers rather than rounded floats
    series: pd.Series[Any] = pd.Series(values, dtype=dtype)
    return series


def evaluate(
    expression: str, columns: Sequence[Column], records: Sequence[Record]
) -> list[bool | None]:
    """Returns for each record whether a pandas expression holds; None where a value is missing.

    Raises `TypeError` if the expression does not say yes or no, and whatever pandas raises.
    """
    answer: Any = to_frame(columns, records).eval(expression, engine="python")
    if str(getattr(answer, "dtype", "")) not in ("bool", "boolean"):
        raise TypeError("it does not say yes or no for each row")
    return [None if held is pd.NA else bool(held) for held in answer.astype("boolean")]
