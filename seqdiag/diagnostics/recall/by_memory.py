"""Read-back: random pairs written into a memory, every value read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.recall.spec import RecallSpec
from seqdiag.measure.readback import Tally, read_back, read_back_in_order
from seqdiag.models.memories import Memory, parse_memory
from seqdiag.predict import capacity
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="pairs",
    y="accuracy_ratio",
    series="memory",
    x_label="pairs",
    y_label="accuracy of the nearest value",
    log_x=True,
    low="accuracy_low",
    high="accuracy_high",
    dashed="predicted_accuracy_ratio",
)
_PROBES, _TRIALS = 2000, 20
"""At least this many probes and trials where --trials is not given."""
_ARTICLE_TRIALS = 200
_BITS = 32


@dataclass(frozen=True, slots=True)
class ReadBackRow:
    """A memory at one size and load."""

    memory: str = column("write rule and its parameter", identity=True)
    state_dim: int = column("length of keys", unit="numbers", identity=True)
    value_dim: int = column("length of values", unit="numbers", identity=True)
    state_numbers: int = column("what the memory holds", unit="numbers")
    pairs: int = column("pairs written", identity=True)
    trials: int = column("independent memories")
    accuracy_ratio: float | None = column("share of probes whose own value is the nearest")
    accuracy_low: float | None = column("95 % interval (Wilson), lower end")
    accuracy_high: float | None = column("95 % interval (Wilson), upper end")
    predicted_accuracy_ratio: float | None = column("by the closed form, for linear")
    rel_error: float | None = column("squared error of reads over squared values")
    predicted_rel_error: float | None = column("its expectation, where there is a closed form")
    bits_stored: float | None = column("which value is whose, read back", unit="bits")
    bits_ceiling: int = column("the state at 32 bits a number", unit="bits")
    status: Status = column("ok or nonfinite")
    note: str = column("why a value is missing")


def rows(spec: RecallSpec) -> Iterator[ReadBackRow]:
    for text in spec.memory:
        name, memory, parameter = parse_memory(text)
        label = f"{name}:{parameter:g}" if memory.parameter else name
        for dim in spec.state_dim:
            tallies = _tallies(spec, memory, parameter, dim)
            for pairs, tally in zip(spec.pairs, tallies, strict=True):
                yield _row(label, name, memory, parameter, dim, spec, pairs, tally)


def _tallies(spec: RecallSpec, memory: Memory, parameter: float, dim: int) -> Iterator[Tally]:
    """Yields what was read back at each load."""
    import torch

    def read(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return memory.read(k, v, parameter)

    value_dim = spec.value_dim or dim
    if spec.draw == "article":
        trials = spec.trials or _ARTICLE_TRIALS
        yield from read_back_in_order(read, spec.pairs, dim, value_dim, trials, spec.seed)
        return
    for pairs in spec.pairs:
        trials = spec.trials or _enough(pairs, spec.one)
        yield read_back(read, pairs, dim, value_dim, trials, spec.seed, spec.one)


def _enough(pairs: int, one: bool) -> int:
    return _PROBES if one else max(_TRIALS, -(-_PROBES // pairs))


def _row(
    label: str,
    name: str,
    memory: Memory,
    parameter: float,
    dim: int,
    spec: RecallSpec,
    pairs: int,
    tally: Tally,
) -> ReadBackRow:
    value_dim = spec.value_dim or dim
    numbers = memory.numbers(pairs, dim, value_dim)
    accuracy, error = predict(name, parameter, pairs, dim, value_dim)
    share, probes = tally.accuracy, tally.independent_probes
    low, high = capacity.wilson(share * probes, probes)
    finite = tally.rel_error < float("inf")
    missing = "" if error is not None else "no closed form"
    return ReadBackRow(
        memory=label,
        state_dim=dim,
        value_dim=value_dim,
        state_numbers=numbers,
        pairs=pairs,
        trials=tally.trials,
        accuracy_ratio=share if finite else None,
        accuracy_low=low if finite else None,
        accuracy_high=high if finite else None,
        predicted_accuracy_ratio=accuracy,
        rel_error=tally.rel_error if finite else None,
        predicted_rel_error=error,
        bits_stored=capacity.stored_bits(pairs, share) if finite else None,
        bits_ceiling=_BITS * numbers,
        status="ok" if finite else "nonfinite",
        note=missing if finite else "reads overflow float32",
    )


def predict(
    name: str, parameter: float, pairs: int, dim: int, value_dim: int
) -> tuple[float | None, float | None]:
    """Returns the predicted accuracy and relative error, None where no closed form is known."""
    if name == "linear":
        accuracy = capacity.additive_accuracy(pairs, dim, value_dim)
        return accuracy, capacity.additive_rel_error(pairs, dim)
    if name == "decay":
        return None, capacity.additive_rel_error(pairs, dim, parameter)
    if name == "delta" and parameter == 1:
        return None, capacity.delta_rel_error(pairs, dim)
    if name == "least-squares":
        return None, capacity.least_squares_rel_error(pairs, dim)
    if name == "quadratic":
        return None, capacity.quadratic_rel_error(pairs, dim)
    return None, None


def conclude(rows: Sequence[ReadBackRow]) -> list[str]:
    """Says what the size of a state is, and what the accuracy hides."""
    lines = []
    for memory, dim in dict.fromkeys((row.memory, row.state_dim) for row in rows):
        own = [row for row in rows if (row.memory, row.state_dim) == (memory, dim)]
        held = [row.pairs for row in own if (row.accuracy_ratio or 0) >= 0.99]
        largest = f"up to {max(held)} pairs" if held else f"not even at {own[0].pairs} pairs"
        lines.append(f"{memory} with keys of {dim}: 99 % read back {largest}.")
    hiding = [
        r for r in rows if (r.accuracy_ratio or 0) >= 0.9 and r.rel_error and r.rel_error >= 0.5
    ]
    if hiding:
        worst = max(hiding, key=lambda row: row.rel_error or 0)
        lines.append(
            f"Choosing the nearest of the values hides error: {worst.memory} at {worst.pairs} "
            f"pairs is right {worst.accuracy_ratio:.3f} of the time, with a squared "
            f"error {worst.rel_error:.2f} times the squared size of the values."
        )
    if any(row.memory == "linear" for row in rows):
        lines.append(
            "A linear state is state_dim x value_dim numbers, and the pairs it holds at 99 % grow "
            "with the square of the dimension, about d^2/40: try --state-dim 16,32,64,128."
        )
    return lines
