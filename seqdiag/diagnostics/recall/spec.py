"""The question that `recall` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqdiag.errors import UsageError
from seqdiag.units import format_bytes

Task = Literal["mqar", "induction", "copy", "selective-copy"]
Equal = Literal["width", "params", "state"]
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
    probes: Literal["one", "all"] | None = None
    """None is all, and one with the article's draws."""
    draw: Literal["blocks", "article"] = "blocks"
    """`article`: number for number as "Sequence models before transformers" draws."""
    seed: int = 0
    task: Task | None = None
    arch: tuple[str, ...] | None = None
    pattern: str | None = None
    seq_len: tuple[int, ...] = (64,)
    vocab: int = 256
    d_model: int = 64
    equal: tuple[Equal, ...] = ("width",)
    """What the architectures have as much of as the first has at `d_model`."""
    heads: int = 1
    window: int = 16
    filler: Literal["zero", "random"] = "zero"
    updates: int = 1500
    batch: int = 128
    lr: float | None = None
    budget_s: float = 60.0
    seeds: int = 1
    jobs: int = 1
    scheduler: str | None = None
    """Address of a Dask scheduler whose workers train."""
    resume: str | None = None

    @property
    def one(self) -> bool:
        return self.probes == "one" or self.draw == "article"

    def check(self) -> None:
        """Raises `UsageError` for unknown memories and sizes that memory cannot hold."""
        if self.task is not None:
            self._check_training()
            return
        if self.draw == "article" and self.probes == "all":
            raise UsageError("--probes: the article probes one pair a trial; leave out all")
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

    def _check_training(self) -> None:
        if self.scheduler is not None and self.jobs > 1:
            raise UsageError("--jobs: is of this machine; --scheduler has workers of its own")
        if self.arch and self.pattern:
            raise UsageError("--pattern: is instead of --arch")
        if self.lr is not None and self.lr <= 0:
            raise UsageError(f"--lr: {self.lr:g} must be more than 0")
        if self.budget_s <= 0:
            raise UsageError(f"--budget: {self.budget_s:g} s must be more than 0")
        longest, widest = max(self.seq_len), max(self.d_model, self.vocab)
        need = 4 * self.batch * longest * max(self.d_model, longest)
        need = max(need, 4 * self.batch * max(self.pairs) * widest, 8 * self.vocab * self.d_model)
        if need > _LARGEST:
            raise UsageError(
                f"--batch: {self.batch} sequences of {longest} tokens need {format_bytes(need)} "
                f"in one tensor, more than {format_bytes(_LARGEST)}"
            )
