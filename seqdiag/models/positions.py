"""Positions: added to the input, or as rotations of queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["none", "ntk", "yarn"]


def sinusoidal(positions: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """Returns the encoding (T, D) of Vaswani 2017, section 3.5.

    PE[p, 2i] = sin(p / base^(2i/D)), PE[p, 2i+1] = cos of it: PE[p + k] is a rotation of PE[p].
    """
    angles = positions[:, None] * _frequencies(width, base, positions)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def _frequencies(width: int, base: float, like: Tensor) -> Tensor:
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device=like.device)
    return (base ** (-pairs / width)).to(like.dtype)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (RoFormer, arXiv 2104.09864): scores depend on the distance only.

    The halves of a head are rotated against each other (the layout of Llama). `factor` stretches
    the context: `ntk` raises the base so that the slowest pair turns `factor` times slower and the
    fastest is left alone; `yarn` (arXiv 2309.00071, section 3.2) blends interpolation and
    extrapolation by how often a pair turns within the `original` context, and sharpens the softmax.
    """

    head_dim: int
    base: float = 10_000.0
    scaling: Scaling = "none"
    factor: float = 1.0
    original: int = 2048
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """Returns x (B, H, T, D) rotated for the positions first, first + 1, ..."""
        positions = torch.arange(first, first + x.shape[2], dtype=torch.float64, device=x.device)
        angles = positions[:, None] * self.frequencies(x.device)
        scale = self.attention_scale()
        cos = (angles.cos() * scale).to(x.dtype).repeat(1, 2)
        sin = (angles.sin() * scale).to(x.dtype).repeat(1, 2)
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-high, low], dim=-1) * sin

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Returns the turns per step of each pair, in radians, (D/2,) in float64."""
        width, base = self.head_dim, self.base
        if self.scaling == "ntk":
            base = base * self.factor ** (width / (width - 2))
        pairs = torch.arange(0, width, 2, dtype=torch.float64, device=device)
        frequencies: Tensor = base ** (-pairs / width)
        if self.scaling != "yarn":
            return frequencies
        low, high = (self._pair_that_turns(turns) for turns in (self.beta_fast, self.beta_slow))
        low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
        index = torch.arange(width // 2, dtype=torch.float64, device=device)
        slow = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequencies * (1 - slow) + frequencies / self.factor * slow

    def _pair_that_turns(self, times: float) -> float:
        """Returns the (fractional) pair that turns `times` times within the original context."""
        steps_a_radian = self.original / (times * 2 * math.pi)
        return self.head_dim * math.log(steps_a_radian) / (2 * math.log(self.base))

    def attention_scale(self) -> float:
        """Returns YaRN's factor on queries and keys: 0.1 ln(factor) + 1."""
        return (
            0.1 * math.log(self.factor) + 1 if self.scaling == "yarn" and self.factor > 1 else 1.0
        )
