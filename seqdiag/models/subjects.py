"""The built-in subjects: recurrent layers drawn from one stream, as the articles draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seqdiag.errors import UsageError, unknown
from seqdiag.models.recurrent import (
    GRU,
    LSTM,
    RECURRENT,
    RNN,
    Init,
    LinearRecurrence,
    Recurrent,
    initialise,
)

ARCHITECTURES = {
    "rnn": "torch.nn.RNN, h_t = tanh(W x_t + U h_{t-1} + b)",
    "lstm": "torch.nn.LSTM",
    "gru": "torch.nn.GRU",
    "linear": "h_t = a h_{t-1} + x_t, one subject for each --multiplier",
}


@dataclass(frozen=True, slots=True)
class RecurrentOptions:
    """How the built-in layers are made."""

    width: int
    init: Init = "default"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    forget_bias: float | None = None
    multipliers: tuple[float, ...] = (0.9, 0.99, 1.0, 1.1)


def check_architectures(names: tuple[str, ...], options: RecurrentOptions) -> None:
    """Raises `UsageError` for an unknown name or an option that none of `names` has."""
    for name in names:
        if name not in ARCHITECTURES:
            raise unknown("--arch", name, ARCHITECTURES)
    if options.forget_bias is not None and "lstm" not in names:
        raise UsageError("--forget-bias is of lstm, which is not among --arch")
    if options.nonlinearity != "tanh" and "rnn" not in names:
        raise UsageError("--nonlinearity is of rnn, which is not among --arch")


def draw_subjects(
    names: tuple[str, ...], options: RecurrentOptions, batch: int, seq_len: int, seed: int
) -> tuple[Tensor, dict[str, Recurrent]]:
    """Returns inputs (B, T, D) and the layers by subject name, all in float32.

    One stream seeded by `seed`: the inputs first, then the layers in the order of `names`. Torch's
    own layers draw from the global stream, which is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.randn(batch, seq_len, options.width)
        layers: dict[str, Recurrent] = {}
        for name in names:
            if name == "linear":
                for a in options.multipliers:
                    layers[f"linear({a:g})"] = LinearRecurrence(options.width, a)
            else:
                layers[name] = _draw(name, options)
    return x, layers


def _draw(name: str, options: RecurrentOptions) -> Recurrent:
    if name == "rnn":
        layer: Recurrent = RNN(options.width, options.nonlinearity)
    else:
        layer = RECURRENT[name](options.width)
    if options.init != "default" and isinstance(layer, RNN | LSTM | GRU):
        initialise(layer, options.init)
    if options.forget_bias is not None and isinstance(layer, LSTM):
        layer.set_forget_bias(options.forget_bias)
    return layer
