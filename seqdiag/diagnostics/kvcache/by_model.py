"""A row for each model at each context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.kvcache.measuring import Measure
from seqdiag.diagnostics.kvcache.planning import floor_ms, flops, plan, read_bytes, weight_bytes
from seqdiag.diagnostics.kvcache.sizing import sizes
from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import EXAMPLES, Subject, subject_of
from seqdiag.predict.kv_cache.crossover import first_reach, first_reach_of_steps
from seqdiag.predict.kv_cache.layout import Layout
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column
from seqdiag.units import format_bytes, format_tokens

PLOT = PlotSpec(
    x="ctx_tokens",
    y="total_bytes",
    series="model",
    also="engine",
    mark_x="crossover_tokens",
    x_label="context (tokens)",
    y_label="cache and state (bytes)",
    log_x=True,
    log_y=True,
)


@dataclass(frozen=True, slots=True)
class KvcacheRow:
    """One model at one context."""

    model: str = column("preset, path or custom", identity=True)
    engine: str = column("who allocates; ideal is what the mechanism needs", identity=True)
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
    crossover_tokens: int | None = column(
        "smallest context at which total_bytes reaches that of --against", unit="tokens"
    )
    measured_bytes: int | None = column("bytes allocated by --measure", unit="B")
    window_bytes: int | None = column("of kv_bytes: layers with a window or chunk", unit="B")
    cross_bytes: int | None = column("of kv_bytes: keys and values of the encoder", unit="B")
    recurrent_bytes: int | None = column(
        "of state_bytes: recurrent states without convolutions", unit="B"
    )
    work_bytes: int | None = column("a buffer beside the cache that no layer owns", unit="B")
    block_tokens: int | None = column("tokens of a page of the cache", unit="tokens")
    page_padding_ratio: float | None = column(
        "by what share of itself a state is padded to fill a page"
    )
    decode_read_bytes: int | None = column(
        "kv_read_bytes and every state: what one decode step of the batch reads", unit="B"
    )
    decode_flops: int | None = column(
        "additions and multiplications of one decode step of the batch on cache and state; "
        "projections and feed-forward layers apart"
    )
    decode_floor_ms: float | None = column("decode_read_bytes at --bandwidth", unit="ms")
    weight_bytes: int | None = column("of the weights on one device, with --weights", unit="B")
    max_ctx_tokens: int | None = column(
        "longest context that fits in --memory at this batch", unit="tokens"
    )
    max_batch: int | None = column("most sequences that fit in --memory at this context")
    engine_version: str = column("the release or form of the engine that its rules are of")
    status: Status = column("ok, or why there is no value or measurement")
    note: str = column("what was assumed, or what would help")


def rows(
    spec: KvcacheSpec, subjects: Sequence[Subject], against: Layout | None, measure: Measure
) -> Iterator[KvcacheRow]:
    for subject in subjects:
        crossover, why_not = _crossover(spec, subject, against)
        for tokens in spec.ctx:
            parts = list(subject.layout.parts())
            measured, status, reason = measure(subject, parts, tokens)
            block, padding = (None, None) if subject.unsupported else subject.engine.pages
            room, why_no_room = plan(spec, subject, tokens)
            yield KvcacheRow(
                model=subject.layout.name,
                engine=subject.engine.name,
                ctx_tokens=tokens,
                batch=spec.batch,
                dtype=subject.dtypes.label,
                **sizes(subject, tokens),
                work_bytes=subject.work_bytes,
                block_tokens=block,
                page_padding_ratio=padding,
                decode_read_bytes=read_bytes(subject, tokens),
                decode_flops=flops(subject, tokens),
                decode_floor_ms=floor_ms(spec, subject, tokens),
                weight_bytes=weight_bytes(spec, subject),
                max_ctx_tokens=room.max_ctx,
                max_batch=room.max_batch,
                crossover_tokens=crossover,
                measured_bytes=measured,
                engine_version=subject.engine.version,
                status=status,
                note="; ".join(
                    filter(
                        None,
                        (
                            reason,
                            why_not,
                            why_no_room,
                            _weighed(spec, subject),
                            subject.assumptions,
                        ),
                    )
                ),
            )


def _weighed(spec: KvcacheSpec, subject: Subject) -> str:
    how = subject.layout.weights_from
    ranks = subject.engine.settings.tp
    return how and f"weights: {how}" + (f", shared by {ranks} ranks" if ranks > 1 else "")


def conclude(rows: Sequence[KvcacheRow], against: Layout | None) -> list[str]:
    """Says what the largest context costs, and where the fixed state wins."""
    if not rows:
        return []
    largest = max(row.ctx_tokens for row in rows)
    at = [row for row in rows if row.ctx_tokens == largest]
    several = len({row.engine for row in rows}) > 1
    held = ", ".join(
        f"{row.model}{f' in {row.engine}' if several else ''} {format_bytes(row.total_bytes)}"
        for row in at
        if row.total_bytes is not None
    )
    findings = [f"Held at {format_tokens(largest)} tokens: {held}."] if held else []
    findings += [
        f"The state of {row.model}{f' in {row.engine}' if several else ''}, "
        f"{format_bytes(row.state_bytes)}, is the cache of "
        f"{round(row.state_bytes / (row.batch * row.kv_bytes_per_token))} tokens."
        for row in at
        if row.state_bytes and row.kv_bytes_per_token
    ]
    findings += [
        f"{row.model} first holds as much as {against.name} at {row.crossover_tokens} tokens."
        for row in at
        if against is not None and row.crossover_tokens is not None
    ]
    findings += [
        f"Below {row.crossover_tokens} tokens {against.name} is the more expensive one: its state "
        f"is there from the first token on."
        for row in at
        if against is not None
        and row.crossover_tokens is not None
        and row.crossover_tokens > 1
        and not any(part.saturates_at() is None and not part.is_state for part in against.parts())
    ]
    findings += _fits(at)
    findings += dict.fromkeys(f"{row.model}: {row.note}." for row in at if row.status != "ok")
    if {row.model for row in rows} <= set(EXAMPLES):
        findings.append(
            "Try your own model: seqdiag kvcache path/to/config.json --ctx 32k --explain."
        )
    return findings


def _fits(rows: Sequence[KvcacheRow]) -> list[str]:
    """Says what fits in `--memory`."""
    return [
        f"{row.model} in {row.engine}: {row.max_batch} sequences of "
        f"{format_tokens(row.ctx_tokens)} tokens fit, and a batch of {row.batch} up to "
        f"{'any context' if row.max_ctx_tokens is None else f'{row.max_ctx_tokens} tokens'}."
        for row in rows
        if row.max_batch is not None
    ]


def _crossover(
    spec: KvcacheSpec, subject: Subject, against: Layout | None
) -> tuple[int | None, str]:
    """Returns the crossover and, where there is none, why."""
    if against is None or subject.layout.name == against.name or subject.unsupported:
        return None, ""
    other = subject_of(against, subject.engine.name, spec)
    if other.unsupported:
        return None, f"{against.name}: {other.unsupported}"
    if subject.step > 1 or other.step > 1:
        reached = first_reach_of_steps(subject.peak, other.peak)
    else:
        points = subject.breakpoints() | other.breakpoints()
        reached = first_reach(subject.total, other.total, points)
    return reached, "" if reached else f"never reaches {against.name}"
