"""Trained recall: small models that learn a task, a row for each combination asked for."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqdiag.diagnostics.jobs import in_order, run_jobs
from seqdiag.diagnostics.journal import Journal
from seqdiag.diagnostics.recall.spec import Equal, RecallSpec
from seqdiag.errors import UsageError
from seqdiag.measure.learning import HELD_OUT, Recipe, learn, reachable
from seqdiag.measure.tasks import BOUND, Problem
from seqdiag.models.stack import StackSpec
from seqdiag.models.tokens import TokenModel, reach_of, stack_of
from seqdiag.predict.capacity import wilson
from seqdiag.report.result import Live, PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="state_bytes",
    y="accuracy_ratio",
    series="arch",
    x_label="bytes of state after the sequence",
    y_label="accuracy on held-out sequences",
    log_x=True,
)


@dataclass(frozen=True, slots=True)
class Job:
    """One model trained on one problem: plain data, so that it can go to another process."""

    spec: RecallSpec
    arch: str
    pairs: int
    seq_len: int
    seed: int
    equal: Equal
    d_model: int


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """A model after training on a task; accuracies are at the questions of held-out sequences."""

    task: str = column("mqar, induction, copy or selective-copy", identity=True)
    arch: str = column("layers", identity=True)
    pattern: str = column("layers by letter")
    seq_len: int = column("tokens a sequence", unit="tokens", identity=True)
    vocab: int = column("token ids", identity=True)
    pairs: int = column("pairs to recall, or tokens to copy", identity=True)
    seed: int = column("of weights and data", identity=True)
    equal: str = column(
        "what all architectures have as much of as the first: width, params or state", identity=True
    )
    layers: int = column("mixers")
    d_model: int = column("width", identity=True)
    params: int | None = column("parameters, embedding included")
    state_bytes: int | None = column("state of one sequence after its last step", unit="B")
    updates: int | None = column("optimiser updates made")
    updates_to_50: int | None = column("updates until half the questions were right")
    updates_to_99: int | None = column("updates until 99 % were right")
    accuracy_ratio: float | None = column("share of questions answered right")
    accuracy_low: float | None = column("95 % interval over held-out sequences, lower end")
    accuracy_high: float | None = column("95 % interval over held-out sequences, upper end")
    in_set_ratio: float | None = column("share answered with a value of the same sequence")
    reach_ceiling_ratio: float | None = column("share of questions whose pair is in reach")
    chance_in_set: float = column("accuracy of guessing among the sequence's values")
    chance_vocab: float = column("accuracy of guessing among all values")
    train_accuracy_ratio: float | None = column("on the last training batch")
    cpu_s: float | None = column("CPU time of training", unit="s")
    status: Status = column("ok, nonfinite, or error")
    note: str = column("what ended training early, or went wrong")


def jobs_of(spec: RecallSpec) -> list[Job]:
    """Returns the product of architectures, pairs, lengths and seeds."""
    archs = spec.arch or (() if spec.pattern else ("conv+attention",))
    names = [*archs, *([spec.pattern] if spec.pattern else [])]
    seeds = range(spec.seed, spec.seed + spec.seeds)
    product = itertools.product(spec.equal, names, spec.seq_len, spec.pairs, seeds)
    return [
        Job(spec, arch, pairs, seq_len, seed, equal, _width(spec, arch, names[0], seq_len, equal))
        for equal, arch, seq_len, pairs, seed in product
    ]


_WIDEST = 8
"""Times --d-model, the widest that a model gets to be equal."""


def _width(spec: RecallSpec, arch: str, first: str, seq_len: int, equal: Equal) -> int:
    """Returns the width at which `arch` has as much as `first` at --d-model, as near as it goes.

    Widths are multiples of 2 and of --heads; parameters and state grow with them.
    """
    if equal == "width" or arch == first:
        return spec.d_model

    def amount(name: str, width: int) -> int:
        stack = _stack(spec, name, width, seq_len)
        with torch.random.fork_rng(devices=[]):
            model = TokenModel(spec.vocab, width, stack)
        if equal == "params":
            return sum(p.numel() for p in model.parameters())
        return model.state_bytes(seq_len)

    wanted, step = amount(first, spec.d_model), math.lcm(2, spec.heads)
    low, high = 1, max(1, _WIDEST * spec.d_model // step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if amount(arch, middle * step) <= wanted else (low, middle)
    return min((low * step, high * step), key=lambda width: abs(amount(arch, width) - wanted))


def rows(spec: RecallSpec, jobs: Sequence[Job], live: Live) -> Iterator[TrainedRow]:
    """Yields a row a job; `live` says how far the one in training is, if it trains here."""
    journal = None
    if spec.resume is not None:
        journal = Journal("--resume", Path(spec.resume), TrainedRow)
    yield from in_order(_results(jobs, spec, live, journal))


def _results(
    jobs: Sequence[Job], spec: RecallSpec, live: Live, journal: Journal[TrainedRow] | None
) -> Iterator[tuple[int, TrainedRow]]:
    """Yields rows by the index of their job: those in the journal, then the others."""
    left = []
    for index, job in enumerate(jobs):
        row = None if journal is None else journal.find(_key(job))
        if row is None:
            left.append(index)
        else:
            yield index, row
    for position, row in _run([jobs[i] for i in left], spec, live):
        if journal is not None and row.status != "error":
            journal.add(_key(jobs[left[position]]), row)
        yield left[position], row


def _run(jobs: Sequence[Job], spec: RecallSpec, live: Live) -> Iterator[tuple[int, TrainedRow]]:
    if spec.scheduler is not None:
        from seqdiag.diagnostics.cluster import run_on_cluster

        return run_on_cluster(train, jobs, spec.scheduler, failed)
    # In other processes nobody hears.
    here = functools.partial(train, live=live) if spec.jobs == 1 else train
    return run_jobs(here, jobs, spec.jobs, failed)


def _key(job: Job) -> dict[str, object]:
    """Returns all that decides the row of a job, as JSON holds it."""
    spec = dataclasses.asdict(job.spec)
    settings = {name: spec[name] for name in _DECIDING}
    return settings | {
        "arch": job.arch,
        "pairs": job.pairs,
        "seq_len": job.seq_len,
        "seed": job.seed,
        "equal": job.equal,
        "d_model": job.d_model,
    }


_DECIDING = (
    "task", "vocab", "d_model", "heads", "window", "filler", "updates", "batch", "lr", "budget_s",
)  # fmt: skip


def train(job: Job, live: Live | None = None) -> TrainedRow:
    """Returns the row of one job, on one thread, whatever ran before in this process."""
    spec, stack = job.spec, stack_for(job)

    def tell(updates: int, accuracy: float) -> None:
        if live is not None:
            live.text = f"{job.arch}, {job.pairs} of {job.seq_len}: {accuracy:.3f} after {updates}"

    problem = _problem(job)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        model = TokenModel(spec.vocab, job.d_model, stack)
        learned = learn(
            model,
            problem,
            Recipe(spec.updates, spec.batch, spec.lr or _rate(stack.layers), spec.budget_s),
            job.seed,
            tell,
        )
        state = model.state_bytes(job.seq_len)
    finite = math.isfinite(learned.loss)
    low, high = wilson(learned.accuracy * HELD_OUT, HELD_OUT)
    cut = f"stopped by --budget after {learned.updates} of {spec.updates} updates"
    done = learned.accuracy if finite else None
    return _row(
        job,
        params=sum(p.numel() for p in model.parameters()),
        state_bytes=state,
        updates=learned.updates,
        updates_to_50=learned.to_50,
        updates_to_99=learned.to_99,
        accuracy_ratio=done,
        accuracy_low=low if finite else None,
        accuracy_high=high if finite else None,
        in_set_ratio=learned.in_set if finite else None,
        reach_ceiling_ratio=reachable(problem, job.seed, reach_of(stack)),
        train_accuracy_ratio=learned.train_accuracy if finite else None,
        cpu_s=learned.cpu_s,
        status="ok" if finite else "nonfinite",
        note="the loss is not finite; a smaller --lr" if not finite else cut * learned.cut,
    )


def failed(job: Job, reason: str) -> TrainedRow:
    """Returns the row of a job that gave no result."""
    return _row(job, status="error", note=reason)


def stack_for(job: Job) -> StackSpec:
    """Returns the stack of a job. Raises `UsageError`."""
    return _stack(job.spec, job.arch, job.d_model, job.seq_len)


def _stack(spec: RecallSpec, name: str, width: int, seq_len: int) -> StackSpec:
    arch, pattern = (None, name) if name == spec.pattern else (name, None)
    return stack_of(arch, pattern, spec.heads, spec.window, width, seq_len)


def check(job: Job) -> None:
    """Raises `UsageError` for a job that cannot run."""
    stack_for(job)
    if (reason := _problem(job).why_not()) is not None:
        raise UsageError(reason)


def _problem(job: Job) -> Problem:
    spec = job.spec
    assert spec.task is not None
    return Problem(spec.task, spec.vocab, job.seq_len, job.pairs, spec.filler == "random")


def _rate(layers: Sequence[str]) -> float:
    """Returns the learning rate: pure attention trains at a third of what the others take."""
    return 1e-3 if set(layers) <= {"attention", "sliding-attention"} else 3e-3


def _row(job: Job, **measured: object) -> TrainedRow:
    spec, stack = job.spec, stack_for(job)
    values: dict[str, object] = {
        "params": None,
        "state_bytes": None,
        "updates": None,
        "updates_to_50": None,
        "updates_to_99": None,
        "accuracy_ratio": None,
        "accuracy_low": None,
        "accuracy_high": None,
        "in_set_ratio": None,
        "reach_ceiling_ratio": None,
        "train_accuracy_ratio": None,
        "cpu_s": None,
    } | measured
    answers = spec.vocab - spec.vocab // 2 if spec.task in BOUND else spec.vocab - 2
    return TrainedRow(
        task=spec.task or "",
        arch=job.arch,
        pattern=stack.pattern,
        seq_len=job.seq_len,
        vocab=spec.vocab,
        pairs=job.pairs,
        seed=job.seed,
        equal=job.equal,
        layers=len(stack.layers),
        d_model=job.d_model,
        chance_in_set=1 / job.pairs,
        chance_vocab=1 / answers,
        **values,  # type: ignore[arg-type]
    )


def conclude(rows: Sequence[TrainedRow]) -> list[str]:
    """Says who recalls, and what kind of error the others make."""
    lines = [_sentence(row) for row in rows if row.accuracy_ratio is not None][:12]
    lines += regimes(rows)
    stopped = sum(bool(row.note) for row in rows if row.status == "ok")
    reasons = dict.fromkeys(row.note for row in rows if row.status != "ok")
    lines += [f"Some rows have no result: {reason}." for reason in reasons]
    if stopped:
        lines.append(
            f"{stopped} of {len(rows)} rows did not train to the end: their accuracy is a lower "
            "bound. Give more --budget."
        )
    if any(row.accuracy_ratio is not None for row in rows):
        lines.append(
            "chance_in_set is what a model scores that knows the values but not their keys. Try "
            "more pairs, or --arch conv+attention,conv+delta,conv+elu+1."
        )
    return lines


def _sentence(row: TrainedRow) -> str:
    assert row.accuracy_ratio is not None and row.in_set_ratio is not None
    alike = "" if row.equal == "width" else f" at equal {row.equal}"
    head = f"{row.arch}, {row.pairs} of {row.seq_len}{alike}: {row.accuracy_ratio:.3f} right"
    if row.updates_to_99 is not None:
        return f"{head} after {row.updates_to_99} updates."
    ceiling = row.reach_ceiling_ratio
    if ceiling is not None and ceiling < 1 and abs(ceiling - row.accuracy_ratio) < 0.03:
        return f"{head}: all that its reach allows ({ceiling:.3f})."
    wrong = row.in_set_ratio - row.accuracy_ratio
    return f"{head}, {wrong:.3f} a value of another key, {1 - row.in_set_ratio:.3f} no value of it."


_KINDS = ("hybrid", "attention", "state")


def kind_of(pattern: str) -> str:
    """Returns attention, state or hybrid: what the layers of a pattern remember with."""
    attends = [letter in "aw" for letter in pattern]
    return "attention" if all(attends) else "hybrid" if any(attends) else "state"


def regimes(rows: Sequence[TrainedRow]) -> list[str]:
    """Says at which length and load a hybrid beats both pure kinds, and what was not equal.

    A hybrid wins a cell if its accuracy, the mean over seeds, is ahead by more than 0.02, or if
    all who come as far need more updates to 99 %. Nothing is said unless all three kinds are there.
    """
    done = [row for row in rows if row.accuracy_ratio is not None]
    lines = []
    for equal in dict.fromkeys(row.equal for row in done):
        lines += _regimes([row for row in done if row.equal == equal], equal)
    return lines


def _regimes(done: Sequence[TrainedRow], equal: str) -> list[str]:
    if {kind_of(row.pattern) for row in done} != set(_KINDS):
        return []
    cells = list(dict.fromkeys((row.seq_len, row.pairs) for row in done))
    won = {cell: _winner(done, cell) for cell in cells}
    alike = f"At equal {equal}, " if equal != "width" else ""
    lines = [
        f"{alike}{pairs} pairs in {seq_len} tokens: {won[seq_len, pairs]}."
        for seq_len, pairs in cells
    ]
    ahead = sum(text.startswith("hybrid is ahead") for text in won.values())
    params = [row.params for row in done if row.params is not None]
    states = [row.state_bytes for row in done if row.state_bytes is not None]
    lines.append(
        f"{alike or 'At equal width, '}the hybrid is ahead in {ahead} of {len(cells)} cells. "
        f"Parameters {min(params)} to {max(params)}, state {min(states)} to {max(states)} bytes; "
        f"{len({row.seed for row in done})} seed(s), one learning rate, accuracy after a limited "
        "training is a lower bound."
    )
    return lines


def _winner(rows: Sequence[TrainedRow], cell: tuple[int, int]) -> str:
    """Returns which kind is ahead in a cell of length and load, with the scores of all."""
    scores = {}
    for kind in _KINDS:
        own = [r for r in rows if (r.seq_len, r.pairs) == cell and kind_of(r.pattern) == kind]
        if own:
            accuracy = sum(r.accuracy_ratio or 0 for r in own) / len(own)
            updates = sum(r.updates_to_99 or math.inf for r in own) / len(own)
            scores[kind] = (accuracy, updates)
    shown = ", ".join(
        f"{kind} {accuracy:.3f}" + (f" ({updates:.0f} updates to 99 %)" if updates < 1e9 else "")
        for kind, (accuracy, updates) in scores.items()
    )
    best = max(accuracy for accuracy, _ in scores.values())
    level = {kind: updates for kind, (a, updates) in scores.items() if a >= best - 0.02}
    fastest = min(level.values())
    first = [kind for kind, updates in level.items() if updates == fastest]
    return f"{first[0]} is ahead: {shown}" if len(first) == 1 else f"level: {shown}"
