"""`--plot FILE`: the rows as a line plot, by matplotlib (extra `plot`)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqdiag.errors import UnavailableError, UsageError
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Record, Value

_SUFFIXES = (".png", ".svg")


def check_plot(path: Path, spec: PlotSpec | None) -> None:
    """Raises, before anything is measured, if the plot could not be drawn."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot: {path} must end in .png or .svg")
    if spec is None:
        raise UsageError("--plot: this view of the result has no plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise UnavailableError(
            "--plot: matplotlib is not installed", hint="pip install 'seqdiag[plot]'"
        )


def draw(path: Path, image_format: str, spec: PlotSpec, records: Sequence[Record]) -> None:
    """Writes a line, or a heat map, for each value of the series; missing values are left out."""
    from matplotlib.figure import Figure

    by_series = _grouped(spec, records)
    series = list(by_series)
    if spec.heat is not None:
        figure = Figure(figsize=(7, 1 + 3 * max(1, len(series))), layout="constrained")
        for index, (name, own) in enumerate(by_series.items()):
            _heat(figure, figure.add_subplot(len(series), 1, index + 1), spec, str(name), own)
    else:
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        _lines(figure.add_subplot(), spec, by_series)
    figure.savefig(path, format=image_format, dpi=150)


def _grouped(spec: PlotSpec, records: Sequence[Record]) -> dict[Value, list[Record]]:
    """Returns the records of each line by its name."""
    also = spec.also
    several = also is not None and len({record[also] for record in records}) > 1
    grouped: dict[Value, list[Record]] = {}
    for record in records:
        name = record[spec.series]
        if several and also is not None:
            name = f"{name}, {record[also]}"
        grouped.setdefault(name, []).append(record)
    return grouped


def _lines(axes: Any, spec: PlotSpec, by_series: Mapping[Value, Sequence[Record]]) -> None:
    for name, records in by_series.items():
        points = _points(spec, records, spec.y)
        (line,) = axes.plot(*_columns(points), label=str(name), marker=".")
        if spec.dashed is not None:
            points = _points(spec, records, spec.dashed)
            axes.plot(*_columns(points), linestyle="--", color=line.get_color())
        if spec.low is not None and spec.high is not None:
            low, high = (_points(spec, records, name) for name in (spec.low, spec.high))
            axes.fill_between(
                [x for x, _ in low],
                [y for _, y in low],
                [y for _, y in high],
                color=line.get_color(),
                alpha=0.2,
            )
        marks = {record[spec.mark_x] for record in records} if spec.mark_x else set()
        for place in marks - {None}:
            axes.axvline(place, color=line.get_color(), linestyle=":")
    axes.set_xlabel(spec.x_label)
    axes.set_ylabel(spec.y_label)
    if spec.log_x:
        axes.set_xscale("log", base=2)
    if spec.log_y:
        axes.set_yscale("log", base=2)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(title=spec.series)


def _points(spec: PlotSpec, records: Sequence[Record], column: str) -> list[tuple[float, float]]:
    """Returns the points of a column in order of x; what is missing or off a log axis is not."""
    return sorted(
        (x, y)
        for record in records
        if isinstance(x := record[spec.x], int | float)
        and isinstance(y := record[column], int | float)
        and (x > 0 or not spec.log_x)
        and (y > 0 or not spec.log_y)
    )


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _heat(figure: Any, axes: Any, spec: PlotSpec, name: str, records: Sequence[Record]) -> None:
    assert spec.heat is not None
    xs, ys = (sorted({record[key] for record in records}) for key in (spec.x, spec.y))  # type: ignore[type-var]
    values = {(r[spec.x], r[spec.y]): r[spec.heat] for r in records}
    grid = [[_number(values.get((x, y))) for x in xs] for y in ys]
    image = axes.pcolormesh(range(len(xs) + 1), range(len(ys) + 1), grid)
    for ticks, labels, place in ((xs, xs, axes.set_xticks), (ys, ys, axes.set_yticks)):
        every = max(1, len(ticks) // 10)
        place([i + 0.5 for i in range(0, len(ticks), every)], [str(v) for v in labels[::every]])
    axes.set_title(name)
    axes.set_xlabel(spec.x_label)
    axes.set_ylabel(spec.y_label)
    figure.colorbar(image, ax=axes, label=spec.heat_label)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
