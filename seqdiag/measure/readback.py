"""Writing random pairs into a memory and reading them back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.ops.threads import one_thread

Reader = Callable[[Tensor, Tensor], Tensor]
"""Reads (B, N, V) of keys (B, N, K) and values (B, N, V)."""

_BLOCK_NUMBERS = 2**21
"""Numbers in the largest matrix of a block of trials, 8 MiB: N x N distances, N x K keys."""
_PAIRS_A_BLOCK = 4096


@dataclass(slots=True)
class Tally:
    """What the probes of one problem gave."""

    probes: int = 0
    hits: int = 0
    error: float = 0.0
    size: float = 0.0
    square_hits: float = 0.0
    """The sum over trials of the squared share of hits, for the spread between trials."""
    trials: int = 0

    @property
    def accuracy(self) -> float:
        return self.hits / self.probes

    @property
    def rel_error(self) -> float:
        return self.error / self.size if self.size else math.nan

    @property
    def independent_probes(self) -> float:
        """How many independent probes would spread as much as these: those of a trial share keys.

        p (1 - p) over the variance of the mean between trials, at most the number of probes.
        """
        p, trials = self.accuracy, self.trials
        spread = (self.square_hits / trials - p * p) / max(1, trials - 1)
        if p in (0.0, 1.0) or spread <= 0 or self.probes == trials:
            return self.probes
        return min(float(self.probes), max(float(trials), p * (1 - p) / spread))


def read_back(
    read: Reader, pairs: int, state_dim: int, value_dim: int, trials: int, seed: int, one: bool
) -> Tally:
    """Returns the tally over `trials` memories of `pairs` pairs, each probed with every key.

    Keys are uniform on the unit sphere, values N(0, I); a read is right if no other value is
    nearer. With `one` only one pair of each trial is probed. Trials go through in blocks whose
    matrices have a bounded size.
    """
    generator = torch.Generator().manual_seed(seed)
    widest = pairs * max(pairs, state_dim, value_dim)
    block = max(1, min(trials, _BLOCK_NUMBERS // widest, max(1, _PAIRS_A_BLOCK // pairs)))
    k, v = torch.empty(block, pairs, state_dim), torch.empty(block, pairs, value_dim)
    tally = Tally()
    with one_thread(k), torch.no_grad():
        _fill(tally, read, k, v, trials, generator, one)
    return tally


def read_back_in_order(
    read: Reader, loads: Sequence[int], state_dim: int, value_dim: int, trials: int, seed: int
) -> Iterator[Tally]:
    """Yields the tally at each of `loads`, drawn as "Sequence models before transformers" draws.

    One stream goes through the loads in order, trial by trial: keys, then values. Trial t probes
    pair t mod n.
    """
    generator = torch.Generator().manual_seed(seed)
    for pairs in loads:
        tally = Tally()
        with torch.no_grad():
            for trial in range(trials):
                keys = torch.randn(1, pairs, state_dim, generator=generator)
                values = torch.randn(1, pairs, value_dim, generator=generator)
                keys /= keys.norm(dim=-1, keepdim=True)
                probe = torch.tensor([[trial % pairs]])
                with one_thread(keys):
                    _count(tally, read(keys, values)[:, trial % pairs, None], values, probe)
        yield tally


def _fill(
    tally: Tally,
    read: Reader,
    k: Tensor,
    v: Tensor,
    trials: int,
    generator: torch.Generator,
    one: bool,
) -> None:
    """Runs the trials through the buffers k (B, N, K) and v (B, N, V), block by block."""
    block, pairs = k.shape[:2]
    for first in range(0, trials, block):
        count = min(block, trials - first)
        keys = k[:count].normal_(generator=generator)
        values = v[:count].normal_(generator=generator)
        keys /= keys.norm(dim=-1, keepdim=True)
        reads = read(keys, values)
        rows = torch.arange(count)
        if one:
            probe = torch.randint(pairs, (count,), generator=generator).unsqueeze(1)
            _count(tally, reads[rows[:, None], probe], values, probe)
        else:
            _count(tally, reads, values, torch.arange(pairs).expand(count, -1))


def _count(tally: Tally, reads: Tensor, values: Tensor, probe: Tensor) -> None:
    """Adds reads (B, P, V) of the pairs probe (B, P) to the tally."""
    half = values.square().sum(dim=-1, keepdim=True).transpose(1, 2) / 2
    nearest = torch.baddbmm(half, reads, values.transpose(1, 2), alpha=-1).argmin(dim=-1)
    right = nearest == probe
    true = torch.gather(values, 1, probe.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
    tally.probes += right.numel()
    tally.trials += right.shape[0]
    tally.hits += int(right.sum())
    tally.square_hits += float(right.double().mean(dim=1).square().sum())
    tally.error += float((reads - true).square().sum(dtype=torch.float64))
    tally.size += float(true.square().sum(dtype=torch.float64))
