"""The gate: what a form computed, held to float64 and to the step-by-step form."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.diagnostics.ssm_bench.problems import Problem, Result
from seqdiag.measure.error import Error, error_of, why_inaccurate
from seqdiag.report.schema import Status

DUAL = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far two forms of one function may lie apart, over the largest output."""
_GRADIENT = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_PROBED_CHANNELS = 8
_GROWTH, _LOOSE, _DOUBLE = 1e6, 64.0, 1e-12
_FIRST = 16
_LARGEST_PROBE = 2**22
"""Numbers of (T, D, N) beyond which gradients are not probed: a loop's graph holds several."""


class Truth:
    """What the forms of a problem are held to: the recurrence, step by step."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        with torch.no_grad():
            self.exact = problem.recurrence(torch.float64)
            self.stepped = problem.recurrence()
            self.narrow = problem.narrow(_PROBED_CHANNELS)
            self.state = _random_like(self.narrow.empty_state(torch.float32))
            self.carried = self.narrow.recurrence(torch.float64, self.state)
        self.naive = error_of(self.stepped, self.exact)
        self.scale = float(self.exact[0].abs().max())
        self._impulses: dict[int, tuple[list[int], Problem, Tensor]] = {}
        self._gradients: dict[str, Tensor] | None = None

    @property
    def grows_from(self) -> int | None:
        """The first step that is not finite, or whose output is a million times the first ones'."""
        size = _by_step(self.exact[0]).nan_to_num(math.inf)
        first = size[:_FIRST]
        usual = first[torch.isfinite(first)]
        limit = _GROWTH * (float(usual.max()) if len(usual) else 0.0)
        beyond = ((size > limit) | torch.isinf(size)).nonzero()
        return int(beyond[0]) if len(beyond) else None

    def impulses(self, boundary: int) -> tuple[list[int], Problem, Tensor]:
        """Returns steps, one sequence with an impulse at each, and the responses in float64."""
        if boundary not in self._impulses:
            narrow = self.narrow
            last = narrow.steps - 1
            around = (0, boundary - 1, boundary, boundary + 1, last)
            steps = sorted({t for t in around if 0 <= t <= last})
            x = torch.zeros(len(steps), *narrow.driven.shape[1:]).to(narrow.driven)
            x[range(len(steps)), steps] = 1.0
            probed = narrow.driven_by(x)
            with torch.no_grad():
                self._impulses[boundary] = steps, probed, probed.recurrence(torch.float64)[0]
        return self._impulses[boundary]

    def gradients(self) -> dict[str, Tensor]:
        """Returns the gradients of the narrow problem's operands in float64."""
        if self._gradients is None:
            doubled = {n: x.double() for n, x in self.narrow.inputs.items()}
            exact = Problem(self.narrow.kind, doubled, self.narrow.softplus)
            dtype = self.narrow.driven.dtype
            self._gradients = _gradient_of(exact, lambda p: p.scan("loop"), dtype)
        return self._gradients


@dataclass(frozen=True, slots=True)
class Checked:
    """What the gate found."""

    status: Status
    note: str
    first_call_ms: float | None = None
    error: Error | None = None
    dual: float | None = None
    first_step: int | None = None
    drift: tuple[float, float, float] | None = None
    """Error at the first, middle and last eighth of the sequence, over the largest output."""


def check(
    truth: Truth,
    run: Callable[[Problem, Tensor | None], Result],
    *,
    boundary: int,
    takes_state: bool,
    gradients: bool,
) -> Checked:
    """Runs a form once on the whole problem, then its probes on a narrow one.

    `run` is the form, from a state or from none. Probes: impulses at both sides of a chunk
    `boundary` read at every step, a sequence cut at an odd step with the state carried over, the
    gradients of every operand for a loss on y and the last state.
    """
    start = time.perf_counter()
    with torch.no_grad():
        result = run(truth.problem, None)
    if result[0].device.type == "cuda":
        torch.cuda.synchronize()
    first_call_ms = (time.perf_counter() - start) * 1e3
    dtype = truth.problem.driven.dtype
    step, grows = _first_nonfinite(result[0]), truth.grows_from
    if grows is not None:
        onset = grows if step is None else min(grows, step)
        note = f"the recurrence grows: from step {onset} on it is not finite or a million times"
        return Checked("nonfinite", f"{note} what it was", first_call_ms, first_step=onset)
    if step is not None:
        note = f"not finite from step {step} on, though the recurrence is"
        return Checked("nonfinite", note, first_call_ms, first_step=step)
    error = error_of(result, truth.exact)
    apart = _by_step(result[0].double() - truth.stepped[0].double()) / truth.scale
    dual = float(apart.max())
    reasons = [_why_inaccurate(error, truth.naive, dtype)]
    if dual > DUAL[dtype]:
        reasons.append(f"differs from the step form by {dual:.2g}")
    reasons += _impulses(truth, run, boundary)
    if takes_state:
        reasons += _carried(truth, run)
    if gradients:
        reasons += _gradients(truth, run)
    found = [reason for reason in reasons if reason]
    wrong = _by_step(result[0].double() - truth.exact[0]) / truth.scale
    beyond = (wrong > _LOOSE * torch.finfo(dtype).eps).nonzero()
    first = int(beyond[0]) if found and len(beyond) else None
    status: Status = "inaccurate" if found else "ok"
    return Checked(status, "; ".join(found), first_call_ms, error, dual, first, _drift(wrong))


