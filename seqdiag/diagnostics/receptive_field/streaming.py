"""Whether pieces of a sequence give the same as the whole, and which outputs see padding."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiag.diagnostics.receptive_field.measuring import Measured
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.errors import UsageError
from seqdiag.models.mixer import Mixer
from seqdiag.predict.receptive_field.positions import positions

_EXACT = {torch.float64: 1e-9, torch.float32: 1e-4}


def streaming_notes(spec: ReceptiveFieldSpec, measured: Measured) -> list[str]:
    """Returns what --streaming finds, in sentences."""
    notes = [_by_steps(measured) or _by_prefix(spec, measured)]
    padded = _padded_outputs(measured)
    if padded:
        notes.append(f"{padded} outputs see padding before the first input")
    return notes


def _by_steps(measured: Measured) -> str:
    """Returns how step by step compares with the whole; empty for a module without steps."""
    module = measured.subject.module
    if not isinstance(module, Mixer):
        return ""
    x = measured.fed.inputs[:1]
    with torch.no_grad():
        whole, state, pieces = module(x), module.init_state(1), []
        for x_t in x.unbind(1):
            y_t, state = module.step(x_t, state)
            pieces.append(y_t)
    return _compared("step by step", torch.stack(pieces, 1), whole)


def _by_prefix(spec: ReceptiveFieldSpec, measured: Measured) -> str:
    """Returns how the outputs of a prefix compare with the first outputs of the whole."""
    x = measured.fed.inputs
    cut = measured.seq_len * 5 // 8
    device = x.device
    try:
        fed = measured.subject.fed(spec, cut, x.shape[0], device)
    except UsageError:
        return f"a prefix of {cut} steps is too short for it"
    with torch.no_grad(), measured.subject.guarded():
        piece, whole = fed.run(x[:, :cut].clone()), measured.fed.run(x.clone())
    known = [n for n in range(piece.shape[1]) if n < len(measured.own) and measured.own[n] < cut]
    return _compared(f"a prefix of {cut} steps", piece[:1, known], whole[:1, known])


def _compared(what: str, pieces: Tensor, whole: Tensor) -> str:
    if not whole.numel():
        return f"{what} gives no output"
    scale = whole.abs().max().clamp(min=torch.finfo(whole.dtype).tiny)
    errors = ((pieces - whole).abs() / scale).flatten(2).amax(2)[0]
    worst = errors.max().item()
    if worst <= _EXACT.get(whole.dtype, 1e-4):
        return f"{what} gives the whole, to {worst:.0e}"
    wrong = [n for n, error in enumerate(errors.tolist()) if error > 1e-9]
    return f"{what} differs from the whole from output {wrong[0]} on, by up to {worst:.1e}"


def _padded_outputs(measured: Measured) -> int:
    """Returns how many outputs would read before the first input, by the structure."""
    structure = measured.subject.structure
    if structure is None or measured.predicted is None or measured.predicted.steps is None:
        return 0
    for n in range(measured.n_outputs):
        if structure.reads(positions([n]), None).first >= 0:
            return n
    return measured.n_outputs
