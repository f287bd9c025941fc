"""The question that `recall` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqdiag.errors import UsageError
from seqdiag.units import format_bytes

_LARGEST = 2**31
"""Bytes of the matrices of one trial: more is refused rather than swapped."""


@dataclass(frozen=True, slots=True)
class RecallSpec:
    """The question: which memories, of what size, at which load."""

    memory: tuple[str, ...] = ("linear",)
    state_dim: tuple[int, ...] = (64,)
    value_dim: int | None = None
    pairs: tuple[int, ...] = (8, 32, 64, 128, 512)
    trials: int | None = None
    probes: Literal["one", "all"] = "all"
    seed: int = 0

    @property
    def one(self) -> bool:
        return self.probes == "one"

    def check(self) -> None:
        """Raises `UsageError` for unknown memories and sizes that memory cannot hold."""
        from seqdiag.models.memories import parse_memory

        for text in self.memory:
            parse_memory(text)
        pairs, dim = max(self.pairs), max(*self.state_dim, self.value_dim or 1)
        need = 4 * (3 * pairs * max(pairs, dim) + dim * dim)
        if need > _LARGEST:
            raise UsageError(
                f"--pairs: {pairs} pairs of {dim} numbers need {format_bytes(need)} a trial, "
                f"more than {format_bytes(_LARGEST)}"
            )
