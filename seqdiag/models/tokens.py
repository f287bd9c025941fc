"""A language model around a stack, as small as recall needs; architectures named as sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from seqdiag.errors import UsageError, unknown
from seqdiag.models.block import BlockStyle
from seqdiag.models.registry import MIXERS, parse_pattern
from seqdiag.models.stack import Stack, StackSpec, architecture_names, load_architecture

SHORT = {
    "conv": "base-conv",
    "elu1": "linear-attention",
    "window": "sliding-attention",
}
"""What layers of a sum may also be called."""
_HEADED = {
    "attention", "sliding-attention", "linear-attention", "retention", "gla", "delta",
    "gated-delta",
}  # fmt: skip
_REACH = {"base-conv": 2, "short-conv": 3, "none": 0}
"""How many steps back a layer of its default kernel sees."""


class TokenModel(nn.Module):
    """Embedding, stack, and logits by the same embedding, all from torch's global stream."""

    def __init__(self, vocab: int, width: int, spec: StackSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.stack = Stack(width, spec)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns logits (B, Q, V) at positions (B, Q) of tokens (B, T)."""
        out = self.stack(self.embedding(tokens))
        index = positions.unsqueeze(-1).expand(-1, -1, out.shape[-1])
        logits: Tensor = torch.gather(out, 1, index) @ self.embedding.weight.t()
        return logits

    @torch.no_grad()
    def state_bytes(self, seq_len: int) -> int:
        """Returns the bytes of one sequence's state after `seq_len` steps, step counters aside."""
        zeros = self.embedding.weight.new_zeros(1, seq_len, self.stack.width)
        _, (_, states) = self.stack.scan(zeros, self.stack.init_state(1))
        return self.stack.state_bytes(_floats(states))


def _floats(states: tuple[Any, ...]) -> tuple[Any, ...]:
    kept: list[Any] = []
    for part in states:
        if isinstance(part, Tensor):
            kept += [part] if part.is_floating_point() else []
        else:
            kept.append(_floats(part))
    return tuple(kept)


def stack_of(
    arch: str | None, pattern: str | None, heads: int, window: int, width: int, seq_len: int
) -> StackSpec:
    """Returns the stack for `conv+attention`, a layer (twice), an architecture or a pattern.

    Pre-norm, no MLP. Where nothing but attention mixes, positions are learned. Raises `UsageError`.
    """
    if arch is not None and arch in architecture_names():
        return load_architecture(arch)
    names = parse_pattern(pattern) if pattern is not None else _sum_of(arch or "")
    if any(name in _HEADED for name in names) and width % heads:
        raise UsageError(f"--heads: {heads} does not divide --d-model {width}")
    options: dict[str, dict[str, Any]] = {n: {"heads": heads} for n in names if n in _HEADED}
    if "sliding-attention" in options:
        options["sliding-attention"]["window"] = window
    attends_only = all(name.endswith("attention") and name != "linear-attention" for name in names)
    spec = StackSpec(
        pattern="".join(MIXERS[name].letter for name in names),
        style=BlockStyle(mlp="none"),
        options=options,
    )
    return replace(spec, positions="learned", max_len=seq_len) if attends_only else spec


def _sum_of(arch: str) -> list[str]:
    names = [SHORT.get(part, part) for part in arch.replace("elu+1", "elu1").split("+")]
    for name in names:
        if name not in MIXERS:
            raise unknown("--arch", name, [*SHORT, *MIXERS, *architecture_names()])
    return names * 2 if len(names) == 1 else names


def reach_of(spec: StackSpec) -> int | None:
    """Returns how many steps back a stack sees, None where nothing bounds it or it is unknown."""
    steps = 0
    for name in spec.layers:
        if name == "sliding-attention":
            steps += int(spec.options.get(name, {}).get("window", 16)) - 1
        elif name in _REACH and name not in spec.options:
            steps += _REACH[name]
        else:
            return None
    return steps
