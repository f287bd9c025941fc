"""`--curve`: the size against the context in closed form, a row for each straight piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import Subject
from seqdiag.predict.kv_cache.curve import MOST_PIECES, Piece, pieces
from seqdiag.report.schema import Status, column
from seqdiag.units import format_bytes


@dataclass(frozen=True, slots=True)
class KvcacheCurveRow:
    """One straight piece: constant_bytes + bytes_per_token x tokens, rounded up to step_tokens."""

    model: str = column("preset, path or custom", identity=True)
    engine: str = column("who allocates; ideal is what the mechanism needs", identity=True)
    batch: int = column("sequences held at once", identity=True)
    dtype: str = column("element type of keys and values", identity=True)
    piece: int = column("from 0, the shortest contexts", identity=True)
    from_tokens: int | None = column("shortest context of the piece", unit="tokens")
    to_tokens: int | None = column("longest context of the piece; none: without end", unit="tokens")
    constant_bytes: int | None = column("the line at 0 tokens, the whole batch", unit="B")
    bytes_per_token: float | None = column(
        "slope for one more token in each sequence of the batch", unit="B"
    )
    step_tokens: int | None = column("the size grows when a context passes a multiple of this")
    from_bytes: int | None = column("total at from_tokens, the whole batch", unit="B")
    to_bytes: int | None = column("total at to_tokens, the whole batch", unit="B")
    growing: str = column("layers that grow within the piece, by kind")
    engine_version: str = column("the release or form of the engine that its rules are of")
    status: Status = column("ok, or why there is no value")
    note: str = column("what was assumed, or what would help")


def rows(spec: KvcacheSpec, subjects: Sequence[Subject]) -> Iterator[KvcacheCurveRow]:
    for subject in subjects:
        if subject.unsupported:
            yield _row(subject, 0, None, "unsupported", subject.unsupported)
            continue
        found = pieces(subject.peak, subject.step)
        for index, piece in enumerate(found):
            cut = len(found) == MOST_PIECES and index == MOST_PIECES - 1
            note = f"only the first {MOST_PIECES} pieces: the size goes on bending" if cut else ""
            yield _row(subject, index, piece, "ok", note)


def conclude(rows: Sequence[KvcacheCurveRow]) -> list[str]:
    """Says what each model costs in the long run."""
    lines = []
    last = {(row.model, row.engine): row for row in rows if row.status == "ok"}
    for (model, engine), row in last.items():
        if row.to_tokens is not None or row.constant_bytes is None or row.bytes_per_token is None:
            continue
        since = f"from {row.from_tokens} tokens on" if row.piece else "from the first token on"
        each = f" of a batch of {row.batch}" if row.batch > 1 else ""
        lines.append(
            f"{model} in {engine} holds {format_bytes(row.constant_bytes)} and "
            f"{format_bytes(round(row.bytes_per_token))} more for each token{each}, {since}."
        )
    return lines


def _row(
    subject: Subject, index: int, piece: Piece | None, status: Status, note: str
) -> KvcacheCurveRow:
    first, last = (piece.first, piece.last) if piece else (None, None)
    return KvcacheCurveRow(
        model=subject.layout.name,
        engine=subject.engine.name,
        batch=subject.batch,
        dtype=subject.dtypes.label,
        piece=index,
        from_tokens=first,
        to_tokens=last,
        constant_bytes=piece.constant if piece else None,
        bytes_per_token=piece.slope if piece else None,
        step_tokens=subject.step if piece else None,
        from_bytes=subject.peak(first) if first else None,
        to_bytes=subject.peak(last) if last else None,
        growing=_growing(subject, piece) if piece else "",
        engine_version=subject.engine.version,
        status=status,
        note="; ".join(filter(None, (note, subject.assumptions))),
    )


def _growing(subject: Subject, piece: Piece) -> str:
    """Returns the layers whose size differs between two steps within the piece."""
    step = subject.step
    start = piece.first + step - 1
    kinds: Counter[str] = Counter()
    for layer, count in Counter(subject.layout.layers).items():
        sizes = [subject.allocate(t, layer.parts).total_bytes for t in (start, start + step)]
        if sizes[0] != sizes[1]:
            kinds[layer.kind] += count
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
