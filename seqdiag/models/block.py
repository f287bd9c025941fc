"""A block: a mixer and an MLP on the residual stream, normalised in one of four places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mixer import Mixer, State, Stateless

Norm = Literal["pre", "post", "peri", "deepnorm"]
NormType = Literal["layer", "rms"]
MlpType = Literal["gelu", "swiglu", "geglu", "none"]
Form = Callable[[Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True, slots=True)
class BlockStyle:
    """Where a block normalises, with what, and which MLP it has.

    pre: x + F(LN x). post: LN(x + F(x)). peri (sandwich): x + LN(F(LN x)). deepnorm: LN(alpha x +
    F(x)) with alpha = (2 L)^(1/4) for L layers and weights of F scaled by (8 L)^(-1/4)
    (arXiv 2203.00555). Xiong 2020 (arXiv 2002.04745) compares the first two.
    """

    norm: Norm = "pre"
    norm_type: NormType = "layer"
    mlp: MlpType = "gelu"
    mlp_ratio: float = 4.0
    eps: float = 1e-5


class Mlp(nn.Module):
    """W_2 act(W_1 x), or W_2 (act(W_g x) * W_1 x) where it is gated."""

    def __init__(self, width: int, kind: MlpType, ratio: float, bias: bool = True) -> None:
        super().__init__()
        inner = int(width * ratio)
        self.kind = kind
        self.up_proj = nn.Linear(width, inner, bias=bias)
        if kind in ("swiglu", "geglu"):
            self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up_proj(x)
        if self.kind == "gelu":
            inner = F.gelu(up)
        elif self.kind == "swiglu":
            inner = F.silu(self.gate_proj(x)) * up
        else:
            inner = F.gelu(self.gate_proj(x), approximate="tanh") * up
        out: Tensor = self.down_proj(inner)
        return out


class Block(Mixer):
    """One layer of a stack: the mixer and the MLP, each on the residual stream."""

    def __init__(self, mixer: Mixer, style: BlockStyle, depth: int) -> None:
        super().__init__(mixer.width)
        self.mixer, self.norm = mixer, style.norm
        self.alpha = (2 * depth) ** 0.25 if style.norm == "deepnorm" else 1.0
        # A mixer that does not mix (an MLP-only block) has nothing on its branch.
        self.mixes = not isinstance(mixer, Stateless)
        self.mlp = (
            Mlp(self.width, style.mlp, style.mlp_ratio, bias=style.norm_type == "layer")
            if style.mlp != "none"
            else None
        )
        branches = int(self.mixes) + int(self.mlp is not None)
        self.norms = nn.ModuleList(make_norm(self.width, style) for _ in range(branches))
        inner = branches if style.norm == "peri" else 0
        self.out_norms = nn.ModuleList(make_norm(self.width, style) for _ in range(inner))
        if style.norm == "deepnorm":
            self._scale_weights((8 * depth) ** -0.25)

    def _scale_weights(self, beta: float) -> None:
        """Scales what a branch writes: values, output projections and the MLP."""
        scaled = ("v_proj", "out_proj", "up_proj", "gate_proj", "down_proj")
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("weight") and any(part in name for part in scaled):
                    parameter.mul_(beta)

    def init_state(self, batch: int) -> State:
        return self.mixer.init_state(batch)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self._run(x, state, self.mixer.scan)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return self._run(x_t, state, self.mixer.step)

    def _run(self, x: Tensor, state: State, mix: Form) -> tuple[Tensor, State]:
        index = 0
        if self.mixes:
            y, state = mix(self._before(x, index), state)
            x = self._after(x, y, index)
            index += 1
        if self.mlp is not None:
            x = self._after(x, self.mlp(self._before(x, index)), index)
        return x, state

    def _before(self, x: Tensor, index: int) -> Tensor:
        normed: Tensor = self.norms[index](x) if self.norm in ("pre", "peri") else x
        return normed

    def _after(self, x: Tensor, y: Tensor, index: int) -> Tensor:
        if self.norm == "pre":
            return x + y
        out: Tensor
        if self.norm == "peri":
            out = x + self.out_norms[index](y)
        else:
            out = self.norms[index](self.alpha * x + y)
        return out


def make_norm(width: int, style: BlockStyle) -> nn.Module:
    """Returns a LayerNorm, or an RMSNorm x / sqrt(mean x^2 + eps) g."""
    if style.norm_type == "rms":
        return nn.RMSNorm(width, eps=style.eps)
    return nn.LayerNorm(width, eps=style.eps)
