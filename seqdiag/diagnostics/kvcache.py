"""How many bytes a model keeps between decode steps: a growing cache or a fixed state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seqdiag.errors import UsageError, unknown
from seqdiag.predict.kv_cache.crossover import first_reach
from seqdiag.predict.kv_cache.engines import ENGINES, Allocation, Engine
from seqdiag.predict.kv_cache.layout import Dtypes, Layout, Part, dtypes_for
from seqdiag.predict.kv_cache.subjects import custom_layout, load_subject
from seqdiag.report.result import Diagnosis, PlotSpec
from seqdiag.report.schema import Status, column
from seqdiag.units import format_bytes, format_tokens

EXAMPLES = ("gqa-32l", "mamba-32l")
"""The subjects when none is named: a grouped-query transformer and a Mamba of the same size."""
FIXED_STATE = "mamba-32l"


@dataclass(frozen=True, slots=True)
class KvcacheSpec:
    """The question: which models, at which contexts, in which dtype."""

    models: tuple[str, ...] = ()
    ctx: tuple[int, ...] = (1024, 8192, 32768, 131072, 1048576)
    batch: int = 1
    engine: tuple[str, ...] = ("ideal",)
    dtype: str | None = None
    state_dtype: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    window: int | None = None
    against: str | None = None
    per_layer: bool = False
    explain: bool = False
    measure: bool = False
    device: str = "auto"
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class KvcacheRow:
    """One model at one context."""

    model: str = column("preset, path or custom", identity=True)
    engine: str = column("who allocates; ideal is what the mechanism needs", identity=True)
    ctx_tokens: int = column("tokens held for each sequence", unit="tokens", identity=True)
    batch: int = column("sequences held at once", identity=True)
    dtype: str = column("element type of keys and values", identity=True)
    kv_bytes: int = column("keys and values, the whole batch", unit="B")
    state_bytes: int = column("convolution and recurrent states, the whole batch", unit="B")
    total_bytes: int = column("kv_bytes + state_bytes", unit="B")
    kv_bytes_per_token: int = column(
        "bytes that one more token of one sequence adds at this context", unit="B"
    )
    kv_read_bytes: int = column("cache bytes that one decode step reads", unit="B")
    crossover_tokens: int | None = column(
        "smallest context at which total_bytes reaches that of --against", unit="tokens"
    )
    measured_bytes: int | None = column("bytes allocated by --measure", unit="B")
    status: Status = column("ok, or why there is no measurement")
    note: str = column("what was assumed, or what would help")


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
    kv_bytes: int = column("keys and values, the whole batch", unit="B")
    state_bytes: int = column("convolution and recurrent states, the whole batch", unit="B")
    total_bytes: int = column("kv_bytes + state_bytes", unit="B")
    kv_bytes_per_token: int = column(
        "bytes that one more token of one sequence adds at this context", unit="B"
    )
    kv_read_bytes: int = column("cache bytes that one decode step reads", unit="B")
    measured_bytes: int | None = column("bytes allocated by --measure", unit="B")
    status: Status = column("ok, or why there is no measurement")
    note: str = column("what was assumed, or what would help")


@dataclass(frozen=True, slots=True)
class _Subject:
    """A layout under one engine in the dtypes in force."""

    layout: Layout
    engine: Engine
    dtypes: Dtypes
    batch: int

    def allocate(self, tokens: int, parts: Sequence[Part] | None = None) -> Allocation:
        chosen = self.layout.parts() if parts is None else parts
        return self.engine.allocate(chosen, tokens, self.batch, self.dtypes)

    def total(self, tokens: int) -> int:
        return self.allocate(tokens).total_bytes

    def per_token(self, tokens: int, parts: Sequence[Part] | None = None) -> int:
        growth = self.allocate(tokens + 1, parts).kv_bytes - self.allocate(tokens, parts).kv_bytes
        return growth // self.batch

    def breakpoints(self) -> set[int]:
        points = {part.saturates_at() for part in self.layout.parts()}
        return {point for point in points if point is not None}


Measure = Callable[[_Subject, Sequence[Part], int], tuple[int | None, Status, str]]
"""Allocates parts of a subject at a context: bytes, status, note."""


def kvcache(spec: KvcacheSpec) -> Diagnosis:
    """Returns the diagnosis for `spec`.

    Raises `UsageError` for a model that cannot be read, `UnavailableError` for an absent device.
    """
    layouts = _layouts(spec)
    subjects = [_subject(layout, name, spec) for layout in layouts for name in spec.engine]
    against = _against(spec, layouts)
    measure, device = _instrument(spec)
    per_row = sum(len(s.layout.layers) for s in subjects) if spec.per_layer else len(subjects)

    def conclude(rows: Sequence[KvcacheRow]) -> list[str]:
        told = _explain(subjects, max(spec.ctx)) if spec.explain else []
        return told + ([] if spec.per_layer else _findings(rows, against))

    return Diagnosis(
        command="kvcache",
        spec=dataclasses.asdict(spec),
        row_type=KvcacheLayerRow if spec.per_layer else KvcacheRow,
        rows=(_layer_rows if spec.per_layer else _rows)(spec, subjects, against, measure),
        total=per_row * len(spec.ctx),
        conclude=conclude,
        plot=None if spec.per_layer else _PLOT,
        device=device,
        dtype=spec.dtype or "",
    )


_PLOT = PlotSpec(
    x="ctx_tokens",
    y="total_bytes",
    series="model",
    x_label="context (tokens)",
    y_label="cache and state (bytes)",
    log_x=True,
    log_y=True,
)


def _layouts(spec: KvcacheSpec) -> list[Layout]:
    described = (spec.layers, spec.kv_heads, spec.head_dim)
    extra = (spec.v_head_dim, spec.window)
    custom = []
    if any(value is not None for value in (*described, *extra)):
        if spec.layers is None or spec.kv_heads is None or spec.head_dim is None:
            raise UsageError(
                "--layers, --kv-heads and --head-dim describe a model together: give all three"
            )
        custom = [
            custom_layout(spec.layers, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.window)
        ]
    names = spec.models or (() if custom else EXAMPLES)
    return [load_subject(name) for name in dict.fromkeys(names)] + custom


def _subject(layout: Layout, engine: str, spec: KvcacheSpec) -> _Subject:
    if engine not in ENGINES:
        raise unknown("--engine", engine, ENGINES)
    dtypes = dtypes_for(layout, spec.dtype, spec.state_dtype)
    return _Subject(layout, ENGINES[engine](), dtypes, spec.batch)


def _against(spec: KvcacheSpec, layouts: Sequence[Layout]) -> Layout | None:
    """Returns the model that the others are held against."""
    by_name = {layout.name: layout for layout in layouts}
    if spec.against is None:
        return by_name.get(FIXED_STATE)
    return by_name.get(spec.against) or load_subject(spec.against)


def _instrument(spec: KvcacheSpec) -> tuple[Measure, str]:
    """Returns what measures a row and the device it runs on. Only `--measure` imports torch."""
    if not spec.measure and spec.device in ("auto", "cpu"):
        return _unmeasured, "cpu"
    from seqdiag.measure.device import resolve_device

    device, label = resolve_device(spec.device)
    if not spec.measure:
        return _unmeasured, label
    from seqdiag.measure.allocation import allocate

    def measure(
        subject: _Subject, parts: Sequence[Part], tokens: int
    ) -> tuple[int | None, Status, str]:
        kept = [tensor for part in parts for tensor in part.tensors(tokens)]
        wanted = [((subject.batch, *t.shape), subject.dtypes.of(t.role)) for t in kept]
        result = allocate(wanted, device, spec.limit)
        return result.bytes, result.status, result.note

    return measure, label


def _unmeasured(
    subject: _Subject, parts: Sequence[Part], tokens: int
) -> tuple[int | None, Status, str]:
    return None, "ok", ""


def _rows(
    spec: KvcacheSpec, subjects: Sequence[_Subject], against: Layout | None, measure: Measure
) -> Iterator[KvcacheRow]:
    for subject in subjects:
        crossover, why_not = _crossover(spec, subject, against)
        for tokens in spec.ctx:
            need = subject.allocate(tokens)
            parts = list(subject.layout.parts())
            measured, status, reason = measure(subject, parts, tokens)
            yield KvcacheRow(
                model=subject.layout.name,
                engine=subject.engine.name,
                ctx_tokens=tokens,
                batch=spec.batch,
                dtype=subject.dtypes.kv,
                kv_bytes=need.kv_bytes,
                state_bytes=need.state_bytes,
                total_bytes=need.total_bytes,
                kv_bytes_per_token=subject.per_token(tokens),
                kv_read_bytes=need.kv_read_bytes,
                crossover_tokens=crossover,
                measured_bytes=measured,
                status=status,
                note="; ".join(filter(None, (reason, why_not, _assumptions(subject.layout)))),
            )


def _layer_rows(
    spec: KvcacheSpec, subjects: Sequence[_Subject], against: Layout | None, measure: Measure
) -> Iterator[KvcacheLayerRow]:
    for subject in subjects:
        for tokens in spec.ctx:
            for index, layer in enumerate(subject.layout.layers):
                need = subject.allocate(tokens, layer.parts)
                measured, status, reason = measure(subject, layer.parts, tokens)
                yield KvcacheLayerRow(
                    model=subject.layout.name,
                    engine=subject.engine.name,
                    layer=index,
                    kind=layer.kind,
                    ctx_tokens=tokens,
                    batch=spec.batch,
                    dtype=subject.dtypes.kv,
                    kv_bytes=need.kv_bytes,
                    state_bytes=need.state_bytes,
                    total_bytes=need.total_bytes,
                    kv_bytes_per_token=subject.per_token(tokens, layer.parts),
                    kv_read_bytes=need.kv_read_bytes,
                    measured_bytes=measured,
                    status=status,
                    note="; ".join(filter(None, (reason, _assumptions(subject.layout)))),
                )


def _crossover(
    spec: KvcacheSpec, subject: _Subject, against: Layout | None
) -> tuple[int | None, str]:
    """Returns the crossover and, where there is none, why."""
    if against is None or subject.layout.name == against.name:
        return None, ""
    other = _subject(against, subject.engine.name, spec)
    points = subject.breakpoints() | other.breakpoints()
    reached = first_reach(subject.total, other.total, points)
    return reached, "" if reached else f"never reaches {against.name}"


def _assumptions(layout: Layout) -> str:
    if not layout.assumed:
        return ""
    values = ", ".join(f"{name} = {value}" for name, value in layout.assumed.items())
    return f"not in the config, taken from the model class: {values}"


def _findings(rows: Sequence[KvcacheRow], against: Layout | None) -> list[str]:
    """Says what the largest context costs, and where the fixed state wins."""
    if not rows:
        return []
    largest = max(row.ctx_tokens for row in rows)
    at = [row for row in rows if row.ctx_tokens == largest]
    held = ", ".join(f"{row.model} {format_bytes(row.total_bytes)}" for row in at)
    findings = [f"Held at {format_tokens(largest)} tokens: {held}."]
    findings += [
        f"{row.model} holds as much as {against.name} from {row.crossover_tokens} tokens on."
        for row in at
        if against is not None and row.crossover_tokens is not None
    ]
    findings.append("Try your own model: seqdiag kvcache path/to/config.json --ctx 32k --explain.")
    return findings


def _explain(subjects: Sequence[_Subject], tokens: int) -> list[str]:
    """Puts the numbers into the formula, grouping equal layers."""
    lines = []
    for subject in subjects:
        layout, dtypes = subject.layout, subject.dtypes
        lines.append(f"{layout.name}, {tokens} tokens, batch {subject.batch} ({layout.source}):")
        for layer in dict.fromkeys(layout.layers):
            count = layout.layers.count(layer)
            for part in layer.parts:
                role = part.tensors(tokens)[0].role
                size = subject.allocate(tokens, [part]).total_bytes
                lines.append(
                    f"  {count} x {part.kind}: {part.formula(tokens)} x {dtypes.itemsize(role)} B "
                    f"({dtypes.of(role)}) x batch {subject.batch} = {size} B each, {count * size} B"
                )
        lines.append(f"  total = {subject.total(tokens)} B")
        fields = ", ".join(f"{name} = {value}" for name, value in layout.fields.items())
        lines.append(f"  read: {fields}")
        if layout.assumed:
            lines.append(f"  {_assumptions(layout)}")
    lines.append(
        "Conventions: a window of W counts the current token; a convolution of kernel K keeps "
        "K-1 columns; a latent is kept once for all heads."
    )
    return lines
