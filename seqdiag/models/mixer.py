"""The contract of every sequence layer: a parallel form and a recurrent form of one function."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

State = tuple[Any, ...]
"""Tensors, nested in tuples as the layer likes."""


class Mixer(nn.Module, ABC):
    """A causal layer (B, T, D) -> (B, T, D) that mixes over time.

    `forward` is the parallel form from the empty state, `step` the recurrent form; `scan` is the
    parallel form from any state, so a sequence may be split anywhere.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Returns the empty state in the dtype and on the device of the layer."""

    @abstractmethod
    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Returns the outputs (B, T, D) and the state after the last step."""

    @abstractmethod
    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Returns the output (B, D) of one step and the next state."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scan(x, self.init_state(x.shape[0]))[0]

    def state_bytes(self, state: State) -> int:
        """Returns the bytes that the state holds."""
        return sum(part.numel() * part.element_size() for part in state_tensors(state))

    def _zeros(self, *shape: int) -> Tensor:
        """Returns zeros in the dtype and on the device of the layer."""
        return next(itertools.chain(self.parameters(), self.buffers())).new_zeros(shape)


def state_tensors(state: State) -> list[Tensor]:
    """Returns the tensors of a state."""
    tensors: list[Tensor] = []
    for part in state:
        tensors += [part] if isinstance(part, Tensor) else state_tensors(part)
    return tensors


class Stateless(Mixer):
    """A layer that looks at one step only, so that a stack may leave mixing out."""

    def init_state(self, batch: int) -> State:
        return ()

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return x, state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return x_t, state


def conv_tail(x: Tensor, tail: Tensor) -> Tensor:
    """Returns the last inputs (B, K-1, D) that a causal convolution will read again."""
    return torch.cat([tail, x], dim=1)[:, x.shape[1] :]
