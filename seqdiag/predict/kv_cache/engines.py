"""What an engine keeps for a layout. To add one: a class and a line in `ENGINES`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from seqdiag.predict.kv_cache.layout import Dtypes, Part


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes for a whole batch at one context."""

    kv_bytes: int
    state_bytes: int
    kv_read_bytes: int
    """Cache bytes that one decode step reads."""

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.state_bytes


class Engine(Protocol):
    """Says how many bytes parts take at `tokens` tokens in each of `batch` sequences."""

    name: str

    def allocate(
        self, parts: Iterable[Part], tokens: int, batch: int, dtypes: Dtypes
    ) -> Allocation: ...


class Ideal:
    """What the mechanism needs and no more: no padding, no paging, no copies."""

    name = "ideal"

    def allocate(
        self, parts: Iterable[Part], tokens: int, batch: int, dtypes: Dtypes
    ) -> Allocation:
        kv = state = 0
        for part in parts:
            kept = part.tensors(tokens)
            size = batch * sum(t.elements * dtypes.itemsize(t.role) for t in kept)
            if part.is_state:
                state += size
            else:
                kv += size
        # Each cached key and value is read once by one decode step.
        return Allocation(kv_bytes=kv, state_bytes=state, kv_read_bytes=kv)


ENGINES: dict[str, type[Engine]] = {"ideal": Ideal}
