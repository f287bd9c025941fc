"""One scan problem: its inputs, the scan over them, and one step of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.ops.scan import ScanProblem, invariant_scan, linear_scan, selective_scan, ssd_scan
from seqdiag.ops.scan.steps import invariant_step, linear_step, selective_step, ssd_step
from seqdiag.predict.scan_work import Kind, ScanShape

Result = tuple[Tensor, Tensor]
_TIMED: dict[Kind, tuple[str, ...]] = {
    "lti": ("u",),
    "selective": ("u", "delta", "B", "C"),
    "ssd": ("x", "dt", "B", "C"),
    "linear-rnn": ("a", "b"),
}
"""The operands with a time axis, the driven one of `_DRIVEN` among them."""
_DRIVEN: dict[Kind, str] = {"lti": "u", "selective": "u", "ssd": "x", "linear-rnn": "b"}
_CHANNELS = {"u": -1, "delta": -1, "A": 0, "a": 0, "b": 0, "c": 0}
_LOWEST_STEP, _HIGHEST_STEP = 1e-3, 1e-1


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of recurrence at one length with its inputs; decays in float32, the rest in `dtype`.

    Results are y (B, T, ...) and the last state, whatever the kind.
    """

    kind: Kind
    inputs: dict[str, Tensor]
    softplus: bool

    @property
    def timed(self) -> tuple[str, ...]:
        return _TIMED[self.kind]

    @property
    def driven(self) -> Tensor:
        """What enters the state: u, x or b."""
        return self.inputs[_DRIVEN[self.kind]]

    @property
    def steps(self) -> int:
        return self.driven.shape[1]

    def facts(self, chunk: int | None, gradient: bool, has_state: bool) -> ScanProblem:
        """Returns what an implementation decides by."""
        x = self.driven
        d_state = {"lti": "a", "selective": "A", "ssd": "B"}.get(self.kind)
        return ScanProblem(
            batch=x.shape[0],
            steps=x.shape[1],
            dtype=x.dtype,
            time_invariant=self.kind == "lti",
            d_state=self.inputs[d_state].shape[-1] if d_state else 1,
            head_dim=x.shape[-1],
            chunk=chunk,
            needs_gradient=gradient,
            has_state=has_state,
        )

    def scan(self, impl: str, chunk: int | None = None, h0: Tensor | None = None) -> Result:
        """Returns y and the last state by an implementation of the op."""
        i = self.inputs
        options: dict[str, Any] = {"impl": impl, "chunk": chunk, "h0": h0}
        if self.kind == "lti":
            return invariant_scan(i["u"], i["a"], i["b"], i["c"], **options)
        if self.kind == "selective":
            options["delta_softplus"] = self.softplus
            return selective_scan(i["u"], i["delta"], i["A"], i["B"], i["C"], **options)
        if self.kind == "ssd":
            return ssd_scan(i["x"], i["dt"], i["A"], i["B"], i["C"], **options)
        h = linear_scan(i["a"], i["b"], **options)
        return h, h[:, -1]

    def recurrence(self, dtype: torch.dtype | None = None, h0: Tensor | None = None) -> Result:
        """Returns the same, one step at a time, in `dtype` or as models run it.

        States of half precision are float32, and y is rounded.
        """
        own = self.driven.dtype
        wide = dtype or (torch.float32 if own in (torch.float16, torch.bfloat16) else own)
        state = self.empty_state(wide) if h0 is None else h0.to(wide)
        step, operands = self.stepper(wide)
        outputs = []
        timed: list[tuple[Tensor, ...]] = [operands[n].unbind(1) for n in self.timed]
        for at in zip(*timed, strict=True):
            y, state = step(at, state)
            outputs.append(y)
        return torch.stack(outputs, 1).to(dtype or own), state

    def stepper(
        self, dtype: torch.dtype
    ) -> tuple[Callable[[tuple[Tensor, ...], Tensor], Result], dict[str, Tensor]]:
        """Returns one step as a function of the timed operands and the state, and the operands."""
        i = {n: x.to(dtype) for n, x in self.inputs.items()}
        if self.softplus and self.kind == "selective":
            i["delta"] = F.softplus(i["delta"])
        if self.kind == "lti":
            return lambda at, h: invariant_step(at[0], i["a"], i["b"], i["c"], h), i
        if self.kind == "linear-rnn":
            return lambda at, h: linear_step(at[0], at[1], h), i
        one = selective_step if self.kind == "selective" else ssd_step
        return lambda at, h: one(at[0], at[1], i["A"], at[2], at[3], h), i

    def empty_state(self, dtype: torch.dtype) -> Tensor:
        """Returns the state before the first step."""
        x, i = self.driven, self.inputs
        shape = [x.shape[0], *x.shape[2:]]  # of linear-rnn
        if self.kind == "ssd":
            shape.append(i["B"].shape[-1])
        elif self.kind != "linear-rnn":
            shape.append(i["A" if self.kind == "selective" else "a"].shape[-1])
        return torch.zeros(shape, dtype=dtype, device=x.device)

    def cut(self, steps: slice) -> Problem:
        """Returns the problem over some of the steps."""
        kept = {n: x[:, steps] if n in self.timed else x for n, x in self.inputs.items()}
        return replace(self, inputs=kept)

    def narrow(self, channels: int) -> Problem:
        """Returns the problem on its first channels (of ssd: of its first head), one sequence.

        The same recurrence at the same length, cheap enough to probe and differentiate.
        """
        i = {n: x[:1] if n in self.timed else x for n, x in self.inputs.items()}
        if self.kind == "ssd":
            i["x"], i["dt"], i["A"] = i["x"][:, :, :1, :channels], i["dt"][:, :, :1], i["A"][:1]
        elif self.kind == "linear-rnn":
            i = {n: x[..., :channels] for n, x in i.items()}
        else:
            for name in i.keys() & _CHANNELS.keys():
                i[name] = i[name][..., :channels] if _CHANNELS[name] else i[name][:channels]
        return replace(self, inputs={n: x.contiguous() for n, x in i.items()})

    def driven_by(self, x: Tensor) -> Problem:
        """Returns the problem with another input, of any batch: B sequences of the same decays."""
        batch = x.shape[0]
        expanded = {
            n: t.expand(batch, *t.shape[1:]).contiguous() if n in self.timed else t
            for n, t in self.inputs.items()
        }
        return replace(self, inputs={**expanded, _DRIVEN[self.kind]: x})


