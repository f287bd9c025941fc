"""What the scale 1/sqrt(d_k) does to the softmax of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class SoftmaxHealth:
    """Medians over queries of one attention with keys and queries from N(0, I)."""

    logit_variance: float
    jacobian_trace: float
    """Of diag(p) - p p^T: 1 - sum p^2, 0 where one key takes all."""
    entropy_nats: float
    grad_norm: float
    """Of d(random direction of the read) / d logits."""


def softmax_health(d_k: int, scaled: bool, keys: int, seed: int) -> SoftmaxHealth:
    """Returns how saturated the rows of softmax(q k^T) are, with 1/sqrt(d_k) or without.

    Each of 64 sequences has as many queries as keys. The gradient flows in along a random unit
    direction of the value read, so a saturated row passes almost none on.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(_SEQUENCES, keys, d_k, generator=generator, dtype=torch.float64)
        for _ in range(3)
    )
    logits = (q @ k.transpose(1, 2)) * (d_k**-0.5 if scaled else 1.0)
    p = torch.softmax(logits, dim=-1)
    direction = torch.randn(_SEQUENCES, keys, d_k, generator=generator, dtype=torch.float64)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    upstream = direction @ v.transpose(1, 2)  # d loss / d p
    gradient = p * (upstream - (p * upstream).sum(-1, keepdim=True))
    return SoftmaxHealth(
        logit_variance=logits.var().item(),
        jacobian_trace=(1 - p.square().sum(-1)).median().item(),
        entropy_nats=-torch.xlogy(p, p).sum(-1).median().item(),
        grad_norm=gradient.norm(dim=-1).median().item(),
    )
