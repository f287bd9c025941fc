"""Replacing inputs and looking which outputs change.

A dependency shows by intervention, not by a gradient: dead units and detached statistics have no
gradient although they depend, and the rounding of an FFT has one although it does not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from seqdiag.measure.probes import Run

_LARGE = 250_000
"""How many parameters it takes before a second thread helps."""
_TOKENS = 8192
"""How many steps one forward pass takes at most, over all sequences of its batch."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What counts as a change, relative to the size of the outputs."""

    leak: float
    """At one step of the output: far above rounding, because a leak is a verdict."""
    response: float
    """Of the largest output anywhere: just above rounding, because responses fade with the lag."""
    floor: float
    """A step is compared with its own size, but with no less than this much of the largest."""


_TOLERANCES = {
    torch.float64: Tolerance(leak=1e-9, response=1e-13, floor=1e-6),
    torch.float32: Tolerance(leak=1e-4, response=3e-6, floor=1e-2),
}


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Returns the tolerances of a dtype, float64 or float32."""
    return _TOLERANCES[dtype]


@dataclass(frozen=True, slots=True)
class Changes:
    """What M replacements did to N outputs, (M, N) each; nan where an output was not finite."""

    relative: Tensor
    """Change over the size of that step."""
    response: Tensor
    """Change over the largest output."""


def batch_for(seq_len: int, module: nn.Module, most: int = 64) -> int:
    """Returns how many sequences of `seq_len` steps go through at once.

    Few where a pass takes long, since the last batch is filled up.
    """
    large = sum(parameter.numel() for parameter in module.parameters()) > 4 * _LARGE
    return max(2, min(most, (_TOKENS // 8 if large else _TOKENS) // seq_len))


@dataclass
class Replacement:
    """A module with one input, of which pieces are replaced by fresh values.

    `x` (B, T, D) holds the same sequence B times; `run` maps it to (B, N, ...).
    """

    run: Run
    x: Tensor
    seed: int
    tolerances: Tolerance
    _outputs: dict[tuple[float, int], Tensor] = field(default_factory=dict)

    @property
    def seq_len(self) -> int:
        return self.x.shape[1]

    @functools.cached_property
    def n_outputs(self) -> int:
        return self.outputs(1.0, 0).shape[1]

    @functools.cached_property
    def _size(self) -> float:
        size = self.x.std().item() if self.x.numel() > 1 else 0.0
        return size if size > 0 else 1.0

    def inputs(self, scale: float, draw: int) -> Tensor:
        """Returns the sequence that is left alone, (B, T, D): `x`, or another for another draw."""
        if draw == 0:
            return self.x * scale
        return (self._drawn(2 * draw) * scale).expand_as(self.x)

    def outputs(self, scale: float, draw: int) -> Tensor:
        """Returns what comes out of it, (B, N, F)."""
        key = (scale, draw)
        if key not in self._outputs:
            self._outputs[key] = self._forward(self.inputs(scale, draw))
        return self._outputs[key]

    def is_random(self) -> bool:
        """Returns whether the same input gives something else a second time."""
        again = self._forward(self.x)
        return not torch.equal(again.nan_to_num(), self.outputs(1.0, 0).nan_to_num())

    def finite(self, scale: float) -> bool:
        """Returns whether the outputs are finite."""
        return bool(self.outputs(scale, 0).isfinite().all())

    def changes(
        self, replaced: Tensor, scale: float = 1.0, draw: int = 0, amplify: float = 1.0
    ) -> Changes:
        """Returns what it does to replace the inputs that `replaced` (M, T) marks.

        The fresh values are `amplify` times as large as the others.
        """
        batch = self.x.shape[0]
        base, before = self.inputs(scale, draw), self.outputs(scale, draw)
        fresh = self._drawn(2 * draw + 1) * (scale * amplify)
        relative, response = [], []
        for marks in torch.split(replaced.to(self.x.device), batch):
            rows = torch.zeros(batch, self.seq_len, dtype=torch.bool, device=self.x.device)
            rows[: len(marks)] = marks
            after = self._forward(torch.where(rows.unsqueeze(-1), fresh, base))
            change = (after - before).abs().amax(dim=2)
            sizes = torch.maximum(after.abs(), before.abs()).amax(dim=2)
            largest = sizes.amax(dim=1, keepdim=True)
            step = torch.maximum(sizes, largest * self.tolerances.floor)
            relative.append((change / _positive(step))[: len(marks)])
            response.append((change / _positive(largest))[: len(marks)])
        return Changes(torch.cat(relative).cpu(), torch.cat(response).cpu())

    def _drawn(self, draw: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1000 + 7 * draw + 1)
        shape = (1, self.seq_len, *self.x.shape[2:])
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * self._size
        return drawn.to(self.x)

    def _forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            output = self.run(x.clone())  # a module may change its input
        return output.detach().to(torch.promote_types(output.dtype, torch.float32)).flatten(2)


def seeded(run: Run, seed: int) -> Run:
    """Returns `run` with the global random stream at the same place for every call."""

    def same(x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(seed)
            return run(x)

    return same


@contextlib.contextmanager
def few_threads(module: nn.Module) -> Iterator[None]:
    """Runs a small module on one thread: waking the others takes longer than their share."""
    before = torch.get_num_threads()
    if sum(parameter.numel() for parameter in module.parameters()) < _LARGE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _positive(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, torch.ones_like(size))


def before(cuts: list[int], seq_len: int) -> Tensor:
    """Returns the marks (M, T) of the prefixes [0, cut)."""
    return torch.arange(seq_len) < torch.tensor(cuts, dtype=torch.int64).unsqueeze(1)


def after(cuts: list[int], seq_len: int) -> Tensor:
    """Returns the marks (M, T) of the suffixes [cut, T)."""
    return ~before(cuts, seq_len)


def each(steps: list[int], seq_len: int) -> Tensor:
    """Returns the marks (M, T) of single steps."""
    return torch.arange(seq_len) == torch.tensor(steps, dtype=torch.int64).unsqueeze(1)
