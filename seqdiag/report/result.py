"""What a diagnostic returns: first a `Diagnosis` that can be run, then its `Result`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdiag.report.schema import Column, Record, columns_of, record_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class PlotSpec:
    """A line plot of two columns, a line for each value of `series`."""

    x: str
    y: str
    series: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    also: str | None = None
    """A second column that tells lines apart, named where it differs."""
    mark_x: str | None = None
    """The column of places on the x axis that a dotted line marks."""
    heat: str | None = None
    """The column that colours the plane of x and y, for a heat map instead of lines."""
    heat_label: str = ""
    low: str | None = None
    high: str | None = None
    """The columns between which a band is drawn around each line."""
    dashed: str | None = None
    """A second column to draw as a dashed line, such as the prediction."""


@dataclass(frozen=True, slots=True)
class Details:
    """Finer rows behind a result, for a CSV of their own and for the plot."""

    row_type: type
    rows: Callable[[], Sequence[Any]]
    """Asked for when everything is measured."""
    option: str
    path: Path | None = None


@dataclass(slots=True)
class Result:
    """Finished rows with what they mean."""

    command: str
    spec: dict[str, Any]
    columns: tuple[Column, ...]
    records: list[Record] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """Returns the rows as a DataFrame with nullable dtypes: a missing integer stays missing."""
        from seqdiag.report.frame import to_frame

        return to_frame(self.columns, self.records)


@dataclass(slots=True)
class Live:
    """What the row in the making has come to, for the progress bar."""

    text: str = ""


@dataclass(slots=True)
class Diagnosis:
    """A measurement ready to run: rows come as they are measured, findings when all are in."""

    command: str
    spec: dict[str, Any]
    row_type: type
    rows: Iterator[Any]
    total: int
    """How many rows there will be, for the progress bar."""
    conclude: Callable[[Sequence[Any]], list[str]]
    """Turns all rows into sentences."""
    plot: PlotSpec | None = None
    headline: Callable[[Any], bool] | None = None
    """Which rows a table shows when there are too many to read; every other format has all."""
    device: str = "cpu"
    dtype: str = ""
    seed: int | None = None
    details: Details | None = None
    live: Live | None = None
    """Given where a row takes long: the progress bar shows it from the first row on."""
    unmet: Callable[[Sequence[Any]], list[str]] | None = None
    """Says which requirements of the question itself the rows do not meet: exit code 1."""

    def run(self) -> Result:
        """Measures everything and returns the result."""
        rows = list(self.rows)
        return Result(
            command=self.command,
            spec=self.spec,
            columns=columns_of(self.row_type),
            records=[record_of(row) for row in rows],
            findings=self.conclude(rows),
        )
