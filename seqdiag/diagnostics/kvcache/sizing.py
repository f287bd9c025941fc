"""The figures that the views share: bytes of some parts of a subject at a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from seqdiag.diagnostics.kvcache.subject import Subject
from seqdiag.predict.kv_cache.layout import Part


class Sizes(TypedDict):
    """Columns of a row that come from one allocation; None where the engine has none."""

    kv_bytes: int | None
    state_bytes: int | None
    total_bytes: int | None
    window_bytes: int | None
    cross_bytes: int | None
    recurrent_bytes: int | None
    kv_bytes_per_token: int | None
    kv_read_bytes: int | None


_NONE = Sizes(
    kv_bytes=None,
    state_bytes=None,
    total_bytes=None,
    window_bytes=None,
    cross_bytes=None,
    recurrent_bytes=None,
    kv_bytes_per_token=None,
    kv_read_bytes=None,
)


def sizes(subject: Subject, tokens: int, parts: Sequence[Part] | None = None) -> Sizes:
    """Returns the figures of `parts`, of the whole model if None."""
    if subject.unsupported:
        return _NONE
    need, known = subject.allocate(tokens, parts), subject.engine.knows_parts
    return Sizes(
        kv_bytes=need.kv_bytes,
        state_bytes=need.state_bytes,
        total_bytes=need.total_bytes,
        window_bytes=need.window_bytes if known else None,
        cross_bytes=need.cross_bytes if known else None,
        recurrent_bytes=need.recurrent_bytes if known else None,
        kv_bytes_per_token=subject.per_token(tokens, parts),
        kv_read_bytes=need.kv_read_bytes if known else None,
    )
