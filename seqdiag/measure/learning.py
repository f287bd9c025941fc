"""Training a token model on a recall task until it answers, or until the budget is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from seqdiag.measure.tasks import Examples, Problem, draw
from seqdiag.models.tokens import TokenModel
from seqdiag.ops.threads import one_thread

HELD_OUT = 1000
_EVERY, _WARM_UP, _DONE = 50, 50, 0.99
_SCORED_AT_ONCE = 125
_HELD_OUT_SEED, _TRAIN_SEED = 10**9, 2 * 10**9
"""Added to the seed, so that no training batch is ever a held-out one."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """AdamW with warm-up, cosine and clipping."""

    updates: int
    batch: int
    lr: float
    budget_s: float
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(slots=True)
class Learned:
    """What training came to, on held-out sequences but for `train_accuracy`."""

    updates: int = 0
    to_50: int | None = None
    to_99: int | None = None
    accuracy: float = 0.0
    in_set: float = 0.0
    train_accuracy: float = 0.0
    cpu_s: float = 0.0
    loss: float = 0.0
    cut: bool = False
    """Whether the budget ended training before its last update."""


def learn(
    model: TokenModel,
    problem: Problem,
    recipe: Recipe,
    seed: int,
    tell: Callable[[int, float], None] | None = None,
) -> Learned:
    """Returns what `model` learned: fresh sequences every update, loss at the questions only, on
    one thread.

    Held-out accuracy is taken every 50 updates; training ends at 99 %, at the last update or when
    the CPU seconds of this process reach the budget. `tell` hears updates and accuracy each time.
    """
    with one_thread(model.embedding.weight):
        return _learn(model, problem, recipe, seed, tell or (lambda updates, accuracy: None))


def _learn(
    model: TokenModel,
    problem: Problem,
    recipe: Recipe,
    seed: int,
    tell: Callable[[int, float], None],
) -> Learned:
    held_out = draw(problem, HELD_OUT, torch.Generator().manual_seed(seed + _HELD_OUT_SEED))
    generator = torch.Generator().manual_seed(seed + _TRAIN_SEED)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _cosine(recipe.updates))
    learned, began = Learned(), time.process_time()
    for update in range(1, recipe.updates + 1):
        examples = draw(problem, recipe.batch, generator)
        logits = model(examples.tokens, examples.asked_at)
        loss = F.cross_entropy(logits.flatten(0, 1), examples.answers.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
        schedule.step()
        learned.cpu_s = time.process_time() - began
        learned.cut = learned.cpu_s >= recipe.budget_s and update < recipe.updates
        if update % _EVERY and update < recipe.updates and not learned.cut:
            continue
        learned.loss = float(loss.detach())
        learned.train_accuracy = _right(logits.detach(), examples)
        _score(model, held_out, learned, update)
        tell(update, learned.accuracy)
        if learned.accuracy >= _DONE or learned.cut or not math.isfinite(learned.loss):
            break
    learned.cpu_s = time.process_time() - began
    return learned


@torch.no_grad()
def _score(model: TokenModel, held_out: Examples, learned: Learned, update: int) -> None:
    tokens, asked_at = held_out.tokens, held_out.asked_at
    parts = [slice(i, i + _SCORED_AT_ONCE) for i in range(0, HELD_OUT, _SCORED_AT_ONCE)]
    answers = torch.cat([model(tokens[part], asked_at[part]).argmax(dim=-1) for part in parts])
    learned.updates = update
    learned.accuracy = float((answers == held_out.answers).double().mean())
    among = (answers.unsqueeze(-1) == held_out.candidates.unsqueeze(1)).any(dim=-1)
    learned.in_set = float(among.double().mean())
    if learned.to_50 is None and learned.accuracy >= 0.5:
        learned.to_50 = update
    if learned.to_99 is None and learned.accuracy >= _DONE:
        learned.to_99 = update


def _right(logits: Tensor, examples: Examples) -> float:
    return float((logits.argmax(dim=-1) == examples.answers).double().mean())


def _cosine(updates: int) -> Callable[[int], float]:
    def scale(done: int) -> float:
        if done < _WARM_UP:
            return (done + 1) / _WARM_UP
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - _WARM_UP) / max(1, updates))))

    return scale


def reachable(problem: Problem, seed: int, reach: int | None) -> float:
    """Returns the share of held-out questions whose answer lies within `reach` steps."""
    if reach is None:
        return 1.0
    held_out = draw(problem, HELD_OUT, torch.Generator().manual_seed(seed + _HELD_OUT_SEED))
    return float((held_out.asked_at - held_out.needed_from <= reach).double().mean())
