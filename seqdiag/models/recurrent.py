"""Recurrent layers in both forms: PyTorch's own over a sequence, and one step by the equations.

`scan` runs a whole sequence from a given state, `step` one time step; they are one function. The
state is a tuple of (B, H) tensors. Gate orders are PyTorch's: i, f, g, o and r, z, n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mixer import Mixer, State

Init = Literal["default", "orthogonal", "identity"]


class Recurrent(Mixer):
    """A layer whose state is a few (B, H) tensors, with H the width."""

    n_states = 1

    def init_state(self, batch: int) -> State:
        return tuple(self._zeros(batch, self.width) for _ in range(self.n_states))


class TorchRecurrent(Recurrent):
    """A layer of torch.nn; `cell` is its equations behind the two matrix products."""

    core: nn.RNNBase

    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        """Returns the state after a step: `inputs` is W_ih x_t + b_ih, `recurrent` W_hh h + b_hh.

        The first of the state is the output.
        """
        raise TypeError(f"{type(self).__name__} defines no cell")

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        weight_ih, weight_hh, bias_ih, bias_hh = _weights(self.core)
        recurrent = F.linear(state[0], weight_hh, bias_hh)
        state = self.cell(F.linear(x_t, weight_ih, bias_ih), recurrent, state)
        return state[0], state


class RNN(TorchRecurrent):
    """h_t = act(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), torch.nn.RNN."""

    def __init__(self, width: int, nonlinearity: Literal["tanh", "relu"] = "tanh") -> None:
        super().__init__(width)
        self.core = nn.RNN(width, width, nonlinearity=nonlinearity, batch_first=True)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, h = self.core(x, state[0].unsqueeze(0))
        return y, (h[0],)

    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        act = torch.tanh if self.core.nonlinearity == "tanh" else torch.relu
        return (act(inputs + recurrent),)


class LSTM(TorchRecurrent):
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t), torch.nn.LSTM. State: h, c."""

    n_states = 2

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.core = nn.LSTM(width, width, batch_first=True)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, (h, c) = self.core(x, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return y, (h[0], c[0])

    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        i, f, g, o = (inputs + recurrent).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def set_forget_bias(self, value: float) -> None:
        """Sets the effective forget bias: PyTorch adds two, so one carries it and one is zero."""
        forget = slice(self.width, 2 * self.width)
        with torch.no_grad():
            _, _, bias_ih, bias_hh = _weights(self.core)
            bias_ih[forget] = value
            bias_hh[forget] = 0.0


class GRU(TorchRecurrent):
    """n = tanh(W x + r (U h)), h_t = (1 - z) n + z h_{t-1}, torch.nn.GRU."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.core = nn.GRU(width, width, batch_first=True)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, h = self.core(x, state[0].unsqueeze(0))
        return y, (h[0],)

    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        r_x, z_x, n_x = inputs.chunk(3, dim=-1)
        r_h, z_h, n_h = recurrent.chunk(3, dim=-1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        return ((1 - z) * torch.tanh(n_x + r * n_h) + z * state[0],)


class LinearRecurrence(Recurrent):
    """h_t = a h_{t-1} + x_t: the gradient k steps back is a^k, whatever the input."""

    def __init__(self, width: int, multiplier: float) -> None:
        super().__init__(width)
        self.multiplier = multiplier  # a number, so that no cast rounds it
        self.register_buffer("anchor", torch.zeros(0), persistent=False)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for x_t in x.unbind(1):
            y_t, state = self.step(x_t, state)
            outputs.append(y_t)
        return torch.stack(outputs, dim=1), state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h = self.multiplier * state[0] + x_t
        return h, (h,)


def initialise(layer: RNN | LSTM | GRU, init: Init) -> None:
    """Sets every H x H recurrent block: orthogonal (Saxe 2013), or identity with zero biases.

    Identity is that of the IRNN (Le 2015, arXiv 1504.00941), for each gate. Orthogonal draws from
    torch's global stream; the biases stay as they were.
    """
    _, weight_hh, bias_ih, bias_hh = _weights(layer.core)
    with torch.no_grad():
        for block in torch.split(weight_hh, layer.width):
            if init == "orthogonal":
                nn.init.orthogonal_(block)
            elif init == "identity":
                nn.init.eye_(block)
        if init == "identity":
            bias_ih.zero_()
            bias_hh.zero_()


def scan_side_by_side(layers: Sequence[TorchRecurrent], x: Tensor) -> Tensor:
    """Returns the outputs (S, B, T, H) of S layers of one kind, each over its own x (S, B, T, D).

    Many small layers take the time of few: each step is one batched product over all of them.
    """
    weights = zip(*(_weights(layer.core) for layer in layers), strict=True)
    weight_ih, weight_hh, bias_ih, bias_hh = (torch.stack(group).detach() for group in weights)
    gates = torch.baddbmm(bias_ih.unsqueeze(1), x.flatten(1, 2), weight_ih.transpose(1, 2))
    transition, bias = weight_hh.transpose(1, 2).contiguous(), bias_hh.unsqueeze(1)
    zeros = x.new_zeros(len(layers), x.shape[1], layers[0].width)
    state: State = (zeros,) * layers[0].n_states
    outputs = []
    for inputs in gates.view(*x.shape[:3], -1).unbind(2):
        state = layers[0].cell(inputs, torch.baddbmm(bias, state[0], transition), state)
        outputs.append(state[0])
    return torch.stack(outputs, dim=2)


def _weights(core: nn.RNNBase) -> list[nn.Parameter]:
    """Returns W_ih, W_hh, b_ih, b_hh of a one-layer core."""
    weights: list[list[nn.Parameter]] = core.all_weights
    return weights[0]
