"""Sequences long enough for a module, and no longer than it takes."""

from __future__ import annotations

import torch

from seqdiag.diagnostics.receptive_field.predicting import FEW_OUTPUTS
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.diagnostics.receptive_field.subjects import Subject
from seqdiag.errors import UsageError
from seqdiag.measure.replacement import batch_for
from seqdiag.models.adapting import Fed

_SIGNS_OF_SHORTNESS = ("ernel size", "adding size", "too small", "expected to be positive")
"""How PyTorch says that a sequence is too short for a layer."""


def feed_long_enough(
    spec: ReceptiveFieldSpec, subject: Subject, device: torch.device, seq_len: int
) -> tuple[Fed, int, list[str]]:
    """Returns the module fed with a length that it takes and that gives a few outputs."""
    said = []
    if seq_len > spec.seq_len:
        said.append(f"--seq-len {spec.seq_len} is shorter than the field: doubled to {seq_len}")
    while True:
        try:
            fed = subject.fed(spec, seq_len, batch_for(seq_len, subject.module), device)
        except UsageError as error:
            longer = min(2 * seq_len, spec.max_seq_len)
            short = any(sign in error.message for sign in _SIGNS_OF_SHORTNESS)
            if seq_len > spec.seq_len and not short:  # it takes no more
                fed = subject.fed(
                    spec, spec.seq_len, batch_for(spec.seq_len, subject.module), device
                )
                return fed, spec.seq_len, [f"it takes no {seq_len} steps"]
            if not short or longer == seq_len:
                _say_its_limit(spec, subject, device, seq_len)
                raise
            seq_len = longer
            said = [f"--seq-len {spec.seq_len} is too short for it: doubled to {seq_len}"]
            continue
        with torch.no_grad(), subject.guarded():
            outputs = fed.run(fed.inputs.clone()).shape[1]
        if subject.structure is None and outputs == seq_len:
            return fed, seq_len, said
        if outputs >= min(FEW_OUTPUTS, seq_len) or 2 * seq_len > spec.max_seq_len:
            return fed, seq_len, said
        if subject.structure is not None and outputs > 1:
            return fed, seq_len, said
        seq_len *= 2
        said = [f"--seq-len {spec.seq_len} gives {outputs} outputs: doubled to {seq_len}"]


def _say_its_limit(
    spec: ReceptiveFieldSpec, subject: Subject, device: torch.device, seq_len: int
) -> None:
    """Raises with the longest sequence that the module takes, if it takes a shorter one."""
    low, high = 0, seq_len
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _takes(spec, subject, device, middle) else (low, middle)
    # A width may pass for a time axis at one length, but not at two.
    if low > 1 and _takes(spec, subject, device, low - 1):
        raise UsageError(
            f"--seq-len: {subject.name} takes {low} steps at most, not {seq_len}: it may have "
            "learned positions",
            hint=f"--seq-len {low}",
        )


def _takes(spec: ReceptiveFieldSpec, subject: Subject, device: torch.device, seq_len: int) -> bool:
    try:
        subject.fed(spec, seq_len, 2, device)
    except UsageError:
        return False
    return True
