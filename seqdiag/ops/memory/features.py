"""Feature maps of linear attention: what stands in for the exponential of a product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqdiag.errors import unknown


def identity(x: Tensor) -> Tensor:
    return x


def elu1(x: Tensor) -> Tensor:
    """Returns elu(x) + 1 (Katharopoulos 2020, arXiv 2006.16236) without rounding it to zero.

    exp(x) - 1 + 1 loses a small exp(x) to the 1, in bfloat16 from -6 on; exp(x) does not.
    """
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def taylor2(x: Tensor) -> Tensor:
    """Returns [1, x / d^(1/4), vec(x x^T) / sqrt(2 d)]: products give 1 + s + s^2 / 2.

    s = q.k / sqrt(d), the second-order Taylor series of exp(s) (Based, arXiv 2402.18668).
    """
    width = x.shape[-1]
    second = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) / (2 * width) ** 0.5
    return torch.cat([torch.ones_like(x[..., :1]), x / width**0.25, second], dim=-1)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": identity,
    "elu1": elu1,
    "relu": torch.relu,
    "taylor2": taylor2,
}


def feature_map(name: str) -> Callable[[Tensor], Tensor]:
    """Returns a feature map by name."""
    if name not in FEATURE_MAPS:
        raise unknown("feature map", name, FEATURE_MAPS)
    return FEATURE_MAPS[name]
