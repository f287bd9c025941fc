"""From a subject to what its outputs see."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from seqdiag.diagnostics.receptive_field.fitting import feed_long_enough
from seqdiag.diagnostics.receptive_field.predicting import long_enough
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.diagnostics.receptive_field.subjects import Subject
from seqdiag.errors import UsageError
from seqdiag.measure.connections import Suspects, gradient_mass
from seqdiag.measure.reach import (
    Leak,
    Matrix,
    amplified,
    bounds,
    ids_lookahead,
    leaks,
    lookahead,
    response_matrix,
    stride_of,
)
from seqdiag.measure.replacement import Replacement, seeded, tolerance
from seqdiag.models.adapting import Fed
from seqdiag.predict.receptive_field import Field, StructureError, predict_field
from seqdiag.predict.receptive_field.field import own_last
from seqdiag.predict.receptive_field.positions import positions

_WORK = 4e10
"""Multiplications that replacing every single input may take; beyond it, cuts find the ends."""
_LEAST_PARAMETERS = 80_000
"""Smaller modules take as long for each step as one of this size."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one output responds to."""

    first: int | None
    last: int | None
    count: int | None
    probe: str

    @property
    def steps(self) -> int | None:
        if self.first is None or self.last is None:
            return None if self.count is None else 0
        return self.last - self.first + 1


@dataclass(slots=True)
class Measured:
    """One subject at one length."""

    subject: Subject
    fed: Fed
    probe: Replacement
    seq_len: int
    n_outputs: int
    stride: Fraction | None
    own: list[int]
    """The last input that each output may see."""
    predicted: Field | None
    watched: Suspects
    """What a forward pass calls that usually lets the future in."""
    matrix: Matrix | None = None
    leaks: list[Leak] = field(default_factory=list)
    lookahead: int | None = None
    leak_probe: str = ""
    finite: bool = True
    notes: list[str] = field(default_factory=list)
    _bounds: dict[tuple[int, float], tuple[int, int] | None] = field(default_factory=dict)

    def bounds(self, output: int, scale: float = 1.0) -> tuple[int, int] | None:
        """Returns the first and last input that an output responds to, by cuts."""
        key = (output, scale)
        if key not in self._bounds:
            self._bounds[key] = bounds(self.probe, output, scale)
        return self._bounds[key]

    @property
    def causal(self) -> bool | None:
        if self.lookahead is None:
            return None
        return self.lookahead <= 0

    @property
    def sees_the_end(self) -> bool:
        """Whether the future is seen as far as the sequence goes."""
        if self.lookahead is None or self.lookahead <= 0:
            return False
        if self.predicted is not None and self.predicted.lookahead is None:
            return True
        return self.lookahead >= self.seq_len - 1 - self.own[0]

    def expected(self, output: int) -> tuple[int, int, int] | None:
        """Returns the first, last and number of inputs that the structure reads here."""
        if self.subject.structure is None or self.predicted is None:
            return None
        read = self.subject.structure.reads(positions([output]), self.seq_len)
        return (read.first, read.last, read.count) if read.bits else None


def measure(spec: ReceptiveFieldSpec, subject: Subject, device: torch.device) -> Measured:
    """Returns what replacing inputs shows of one subject."""
    predicted = _predicted(subject)
    seq_len = long_enough(spec, subject.structure, predicted)
    fed, seq_len, said = feed_long_enough(spec, subject, device, seq_len)
    if spec.seed_forward:
        ids = fed.run_ids and seeded(fed.run_ids, spec.seed)
        fed = dataclasses.replace(fed, run=seeded(fed.run, spec.seed), run_ids=ids)
    watched = Suspects(seq_len)
    with subject.guarded():
        probe = Replacement(fed.run, fed.inputs, spec.seed, tolerance(fed.inputs.dtype))
        with watched:
            random = probe.is_random()
        if random:
            mode = "train" if spec.train_mode else "eval"
            raise UsageError(
                f"{subject.name} is random in {mode} mode: the same input gives two outputs",
                hint="--seed-forward puts the random stream at the same place for every pass",
            )
        measured = Measured(
            subject=subject,
            fed=fed,
            probe=probe,
            seq_len=seq_len,
            n_outputs=probe.n_outputs,
            stride=None,
            own=[],
            predicted=predicted,
            watched=watched,
            notes=[*filter(None, [subject.note]), *said],
        )
        if not probe.finite(1.0):
            measured.finite = False
            measured.notes.append("the outputs are not finite")
            return measured
        if not probe.finite(1e3):
            measured.notes.append("not finite at inputs 1000 times as large: those are left out")
        _judge(spec, measured)
    return measured


def _predicted(subject: Subject) -> Field | None:
    if subject.structure is None:
        return None
    try:
        return predict_field(subject.structure)
    except StructureError:
        return None


