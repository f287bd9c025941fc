"""`--plot FILE`: the rows as a line plot, by matplotlib (extra `plot`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from seqdiag.errors import UnavailableError, UsageError
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Record

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
    """Writes one line for each value of the series column; rows without a value are left out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(record[spec.series] for record in records):
        points = sorted(
            (x, y)
            for record in records
            if record[spec.series] == name
            and isinstance(x := record[spec.x], int | float)
            and isinstance(y := record[spec.y], int | float)
            and (x > 0 or not spec.log_x)
            and (y > 0 or not spec.log_y)
        )
        axes.plot([x for x, _ in points], [y for _, y in points], label=str(name), marker=".")
    axes.set_xlabel(spec.x_label)
    axes.set_ylabel(spec.y_label)
    if spec.log_x:
        axes.set_xscale("log", base=2)
    if spec.log_y:
        axes.set_yscale("log", base=2)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, format=image_format, dpi=150)
