"""Modules such as a user would bring, for the tests and for trying the command."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyLM(nn.Module):
    """Token ids (B, T) to logits (B, T, vocab)."""

    def __init__(self, vocab: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.core = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.core(self.embedding(tokens))[0])


def tiny_lm(vocab: int = 50, width: int = 16) -> nn.Module:
    return TinyLM(vocab, width)


class RunningSum(nn.Module):
    """h_t = h_{t-1} + x_t: an identity transition, through which every gradient passes whole."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(dim=1)


class CausalConv(nn.Module):
    """Sees the last `kernel` steps and nothing before them."""

    def __init__(self, kernel: int = 4, width: int = 8) -> None:
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(width, width, kernel)

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x.transpose(1, 2), (self.kernel - 1, 0))
        return self.conv(padded).transpose(1, 2)


class Decaying(nn.Module):
    """h_t = a h_{t-1} + x_t by hand, so that its gradient can leave the range of any float."""

    def __init__(self, a: float = 0.1) -> None:
        super().__init__()
        self.a = a

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = torch.zeros_like(x[:, 0]), []
        for x_t in x.unbind(1):
            h = self.a * h + x_t
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class TimeFirst(nn.Module):
    """(T, B, D) in and out, in a tuple, as torch.nn.LSTM does."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(12, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.core(x)


class ChannelsFirst(nn.Module):
    """(B, D, T) in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class TwoOutputs(nn.Module):
    """A dict with two tensors that have the time axis."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.core(x).cumsum(1)
        return {"logits": hidden * 2, "hidden": hidden}


class LastOnly(nn.Module):
    """Returns one vector for the sequence: no time axis."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x)[0][:, -1]


class NotANumber(nn.Module):
    """Divides zero by zero on the way."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0 / 0).cumsum(1)


class Detached(nn.Module):
    """Cuts the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach().cumsum(1)


def noisy() -> nn.Module:
    print("a module that prints while it is built")  # noqa: T201
    return RunningSum()


def raises() -> nn.Module:
    raise ValueError("no such checkpoint\nsecond line")


def leaves() -> nn.Module:
    raise SystemExit(7)


def not_a_module() -> int:
    return 3


constant = 3
instance = RunningSum()
