"""What is measured: a form of a scan, or what stands beside the scans, behind one face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seqdiag.diagnostics.ssm_bench.checking import Checked, Truth, check
from seqdiag.diagnostics.ssm_bench.forms import (
    CHUNKS,
    FORMS,
    FORWARD_ONLY,
    INTERPRETED,
    takes_chunk,
    why_not,
)
from seqdiag.diagnostics.ssm_bench.problems import Problem, draw, shape_of
from seqdiag.diagnostics.ssm_bench.spec import Pass, SsmBenchSpec
from seqdiag.errors import is_memory
from seqdiag.measure.allocation import available_bytes
from seqdiag.predict.scan_work import Kind
from seqdiag.report.schema import Status
from seqdiag.units import format_bytes

Call = Callable[[], Any]
_USUAL_BOUNDARY = 64
_GRAPH = 4
"""How many times its forward memory a form may hold for its backward pass."""


@dataclass(slots=True)
class Candidate:
    """One thing to check and to time at one length."""

    implementation: str
    kind: str
    seq_len: int
    device: str
    chunk: int | None = None
    timed: bool = True
    forward_only: bool = False
    flop_count: int | None = None
    min_flop_count: int | None = None
    min_bytes: int | None = None
    state_bytes: int | None = None
    refused: tuple[Status, str] | None = None
    check: Callable[[], Checked] = field(default=lambda: Checked("ok", ""))
    forward: Callable[[list[Tensor]], list[Tensor]] | None = None
    """The results for its operands, differentiable."""
    operands: list[Tensor] = field(default_factory=list)
    extra_note: str = ""

    def run_check(self) -> Checked:
        """Returns what the gate found; what goes wrong is a status."""
        if self.refused is not None:
            return Checked(*self.refused)
        try:
            return self.check()
        except Exception as error:
            return Checked(*status_of(error))

    def call(self, pass_: Pass) -> Call:
        """Returns the call that a pass is, with what comes before it done."""
        forward = self.forward
        assert forward is not None
        if pass_ == "fwd":

            def run() -> Any:
                with torch.no_grad():
                    return forward(self.operands)

            return run
        leaves = [x.detach().clone().requires_grad_() for x in self.operands]
        results = forward(leaves)
        generator = torch.Generator().manual_seed(3)
        weights = [torch.randn(r.shape, generator=generator).to(r) for r in results]
        if pass_ == "both":
            return lambda: torch.autograd.grad(forward(leaves), leaves, weights)
        return lambda: torch.autograd.grad(results, leaves, weights, retain_graph=True)


def status_of(error: Exception) -> tuple[Status, str]:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    if is_memory(error):
        return "oom", reason
    return "error", reason


def scans(spec: SsmBenchSpec, kind: Kind, steps: int, device: torch.device) -> list[Candidate]:
    """Returns the forms of a kind at one length, all on the same inputs."""
    shape = shape_of(spec, kind, steps)
    wanted = 4 * shape.min_bytes(8)  # in the dtype, in float64, and two results of each
    room = available_bytes(device)
    if room is not None and wanted > room:
        reason = f"needs about {format_bytes(wanted)} with its reference, {format_bytes(room)} free"
        return [
            _bare(spec, kind, steps, *each, refused=("oom", reason)) for each in _each(spec, kind)
        ]
    problem = draw(spec, kind, steps, device)
    truth: list[Truth] = []  # made by the first that needs it

    def shared_truth() -> Truth:
        if not truth:
            truth.append(Truth(problem))
        return truth[0]

    return [
        _scan(spec, problem, shared_truth, name, chunk, room) for name, chunk in _each(spec, kind)
    ]


def _each(spec: SsmBenchSpec, kind: Kind) -> list[tuple[str, int | None]]:
    """Returns the forms with their chunks; a form without chunks comes once."""
    found: list[tuple[str, int | None]] = []
    for name in spec.forms(kind):
        swept = spec.chunk if spec.chunk is not None and takes_chunk(name) else (None,)
        found += [(name, chunk) for chunk in swept]
    return found


def _bare(
    spec: SsmBenchSpec,
    kind: Kind,
    steps: int,
    name: str,
    chunk: int | None,
    refused: tuple[Status, str] | None = None,
) -> Candidate:
    shape, itemsize = shape_of(spec, kind, steps), getattr(torch, spec.dtype).itemsize
    interpreted = name in INTERPRETED
    form = FORMS[name].impl
    usual = chunk or CHUNKS.get(kind) if form in ("chunked", "triton") else None
    return Candidate(
        implementation=name,
        kind=kind,
        seq_len=steps,
        device="cpu (interpreter)" if interpreted else "",
        chunk=usual,
        timed=not interpreted,
        forward_only=name in FORWARD_ONLY,
        flop_count=shape.flops("chunked" if form == "triton" else form, usual),
        min_flop_count=shape.min_flops,
        min_bytes=shape.min_bytes(itemsize),
        state_bytes=shape.state_numbers * max(itemsize, 4),
        refused=refused,
    )


def _scan(
    spec: SsmBenchSpec,
    problem: Problem,
    truth: Callable[[], Truth],
    name: str,
    chunk: int | None,
    room: int | None,
) -> Candidate:
    form, device = FORMS[name], problem.driven.device
    found = _bare(spec, problem.kind, problem.steps, name, chunk)
    facts = problem.facts(chunk, gradient=False, has_state=False)
    programs = spec.batch * -(-spec.d_model // 32)
    found.refused = why_not(name, problem.kind, facts, device, programs)  # type: ignore[assignment]
    shape = shape_of(spec, problem.kind, problem.steps)
    need = shape.materialised_bytes(form.impl, problem.driven.element_size())
    need *= 1 if spec.pass_ == ("fwd",) else _GRAPH
    if found.refused is None and room is not None and need > room:
        reason = f"needs about {format_bytes(need)}, {format_bytes(room)} are free"
        found.refused = ("oom", reason)
    carries = why_not(
        name, problem.kind, problem.facts(chunk, False, has_state=True), device, programs
    )

    def run(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
        return p.scan(form.impl, chunk, h0)

    found.check = lambda: check(
        truth(),
        run,
        boundary=found.chunk or _USUAL_BOUNDARY,
        takes_state=carries is None,
        gradients=spec.pass_ != ("fwd",) and not found.forward_only,
    )
    names = list(problem.inputs)
    found.operands = list(problem.inputs.values())

    def forward(operands: list[Tensor]) -> list[Tensor]:
        inputs = dict(zip(names, operands, strict=True))
        return [run(Problem(problem.kind, inputs, problem.softplus), None)[0]]

    found.forward = forward
    return found
