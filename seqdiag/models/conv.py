"""Causal convolutions: short, gated, dilated, the residual block of TCN and that of WaveNet.

State: for each convolution of kernel K and dilation d, its last (K-1) d inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mixer import Mixer, State, conv_tail


class CausalConv(Mixer):
    """y_t = b + sum_j W_j x_{t - j d}: output t sees (K-1) d steps back and none ahead."""

    def __init__(
        self,
        width: int,
        kernel: int = 2,
        dilation: int = 1,
        depthwise: bool = False,
        out: int | None = None,
    ) -> None:
        super().__init__(width)
        self.reach = (kernel - 1) * dilation
        self.dilation = dilation
        self.conv = nn.Conv1d(
            width, out or width, kernel, dilation=dilation, groups=width if depthwise else 1
        )

    def init_state(self, batch: int) -> State:
        return (self._zeros(batch, self.reach, self.width),)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        padded = torch.cat([state[0], x], dim=1)
        return self.conv(padded.transpose(1, 2)).transpose(1, 2), (conv_tail(x, state[0]),)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        window = torch.cat([state[0], x_t.unsqueeze(1)], dim=1)
        taps = window[:, :: self.dilation]  # (B, K, D): the window is exactly as long as the reach
        if self.conv.groups > 1:
            y = (taps * self.conv.weight.squeeze(1).t()).sum(dim=1)
        else:
            y = torch.einsum("bkd,odk->bo", taps, self.conv.weight)
        return y if self.conv.bias is None else y + self.conv.bias, (window[:, 1:],)


class ShortConv(CausalConv):
    """A depthwise causal convolution of a few steps."""

    def __init__(self, width: int, kernel: int = 4) -> None:
        super().__init__(width, kernel, depthwise=True)


class BaseConv(Mixer):
    """conv(u) * (W u + b): a short convolution times a gate (Zoology, arXiv 2312.04927)."""

    def __init__(self, width: int, kernel: int = 3) -> None:
        super().__init__(width)
        self.conv = ShortConv(width, kernel)
        self.gate = nn.Linear(width, width)

    def init_state(self, batch: int) -> State:
        return self.conv.init_state(batch)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self.conv.scan(x, state)
        return y * self.gate(x), state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self.conv.step(x_t, state)
        return y * self.gate(x_t), state


class Chained(Mixer):
    """Layers one after the other, each with its state."""

    def __init__(self, width: int, layers: list[Mixer]) -> None:
        super().__init__(width)
        self.layers = nn.ModuleList(layers)

    def init_state(self, batch: int) -> State:
        return tuple(layer.init_state(batch) for layer in self._mixers())

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        states = []
        for layer, before in zip(self._mixers(), state, strict=True):
            x, after = layer.scan(x, before)
            states.append(after)
        return x, tuple(states)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        states = []
        for layer, before in zip(self._mixers(), state, strict=True):
            x_t, after = layer.step(x_t, before)
            states.append(after)
        return x_t, tuple(states)

    def _mixers(self) -> list[Mixer]:
        return [layer for layer in self.layers if isinstance(layer, Mixer)]


class TcnLevel(Mixer):
    """relu(x + relu(conv(relu(conv(x))))): two convolutions a level."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__(width)
        self.first = CausalConv(width, kernel, dilation)
        self.second = CausalConv(width, kernel, dilation)

    def init_state(self, batch: int) -> State:
        return self.first.init_state(batch), self.second.init_state(batch)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, first = self.first.scan(x, state[0])
        y, second = self.second.scan(F.relu(y), state[1])
        return F.relu(x + F.relu(y)), (first, second)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        y, first = self.first.step(x_t, state[0])
        y, second = self.second.step(F.relu(y), state[1])
        return F.relu(x_t + F.relu(y)), (first, second)


class TCN(Chained):
    """Residual levels of dilations 1, 2, 4 ... (Bai 2018, arXiv 1803.01271).

    Sees 1 + 2 (K-1) (2^L - 1) steps: two convolutions a level.
    """

    def __init__(self, width: int, kernel: int = 2, levels: int = 4) -> None:
        super().__init__(width, [TcnLevel(width, kernel, 2**i) for i in range(levels)])


class DilatedConv(Chained):
    """Plain dilated convolutions 1, 2, 4 ... with ReLU between: sees 1 + (K-1)(2^L - 1) steps."""

    def __init__(self, width: int, kernel: int = 2, levels: int = 5) -> None:
        layers: list[Mixer] = []
        for i in range(levels):
            layers += [CausalConv(width, kernel, 2**i)] + ([ReLU(width)] if i < levels - 1 else [])
        super().__init__(width, layers)


class ReLU(Mixer):
    """A rectifier that stands between layers."""

    def init_state(self, batch: int) -> State:
        return ()

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return F.relu(x), state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return F.relu(x_t), state


class WaveNet(Mixer):
    """Gated dilated convolutions with skip connections (van den Oord 2016, arXiv 1609.03499).

    z = tanh(W_f * x) sigmoid(W_g * x); the level passes x + W_r z on and adds W_s z to the output.
    """

    def __init__(self, width: int, kernel: int = 2, levels: int = 4) -> None:
        super().__init__(width)
        self.convs = nn.ModuleList(
            CausalConv(width, kernel, 2**i, out=2 * width) for i in range(levels)
        )
        # The last level passes nothing on: its signal leaves by the skip alone.
        passing = [nn.Linear(width, width) for _ in range(levels - 1)]
        self.residuals = nn.ModuleList([*passing, nn.Identity()])
        self.skips = nn.ModuleList(nn.Linear(width, width) for _ in range(levels))

    def init_state(self, batch: int) -> State:
        return tuple(conv.init_state(batch) for conv in self._levels())

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self._run(x, state, "scan")

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return self._run(x_t, state, "step")

    def _run(self, x: Tensor, state: State, form: str) -> tuple[Tensor, State]:
        out, states = torch.zeros_like(x), []
        levels = zip(self._levels(), self.residuals, self.skips, state, strict=True)
        for conv, residual, skip, before in levels:
            y, after = getattr(conv, form)(x, before)
            signal, gate = y.chunk(2, dim=-1)
            z = torch.tanh(signal) * torch.sigmoid(gate)
            x, out = x + residual(z), out + skip(z)
            states.append(after)
        return out, tuple(states)

    def _levels(self) -> list[CausalConv]:
        return [conv for conv in self.convs if isinstance(conv, CausalConv)]
