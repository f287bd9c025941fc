"""The rows of `receptive-field`."""

from __future__ import annotations

from dataclasses import dataclass

from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

_RUN = "shortest run of inputs that holds {} % of the gradient mass"


@dataclass(frozen=True, slots=True)
class ReceptiveFieldRow:
    """What one output of one subject sees."""

    subject: str = column("architecture, chain or factory", identity=True)
    seq_len: int = column("steps in the sequence", unit="steps", identity=True)
    position: int | None = column("which output", identity=True)
    predicted_steps: int | None = column(
        "first to last input that an output reads, from the structure; empty if without end",
        unit="steps",
    )
    predicted_count: int | None = column("how many of those inputs it reads")
    measured_steps: int | None = column("first to last input this output responds to", unit="steps")
    measured_count: int | None = column("how many inputs it responds to")
    structural_steps: int | None = column(
        "first to last input with a path, whatever the weights: dead units count", unit="steps"
    )
    first_input: int | None = column("first input it responds to, or reads if only predicted")
    last_input: int | None = column("last input it responds to, or reads if only predicted")
    lookahead_steps: int | None = column(
        "how far beyond its own time any output sees; above 0 is a leak", unit="steps"
    )
    causal: bool | None = column("whether no output sees beyond its own time")
    stride: float | None = column("input steps from one output to the next", unit="steps")
    latency_steps: int | None = column(
        "steps from the start of an output's own stride to the last input it needs", unit="steps"
    )
    latency_ms: float | None = column("the same at --sample-rate", unit="ms")
    effective_steps_p50: float | None = column(_RUN.format(50), unit="steps")
    effective_steps_p90: float | None = column(_RUN.format(90), unit="steps")
    effective_steps_p99: float | None = column(_RUN.format(99), unit="steps")
    probe: str = column("what showed the reach and the leak")
    status: Status = column("ok, or why there is no number")
    note: str = column("what limits the numbers")


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """One pair of the leak matrix: an output that responds to an input."""

    subject: str = column("architecture, chain or factory", identity=True)
    output: int = column("which output", identity=True)
    input: int = column("which input", identity=True)
    lookahead_steps: int = column("input minus the output's own time", unit="steps")
    change_ratio: float = column("change of the output over its size, the input replaced")
    leak: bool = column("whether the input lies in the output's future")


PLOT = PlotSpec(
    x="input",
    y="output",
    series="subject",
    x_label="input step",
    y_label="output step",
    heat="change_ratio",
    heat_label="change of the output, relative",
)
