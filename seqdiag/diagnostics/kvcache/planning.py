"""`--memory` and `--bandwidth`: what fits, and how fast a decode step can be at best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import Subject
from seqdiag.predict.kv_cache.decode import step_flops
from seqdiag.units import MAX_COUNT, format_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """The longest context at the batch and the most sequences at the context."""

    max_ctx: int | None = None
    max_batch: int | None = None


def plan(spec: KvcacheSpec, subject: Subject, tokens: int) -> tuple[Room, str]:
    """Returns what fits in the memory that weights and the reserve leave, and a note.

    Both are exact: the most held up to a context never falls with it or with the batch, so
    bisection finds the last that fits.
    """
    if spec.memory is None or subject.unsupported:
        return Room(), ""
    weights = weight_bytes(spec, subject) or 0
    room = spec.cache_room(weights)
    if room < 0:
        return Room(0, 0), f"the weights alone, {format_bytes(weights)}, do not fit"
    longest = _last(lambda count: subject.peak(count) <= room)
    most = _last(lambda count: subject.of_batch(count).peak(tokens) <= room)
    if longest == MAX_COUNT:
        # A state of fixed size: the context does not matter.
        return Room(None, most), "any context fits"
    return Room(longest, most), ""


def weight_bytes(spec: KvcacheSpec, subject: Subject) -> int | None:
    """Returns the bytes of the weights on one device: those given, or an equal share of a rank."""
    if spec.weights != "auto":
        return spec.weights
    whole = subject.layout.weight_bytes
    return None if whole is None else -(-whole // subject.engine.settings.tp)


def read_bytes(subject: Subject, tokens: int) -> int | None:
    """Returns the cache and state bytes that one decode step of the batch reads."""
    if subject.unsupported or not subject.engine.knows_parts:
        return None
    states = sum(
        kept.bytes(subject.dtypes)
        for part in subject.layout.parts()
        if part.is_state
        for kept in subject.engine.sharded(part).tensors(tokens)
    )
    return subject.allocate(tokens).kv_read_bytes + subject.batch * states


def flops(subject: Subject, tokens: int) -> int | None:
    """Returns the operations of one decode step of the batch on cache and state, of one rank."""
    if subject.unsupported:
        return None
    parts = [subject.engine.sharded(part) for part in subject.layout.parts()]
    heads, ranks = subject.layout.query_heads, subject.engine.settings.tp
    step = step_flops(parts, tokens, None if heads is None else -(-heads // ranks))
    return None if step is None else subject.batch * step


def floor_ms(spec: KvcacheSpec, subject: Subject, tokens: int) -> float | None:
    """Returns the least time of one decode step for reading cache and state, weights apart."""
    read = read_bytes(subject, tokens)
    if spec.bandwidth is None or read is None:
        return None
    return 1e3 * read / spec.bandwidth


def _last(fits: Callable[[int], bool]) -> int:
    """Returns the largest count up to `MAX_COUNT` that fits, 0 if none does."""
    if fits(MAX_COUNT):
        return MAX_COUNT
    low, high = 0, MAX_COUNT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
