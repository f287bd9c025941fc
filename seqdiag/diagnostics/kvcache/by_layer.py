"""`--per-layer`: a row for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.kvcache.measuring import Measure
from seqdiag.diagnostics.kvcache.sizing import sizes
from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import Subject
from seqdiag.report.schema import Status, column


@dataclass(frozen=True, slots=True)
class KvcacheLayerRow:
    """One layer of one model at one context."""

    model: str = column("preset, path or custom", identity=True)
    engine: str = column("who allocates; ideal is what the mechanism needs", identity=True)
    layer: int = column("from 0, the input side", identity=True)
    kind: str = column("what the layer keeps", identity=True)
    ctx_tokens: int = column("tokens held for each sequence", unit="tokens", identity=True)
    batch: int = column("sequences held at once", identity=True)
    dtype: str = column("element type of keys and values", identity=True)
    kv_bytes: int | None = column("keys and values, the whole batch", unit="B")
    state_bytes: int | None = column("convolution and recurrent states, the whole batch", unit="B")
    total_bytes: int | None = column("kv_bytes + state_bytes", unit="B")
    kv_bytes_per_token: int | None = column(
        "bytes that one more token of one sequence adds at this context", unit="B"
    )
    kv_read_bytes: int | None = column("cache bytes that one decode step reads", unit="B")
    measured_bytes: int | None = column("bytes allocated by --measure", unit="B")
    window_bytes: int | None = column("of kv_bytes: layers with a window or chunk", unit="B")
    cross_bytes: int | None = column("of kv_bytes: keys and values of the encoder", unit="B")
    recurrent_bytes: int | None = column(
        "of state_bytes: recurrent states without convolutions", unit="B"
    )
    engine_version: str = column("the release or form of the engine that its rules are of")
    status: Status = column("ok, or why there is no value or measurement")
    note: str = column("what was assumed, or what would help")


def rows(
    spec: KvcacheSpec, subjects: Sequence[Subject], measure: Measure
) -> Iterator[KvcacheLayerRow]:
    for subject in subjects:
        for tokens in spec.ctx:
            for index, layer in enumerate(subject.layout.layers):
                measured, status, reason = measure(subject, layer.parts, tokens)
                yield KvcacheLayerRow(
                    model=subject.layout.name,
                    engine=subject.engine.name,
                    layer=index,
                    kind=layer.kind,
                    ctx_tokens=tokens,
                    batch=spec.batch,
                    dtype=subject.dtypes.label,
                    **sizes(subject, tokens, layer.parts),
                    measured_bytes=measured,
                    engine_version=subject.engine.version,
                    status=status,
                    note="; ".join(filter(None, (reason, subject.assumptions))),
                )