def _judge(spec: ReceptiveFieldSpec, measured: Measured) -> None:
    """Finds the alignment, the leaks and, where that is cheap enough, the whole matrix."""
    probe, structure = measured.probe, measured.subject.structure
    work = float(measured.seq_len) ** 2 * max(_LEAST_PARAMETERS, _parameters(measured.subject))
    if work <= _WORK or spec.leaks_csv is not None:
        measured.matrix = response_matrix(probe)
    measured.stride = _stride(measured)
    if structure is not None and measured.stride is not None:
        lengths = structure.length(measured.seq_len)
        if lengths != measured.n_outputs:
            raise AssertionError(f"{lengths} outputs expected, {measured.n_outputs} there")
    if measured.stride is None:
        return
    measured.own = _own(spec, measured)
    measured.leaks = leaks(probe, measured.own)
    _look_ahead(measured)
    if measured.fed.run_ids is not None and measured.n_outputs == measured.seq_len:
        _look_ahead_by_ids(measured, measured.fed.run_ids, measured.fed.vocab or 2, spec.seed)


def _look_ahead_by_ids(
    measured: Measured, run_ids: Callable[[Tensor], Tensor], vocab: int, seed: int
) -> None:
    """Replaces the token ids themselves: a module may read them beside its embedding."""
    ahead = ids_lookahead(run_ids, measured.own, vocab, seed, measured.probe.tolerances)
    if ahead <= max(0, measured.lookahead or 0):
        return
    measured.lookahead = ahead
    shown = "suffix replacement of token ids"
    measured.leak_probe = " and ".join(filter(None, [measured.leak_probe, shown]))
    measured.notes.append("the ids of later tokens get in beside the embedding that was probed")


def _parameters(subject: Subject) -> int:
    return sum(parameter.numel() for parameter in subject.module.parameters())