def _why_inaccurate(error: Error, naive: Error, dtype: torch.dtype) -> str | None:
    """Returns why a result is too far from float64, where the naive run is the truth itself."""
    if dtype != torch.float64:
        return why_inaccurate(error, naive, dtype)
    if error.rel_rms <= _DOUBLE:
        return None
    return f"rms error {error.rel_rms:.2g}, allowed {_DOUBLE:.2g}"


def _impulses(truth: Truth, run: Callable[..., Result], boundary: int) -> list[str]:
    """Checks the response to one input at a time, at the ends and around a chunk's boundary."""
    steps, probed, expected = truth.impulses(boundary)
    with torch.no_grad():
        response = run(probed, None)[0].double()
    found = []
    for k, step in enumerate(steps):
        scale = expected[k].abs().max().clamp(min=1e-30)
        wrong = _by_step((response[k] - expected[k]).unsqueeze(0)) / scale
        worst = float(wrong.max())
        if not worst <= DUAL[probed.driven.dtype]:
            found.append(
                f"an impulse at step {step} is off by {worst:.2g} at {int(wrong.argmax())}"
            )
    return found


def _carried(truth: Truth, run: Callable[..., Result]) -> list[str]:
    """Checks a sequence cut at an odd step, from a random state, against the whole."""
    narrow, dtype = truth.narrow, truth.narrow.driven.dtype
    state = truth.state.to(torch.float64 if dtype == torch.float64 else torch.float32)
    cut = narrow.steps // 2 | 1
    exact_y, exact_last = truth.carried
    with torch.no_grad():
        if cut >= narrow.steps:
            y, last = run(narrow, state)
        else:
            first, middle = run(narrow.cut(slice(0, cut)), state)
            second, last = run(narrow.cut(slice(cut, None)), middle)
            y = torch.cat([first, second], 1)
    found = []
    for what, ours, exact in (("output", y, exact_y), ("last state", last, exact_last)):
        apart = float((ours.double() - exact).abs().max() / exact.abs().max())
        if not apart <= DUAL[dtype]:
            found.append(f"cut at step {cut} and carried on, the {what} is off by {apart:.2g}")
    return found


def _gradients(truth: Truth, run: Callable[..., Result]) -> list[str]:
    """Checks the gradients of every operand for a random loss, given as a transposed tensor."""
    narrow, dtype = truth.narrow, truth.narrow.driven.dtype
    if narrow.empty_state(dtype).numel() * narrow.steps > _LARGEST_PROBE:
        return []
    ours, theirs = _gradient_of(narrow, lambda p: run(p, None), dtype), truth.gradients()
    found = []
    for name, got in ours.items():
        apart = float((got.double() - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-30))
        if not apart <= _GRADIENT[dtype]:
            found.append(f"the gradient of {name} is off by {apart:.2g}")
    return found


def _gradient_of(
    problem: Problem, run: Callable[[Problem], Result], dtype: torch.dtype
) -> dict[str, Tensor]:
    leaves = {n: x.detach().clone().requires_grad_() for n, x in problem.inputs.items()}
    y, last = run(Problem(problem.kind, leaves, problem.softplus))
    generator = torch.Generator().manual_seed(1)
    weights = []
    for r in (y, last):  # drawn transposed: the gradient of a result is seldom contiguous
        turned = torch.randn(r.transpose(1, -1).shape, generator=generator)
        weights.append(turned.transpose(1, -1).to(dtype).to(r))
    found = torch.autograd.grad([y, last], list(leaves.values()), weights)
    return dict(zip(leaves, found, strict=True))


def _random_like(state: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(state.shape, generator=generator).to(state)


def _by_step(difference: Tensor) -> Tensor:
    """Returns the largest absolute value of each step, of (B, T, ...)."""
    return difference.abs().transpose(0, 1).flatten(1).amax(1)


def _first_nonfinite(y: Tensor) -> int | None:
    bad = ~torch.isfinite(y).transpose(0, 1).flatten(1).all(1)
    return int(bad.nonzero()[0]) if bad.any() else None


def _drift(errors: Tensor) -> tuple[float, float, float]:
    eighth = max(1, len(errors) // 8)
    middle = (len(errors) - eighth) // 2
    parts = (errors[:eighth], errors[middle : middle + eighth], errors[-eighth:])
    first, half, last = (float(p.max()) for p in parts)
    return first, half, last
