"""The gate: an implementation is timed on a problem only after it was right on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.diagnostics.attn_bench.exact import compute, sampled_queries
from seqdiag.diagnostics.attn_bench.needles import Needles, leaks, probe
from seqdiag.diagnostics.attn_bench.problem import Problem
from seqdiag.measure.error import Error, error_of, why_inaccurate, worst
from seqdiag.ops.registry import Implementation
from seqdiag.predict.work import Pass
from seqdiag.report.schema import Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found."""

    status: Status
    note: str
    error: Error | None = None
    ratio: float | None = None
    needles_failed: int | None = None


class Gate:
    """The exact results of a problem and the error of a naive run, computed once for all."""

    def __init__(self, problem: Problem, inputs: tuple[Tensor, ...], backward: bool) -> None:
        self._problem = problem
        self._rows = sampled_queries(problem.shape, problem.seed)
        q, k, v, d_out = inputs
        if backward and len(self._rows) < problem.shape.q_len:
            # The gradients are then exact from the sampled queries alone.
            kept = torch.zeros_like(d_out)
            rows = self._rows.to(d_out.device)
            kept[:, :, rows] = d_out[:, :, rows]
            d_out = kept
        self._inputs = q, k, v, d_out
        self._exact = compute(problem, self._inputs, self._rows, torch.float64, backward)
        self._naive = compute(problem, self._inputs, self._rows, problem.dtype, backward)

    def judge(self, implementation: Implementation, which: Pass) -> Verdict:
        """Returns whether an implementation is right, and by how much it errs."""
        needles, leaky = Needles(0, 0), False
        if which != "bwd":
            needles = probe(self._problem, implementation)
            leaky = leaks(self._problem, implementation)
        pairs = self._errors(implementation, which)
        error = worst(ours for ours, _ in pairs)
        ratio = max(ours.ratio_to(naive) for ours, naive in pairs)
        reasons = [why_inaccurate(*pair, self._problem.dtype) for pair in pairs]
        reason = next(filter(None, reasons), None)
        failed = needles.failed if which != "bwd" else None
        if error.nonfinite:
            return Verdict(
                "nonfinite", f"{error.nonfinite} values are not finite", error, ratio, failed
            )
        if needles.failed:
            note = f"{needles.failed} of {needles.probed} needles: {needles.first}"
            return Verdict("inaccurate", note, error, ratio, failed)
        if reason is not None:
            return Verdict("inaccurate", reason, error, ratio, failed)
        note = "NaN in a hidden key leaks into the output" if leaky else ""
        return Verdict("ok", note, error, ratio, failed)

    def _errors(self, implementation: Implementation, which: Pass) -> list[tuple[Error, Error]]:
        """Returns the errors of the implementation and of the naive run, tensor by tensor."""
        q, k, v, d_out = self._inputs
        rows = self._rows.to(q.device)
        pairs = []
        if which != "bwd":
            with torch.no_grad():
                out = self._problem.call(implementation.run, q, k, v)
            pairs.append((out[:, :, rows], self._exact.out, self._naive.out))
        if which != "fwd":
            dq, dk, dv = self._problem.gradients(implementation.run, q, k, v, d_out)
            found = dq[:, :, rows], dk, dv
            pairs += zip(found, self._exact.gradients, self._naive.gradients, strict=True)
        return [
            (error_of(ours, exact, self._noise), error_of(naive, exact, self._noise))
            for ours, exact, naive in pairs
        ]

    @property
    def _noise(self) -> float:
        """Below this rms a gradient is zero: with one key a query the softmax does not move."""
        shape = self._problem.shape
        return 1.0 if shape.pairs <= shape.q_len else 0.0


def repeats_bitwise(
    problem: Problem, implementation: Implementation, which: Pass, inputs: tuple[Tensor, ...]
) -> bool:
    """Returns whether ten runs give the same bits."""
    q, k, v, d_out = inputs

    def once() -> tuple[Tensor, ...]:
        if which == "fwd":
            with torch.no_grad():
                return (problem.call(implementation.run, q, k, v),)
        return problem.gradients(implementation.run, q, k, v, d_out)

    first = once()
    return all(all(torch.equal(a, b) for a, b in zip(first, once(), strict=True)) for _ in range(9))