def _stride(measured: Measured) -> Fraction | None:
    """Returns the input steps between outputs: known, one for one, or from the responses."""
    if measured.predicted is not None:
        return measured.predicted.stride
    if measured.n_outputs == measured.seq_len:
        return Fraction(1)
    first: list[int | None]
    last: list[int | None]
    if measured.matrix is not None:
        first, last = _ends(measured.matrix)
    else:
        first, last = [None] * measured.n_outputs, [None] * measured.n_outputs
        for n in {measured.n_outputs // 3, 2 * measured.n_outputs // 3}:
            found = measured.bounds(n)
            if found is not None:
                first[n], last[n] = found
    try:
        return stride_of(first, last, measured.seq_len)
    except ValueError:
        measured.notes.append(
            f"{measured.n_outputs} outputs for {measured.seq_len} inputs, and nothing tells which "
            "belong together: try a longer --seq-len"
        )
        return None


def _ends(matrix: Matrix) -> tuple[list[int | None], list[int | None]]:
    first: list[int | None] = []
    last: list[int | None] = []
    for row in matrix.leaks.tolist():
        seen = [step for step, responds in enumerate(row) if responds]
        first.append(seen[0] if seen else None)
        last.append(seen[-1] if seen else None)
    return first, last


def _own(spec: ReceptiveFieldSpec, measured: Measured) -> list[int]:
    """Returns the last input that each output may see, by the alignment asked for.

    A sequence that keeps its stride of 1 but not its length has two alignments: unless one is
    asked for, the one that lets an output see less counts.
    """
    assert measured.stride is not None
    outputs, length, stride = measured.n_outputs, measured.seq_len, measured.stride
    start = [own_last(n, stride) for n in range(outputs)]
    surplus = math.floor((outputs - 1) * stride) + max(1, math.floor(stride)) - length
    end = [own - surplus for own in start]
    if stride == 1 and outputs != length:
        measured.notes.append(
            f"{outputs} outputs for {length} inputs: "
            + (f"aligned at their {spec.align}s" if spec.align else _both_alignments(surplus))
        )
    if spec.align == "end":
        return end
    if spec.align is None and stride == 1:
        return [min(pair) for pair in zip(start, end, strict=True)]
    return start


def _both_alignments(surplus: int) -> str:
    if surplus > 0:
        return (
            f"if the last ones belong together, an output sees {surplus} steps further ahead than "
            f"if the first ones do (then cut the last {surplus}); --align start or end says which"
        )
    return (
        f"if the first ones belong together, an output sees {-surplus} steps further ahead than "
        "if the last ones do; --align start or end says which"
    )


def _look_ahead(measured: Measured) -> None:
    """Sets how far outputs see beyond their own time, and which probe shows it."""
    own = measured.own
    by_cut = max((leak.cut - own[leak.output] for leak in measured.leaks), default=None)
    shown = ["suffix replacement"] if measured.leaks else []
    if measured.matrix is not None:
        single = lookahead(measured.matrix, own)
        if single is not None and single > 0:
            shown.append("single replacement")
        measured.lookahead = max((a for a in (by_cut, single) if a is not None), default=None)
    elif measured.leaks:
        # The furthest input that a leaking output sees, of the outputs at both ends and between.
        outputs = sorted({leak.output for leak in measured.leaks})
        ahead = [by_cut or 0]
        for n in {outputs[0], outputs[len(outputs) // 2], outputs[-1]}:
            scale = max(leak.scale for leak in measured.leaks if leak.output == n)
            found = measured.bounds(n, scale)
            ahead += [found[1] - own[n]] if found else []
        measured.lookahead = max(ahead)
    else:
        found = measured.bounds(measured.n_outputs - 1)
        measured.lookahead = None if found is None else found[1] - own[-1]
        measured.lookahead = min(0, measured.lookahead) if measured.lookahead is not None else None
    if measured.lookahead is None:
        measured.lookahead = _weak_lookahead(measured)
    if measured.leaks and all(leak.scale != 1.0 for leak in measured.leaks):
        shown[0] += " of inputs 1000 times as large"
    measured.leak_probe = " and ".join(shown)


def _weak_lookahead(measured: Measured) -> int | None:
    """Returns how far ahead the middle output sees when nothing of ordinary size shows."""
    middle = measured.n_outputs // 2
    steps = range(measured.seq_len)
    if measured.matrix is None:
        steps = steps[:: max(1, measured.seq_len // 64)]
    found = amplified(measured.probe, middle, list(steps))
    if not found:
        measured.notes.append("no output responds to any input")
        return None
    return max(found) - measured.own[middle]


def seen_by(measured: Measured, output: int) -> Seen:
    """Returns what `output` responds to."""
    if measured.matrix is not None:
        return _seen_in_matrix(measured, measured.matrix, output)
    found = measured.bounds(output)
    if found is None:
        return Seen(None, None, 0, "prefix and suffix replacement")
    first, last = found
    probe = "prefix and suffix replacement"
    expected = measured.expected(output)
    if expected is not None and expected[0] < first:
        weak, how = _weak(measured, output, [expected[0]])
        first, probe = min([first, *weak]), f"{probe}{how}"
    return Seen(first, last, None, probe)


def _weak(measured: Measured, output: int, steps: list[int]) -> tuple[set[int], str]:
    """Returns which of `steps` show a response when made large, or else a gradient; and which.

    A gradient counts only where the structure has a connection as well: it is too weak to be told
    from rounding by itself.
    """
    found = amplified(measured.probe, output, steps)
    how = f", made up to {max(found.values()):.0e} times as large" if found else ""
    left = [step for step in steps if step not in found]
    if (
        left
        and measured.expected(output) is not None
        and measured.fed.inputs.dtype == torch.float64
    ):
        mass = gradient_mass(measured.fed.run, measured.fed.inputs, output, 0)
        by_gradient = {step for step in left if mass[step] > 0}
        if by_gradient:
            how += ", and the gradient where that fades below rounding"
        return set(found) | by_gradient, how
    return set(found), how


def _seen_in_matrix(measured: Measured, matrix: Matrix, output: int) -> Seen:
    own = measured.own[output] if measured.own else measured.seq_len - 1
    responds, leaking = matrix.responds[output].tolist(), matrix.leaks[output].tolist()
    seen = {s for s in range(measured.seq_len) if (responds if s <= own else leaking)[s]}
    unseen = [s for s in range(min(own + 1, measured.seq_len)) if s not in seen]
    expected = measured.expected(output)
    if expected is not None and measured.subject.structure is not None:
        reads = set(measured.subject.structure.reads(positions([output]), measured.seq_len))
        unseen = [s for s in unseen if s in reads]
    weak, how = _weak(measured, output, unseen) if unseen else (set(), "")
    seen |= weak
    probe = f"single replacement{how}"
    if not seen:
        return Seen(None, None, 0, probe)
    return Seen(min(seen), max(seen), len(seen), probe)


def chosen_outputs(spec: ReceptiveFieldSpec, measured: Measured) -> Sequence[int]:
    """Returns the outputs of --position."""
    last = measured.n_outputs - 1
    if spec.position == "all":
        return range(measured.n_outputs)
    if spec.position == "last" or (spec.position is None and not _centred(measured)):
        return [last]
    if spec.position in (None, "middle"):
        return [last // 2]
    output = int(spec.position or 0)
    if output > last:
        raise UsageError(
            f"--position: {output} is not among the outputs of {measured.subject.name}, 0 to {last}"
        )
    return [output]


def _centred(measured: Measured) -> bool:
    """Whether outputs look a little ahead, so that the last one would see only half its field."""
    return (measured.lookahead or 0) > 0 and not measured.sees_the_end
