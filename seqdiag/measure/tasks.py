"""Recall tasks made of random tokens: what is asked, where, and where the answer stood.

Everything is drawn with top-k of random numbers; token 0 is filler unless asked otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FILLER = 0
BOUND = ("mqar", "induction")
"""Tasks whose answers are bound to keys, ids of their own."""
_POWER = 0.01
"""Exponent a of the query gaps, p(x) ~ x^(a - 1): most queries come early (arXiv 2312.04927)."""


@dataclass(frozen=True, slots=True)
class Examples:
    """B sequences with Q questions each."""

    tokens: Tensor
    """(B, T) ids."""
    asked_at: Tensor
    """(B, Q) positions whose output is scored."""
    answers: Tensor
    """(B, Q) ids."""
    needed_from: Tensor
    """(B, Q) the earliest position that has to be seen to answer."""
    candidates: Tensor
    """(B, S) the ids that a memory without binding would choose from."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The size of a task."""

    task: str
    vocab: int
    seq_len: int
    pairs: int
    random_filler: bool = False

    def why_not(self) -> str | None:
        """Returns why there is no such task, naming the option to change."""
        half = self.vocab // 2
        if self.vocab < 4:
            return f"--vocab: {self.vocab} is fewer than 4"
        if self.pairs > half - 1:
            return f"--pairs: {self.pairs} is more than vocab/2 - 1 = {half - 1} distinct keys"
        times = {"mqar": 4, "induction": 3, "copy": 2, "selective-copy": 2}[self.task]
        if self.seq_len < times * self.pairs:
            return (
                f"--pairs: {times} x {self.pairs} = {times * self.pairs} tokens do not fit into "
                f"--seq-len {self.seq_len}"
            )
        if self.random_filler and self.task not in BOUND:
            return (
                f"--filler: random filler would be indistinguishable from the words of {self.task}"
            )
        if self.random_filler and self.vocab - 2 <= 2 * self.pairs:
            return f"--filler: {self.vocab} ids leave none that is neither key nor value"
        return None


def draw(problem: Problem, batch: int, generator: torch.Generator) -> Examples:
    """Returns `batch` fresh sequences of the problem."""
    return TASKS[problem.task](problem, batch, generator)


def mqar(problem: Problem, batch: int, generator: torch.Generator) -> Examples:
    """Multi-query associative recall (Zoology, arXiv 2312.04927): k v k v ... then keys asked.

    Keys are ids 1 .. V/2 - 1, values V/2 .. V - 1, no id twice in a sequence. Key i is asked once,
    at an even distance behind the pairs; the answer is its value, scored at the key itself.
    """
    n, half = problem.pairs, problem.vocab // 2
    keys = 1 + _choose(batch, half - 1, n, generator)
    values = half + _choose(batch, problem.vocab - half, n, generator)
    slots = (problem.seq_len - 2 * n) // 2
    gaps = torch.arange(1, slots + 1, dtype=torch.float64).log() * (_POWER - 1)
    asked_at = 2 * n + 2 * _choose(batch, slots, n, generator, gaps)
    tokens = _filler(problem, batch, torch.cat([keys, values], dim=1), generator)
    tokens[:, 0 : 2 * n : 2], tokens[:, 1 : 2 * n : 2] = keys, values
    tokens.scatter_(1, asked_at, keys)
    needed = (2 * torch.arange(n)).expand(batch, n)
    return Examples(tokens, asked_at, values, needed, values)


def induction(problem: Problem, batch: int, generator: torch.Generator) -> Examples:
    """Induction heads: what followed this token? (H3, arXiv 2212.14052, of many tokens at once.)

    n triggers, ids 1 .. V/2 - 1, stand anywhere in filler, each followed by its answer, V/2 .. V -
    1; no id twice. The last n positions hold the triggers again, in another order.
    """
    n, half = problem.pairs, problem.vocab // 2
    triggers = 1 + _choose(batch, half - 1, n, generator)
    answers = half + _choose(batch, problem.vocab - half, n, generator)
    # Where n pairs go among the other cells, each then as wide as two.
    cells = _choose(batch, problem.seq_len - 2 * n, n, generator).sort(dim=1).values
    places = cells + torch.arange(n)
    tokens = _filler(problem, batch, torch.cat([triggers, answers], dim=1), generator)
    tokens.scatter_(1, places, triggers)
    tokens.scatter_(1, places + 1, answers)
    order = _choose(batch, n, n, generator)
    tokens[:, -n:] = triggers.gather(1, order)
    asked_at = (problem.seq_len - n + torch.arange(n)).expand(batch, n)
    return Examples(tokens, asked_at, answers.gather(1, order), places.gather(1, order), answers)


def copy(problem: Problem, batch: int, generator: torch.Generator) -> Examples:
    """n tokens, filler, and at the last n positions the tokens again, in order."""
    n = problem.pairs
    return _copied(problem, torch.arange(n).expand(batch, n), generator)


def selective_copy(problem: Problem, batch: int, generator: torch.Generator) -> Examples:
    """n tokens scattered in filler, asked for in order at the end (Mamba, arXiv 2312.00752)."""
    places = _choose(batch, problem.seq_len - problem.pairs, problem.pairs, generator)
    return _copied(problem, places.sort(dim=1).values, generator)


def _copied(problem: Problem, places: Tensor, generator: torch.Generator) -> Examples:
    """Tokens 2 .. V - 1 at `places`; token 1 says that an answer is wanted."""
    batch, n = places.shape
    words = 2 + _choose(batch, problem.vocab - 2, n, generator)
    tokens = _filler(problem, batch, words, generator)
    tokens.scatter_(1, places, words)
    tokens[:, -n:] = 1
    asked_at = (problem.seq_len - n + torch.arange(n)).expand(batch, n)
    return Examples(tokens, asked_at, words, places, words)


TASKS: dict[str, Callable[[Problem, int, torch.Generator], Examples]] = {
    "mqar": mqar,
    "induction": induction,
    "copy": copy,
    "selective-copy": selective_copy,
}


def _choose(
    batch: int,
    among: int,
    count: int,
    generator: torch.Generator,
    log_weights: Tensor | None = None,
) -> Tensor:
    """Returns (B, count) distinct numbers below `among`, in the order drawn.

    The largest of log w - log(-log U) are a draw without replacement by weight w (Gumbel top-k).
    """
    scores = torch.rand(batch, among, generator=generator, dtype=torch.float64)
    if log_weights is not None:
        scores = log_weights - torch.log(-torch.log(scores.clamp(min=1e-300)))
    return scores.topk(count, dim=1).indices


def _filler(problem: Problem, batch: int, used: Tensor, generator: torch.Generator) -> Tensor:
    """Returns (B, T) of token 0, or of random ids from 2 up that the sequence does not use."""
    if not problem.random_filler:
        return torch.full((batch, problem.seq_len), FILLER)
    weights = torch.ones(batch, problem.vocab)
    weights[:, :2] = 0
    weights.scatter_(1, used, 0.0)
    return torch.multinomial(weights, problem.seq_len, replacement=True, generator=generator)
