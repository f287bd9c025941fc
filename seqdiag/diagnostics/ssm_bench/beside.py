"""What stands beside the scans: attention and the recurrent nets, with the width of the scans."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqdiag.diagnostics.ssm_bench.candidates import Candidate
from seqdiag.diagnostics.ssm_bench.checking import Checked
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.measure.error import error_of, why_inaccurate
from seqdiag.models.recurrent import GRU, LSTM, RNN, Recurrent
from seqdiag.ops.attention import attention
from seqdiag.predict.work import AttentionShape

_LAYERS: dict[str, type[Recurrent]] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
_CHECKED_ROWS = 64


def beside(spec: SsmBenchSpec, name: str, steps: int, device: torch.device) -> Candidate:
    """Returns attention (operator alone) or a recurrent layer at one length."""
    if name == "attention":
        return _attention(spec, steps, device)
    return _recurrent(spec, name, steps, device)


def _attention(spec: SsmBenchSpec, steps: int, device: torch.device) -> Candidate:
    """Causal attention over as many channels; its projections, like those of a scan, left out."""
    dtype = getattr(torch, spec.dtype)
    dim = spec.d_model // spec.heads
    generator = torch.Generator().manual_seed(spec.seed)
    shape = (spec.batch, spec.heads, steps, dim)
    q, k, v = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3))
    size = AttentionShape(spec.batch, spec.heads, spec.heads, steps, steps, dim, dim)

    def run(operands: list[Tensor]) -> list[Tensor]:
        return [attention(*operands, causal=True, impl="sdpa")]

    def check() -> Checked:
        """Compares the first and last rows with float64: each sees all of its keys."""
        start = time.perf_counter()
        with torch.no_grad():
            out = run([q, k, v])[0]
        took = (time.perf_counter() - start) * 1e3
        rows = min(_CHECKED_ROWS, steps)
        pieces = [(slice(0, rows), slice(0, rows)), (slice(steps - rows, steps), slice(0, steps))]
        ours, exact, naive = [], [], []
        for queries, keys in pieces:
            seen = [q[:, :, queries], k[:, :, keys], v[:, :, keys]]
            ours.append(out[:, :, queries])
            wide: list[Any] = [x.double() for x in seen]
            exact.append(attention(*wide, causal=True, impl="reference"))
            naive.append(attention(*seen, causal=True, impl="naive"))
        error = error_of(ours, exact)
        reason = why_inaccurate(error, error_of(naive, exact), dtype)
        return Checked("inaccurate" if reason else "ok", reason or "", took, error)

    return Candidate(
        implementation="attention",
        kind="attention",
        seq_len=steps,
        device="",
        flop_count=size.flops("fwd"),
        min_flop_count=size.flops("fwd"),
        min_bytes=size.min_bytes(dtype.itemsize),
        state_bytes=2 * k.numel() * k.element_size(),
        check=check,
        forward=run,
        operands=[q, k, v],
        extra_note="the operator alone (sdpa), as the scans",
    )


def _recurrent(spec: SsmBenchSpec, name: str, steps: int, device: torch.device) -> Candidate:
    """A layer of `torch.nn`: its products with the input can run at once, the others cannot."""
    dtype = getattr(torch, spec.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        layer: Any = _LAYERS[name](spec.d_model)
        x = torch.randn(spec.batch, steps, spec.d_model)
    layer, x = layer.to(device, dtype), x.to(device, dtype)
    gates = layer.core.weight_ih_l0.shape[0]

    def check() -> Checked:
        start = time.perf_counter()
        with torch.no_grad():
            y = layer(x)
            took = (time.perf_counter() - start) * 1e3
            part = x[:, :_CHECKED_ROWS]
            exact = copy.deepcopy(layer).double()(part.double())
            state, stepped = layer.init_state(spec.batch), []
            for x_t in part.unbind(1):
                y_t, state = layer.step(x_t, state)
                stepped.append(y_t)
        steps_form = torch.stack(stepped, 1)
        error = error_of(y[:, :_CHECKED_ROWS], exact)
        reason = why_inaccurate(error, error_of(steps_form, exact), dtype)
        dual = float((y[:, :_CHECKED_ROWS] - steps_form).abs().max() / exact.abs().max())
        return Checked("inaccurate" if reason else "ok", reason or "", took, error, dual)

    return Candidate(
        implementation=name,
        kind=name,
        seq_len=steps,
        device="",
        flop_count=4 * spec.batch * steps * gates * spec.d_model,
        min_flop_count=4 * spec.batch * steps * gates * spec.d_model,
        min_bytes=2 * x.numel() * x.element_size(),
        state_bytes=layer.state_bytes(layer.init_state(spec.batch)),
        check=check,
        forward=lambda operands: [layer(operands[0])],
        operands=[x],
        extra_note="a whole layer, projections included",
    )


def input_projection(spec: SsmBenchSpec, name: str, steps: int, device: torch.device) -> Candidate:
    """Returns the part of a recurrent layer that waits for no earlier step: W x of every step."""
    dtype = getattr(torch, spec.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        layer: Any = _LAYERS[name](spec.d_model)
    weight = layer.core.weight_ih_l0.detach().to(device, dtype)
    x = torch.randn(spec.batch, steps, spec.d_model, generator=torch.Generator().manual_seed(1))
    return Candidate(
        implementation=f"{name} input products",
        kind=name,
        seq_len=steps,
        device="",
        forward=lambda operands: [F.linear(operands[0], weight)],
        operands=[x.to(device, dtype)],
    )