def shape_of(spec: SsmBenchSpec, kind: Kind, steps: int) -> ScanShape:
    return ScanShape(kind, spec.batch, steps, spec.d_model, spec.d_state, spec.heads)


def draw(spec: SsmBenchSpec, kind: Kind, steps: int, device: torch.device) -> Problem:
    """Returns inputs from a stream of their own: the same for every form and dtype.

    `stable` draws decays as the models start: A = -1 ... -N (ssd: uniform in [1, 16]), step sizes
    log-uniform in [1e-3, 1e-1] around their input. `raw` leaves out what keeps them stable: A from
    N(0, 1), for ssd uniform in [0, 1], steps from N(0, 1) without softplus. Those grow.
    """
    generator = torch.Generator().manual_seed(spec.seed)
    batch, width, n = spec.batch, spec.d_model, spec.d_state
    stable = spec.dist == "stable"

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def log_uniform(*shape: int) -> Tensor:
        low, high = math.log(_LOWEST_STEP), math.log(_HIGHEST_STEP)
        return torch.exp(torch.rand(*shape, generator=generator) * (high - low) + low)

    ladder = -torch.arange(1.0, n + 1).repeat(width, 1)
    if kind == "lti":
        A = ladder if stable else normal(width, n)
        step = log_uniform(width, 1)
        inputs = {"u": normal(batch, steps, width), "a": torch.exp(step * A)}
        inputs |= {"b": step.expand(width, n).contiguous(), "c": normal(width, n)}
    elif kind == "selective":
        bias = torch.log(torch.expm1(log_uniform(width)))
        delta = normal(batch, steps, width)
        inputs = {"u": normal(batch, steps, width), "delta": delta + bias if stable else delta}
        inputs["A"] = ladder if stable else normal(width, n)
        inputs |= {name: normal(batch, steps, n) for name in ("B", "C")}
    elif kind == "ssd":
        heads = spec.heads
        inputs = {"x": normal(batch, steps, heads, width // heads)}
        raw = normal(batch, steps, heads)
        bias = torch.log(torch.expm1(log_uniform(heads)))
        inputs["dt"] = F.softplus(raw + bias) if stable else raw.abs()
        rates = torch.rand(heads, generator=generator)
        inputs["A"] = -(1 + 15 * rates) if stable else rates
        inputs |= {name: normal(batch, steps, 1, n) for name in ("B", "C")}
    else:
        gate = torch.sigmoid(normal(batch, steps, width) + 3) if stable else normal(1).exp() + 1
        a = gate.expand(batch, steps, width).contiguous()
        inputs = {"a": a, "b": (1 - a * a).abs().sqrt() * normal(batch, steps, width)}
    dtype = getattr(torch, spec.dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    kept = ("A", "a", "b", "c") if kind == "lti" else ("A",)
    placed = {
        name: x.to(device, wide if name in kept else dtype).contiguous()
        for name, x in inputs.items()
    }
    return Problem(kind, placed, softplus=kind == "selective" and stable)
