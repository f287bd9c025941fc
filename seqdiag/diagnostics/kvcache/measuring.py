"""`--measure`: allocating what the formulas say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import Subject
from seqdiag.predict.kv_cache.layout import ITEMSIZE, Part
from seqdiag.report.schema import Status

Measure = Callable[[Subject, Sequence[Part], int], tuple[int | None, Status, str]]
"""Allocates parts of a subject at a context: bytes, status, note."""


def instrument(spec: KvcacheSpec) -> tuple[Measure, str]:
    """Returns what measures a row and the device it runs on. Only `--measure` imports torch."""
    if not spec.measure and spec.device in ("auto", "cpu"):
        return _unmeasured, "cpu"
    from seqdiag.measure.device import resolve_device

    device, label = resolve_device(spec.device)
    if not spec.measure:
        return _unmeasured, label
    from seqdiag.measure.allocation import allocate

    def measure(
        subject: Subject, parts: Sequence[Part], tokens: int
    ) -> tuple[int | None, Status, str]:
        if subject.unsupported:
            return None, "unsupported", subject.unsupported
        kept = [tensor for part in parts for tensor in subject.tensors(part, tokens)]
        wanted = [(tensor.shape, subject.dtypes.of(tensor.role)) for tensor in kept]
        if packed := sorted({dtype for _, dtype in wanted} - set(ITEMSIZE)):
            return None, "skipped", f"not measured: torch has no {packed[0]} tensors"
        result = allocate(wanted, device, spec.limit)
        return result.bytes, result.status, result.note

    return measure, label


def _unmeasured(
    subject: Subject, parts: Sequence[Part], tokens: int
) -> tuple[int | None, Status, str]:
    reason = subject.unsupported
    return None, "unsupported" if reason else "ok", reason
