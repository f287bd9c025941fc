"""The selective scan as the paper writes it: a definition to hold the fast forms against."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiag.ops.scan import linear


def loop(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N), one step at a time."""
    decay = torch.exp(delta.unsqueeze(-1) * A)  # (B, T, D, N)
    written = (delta * u).unsqueeze(-1) * B.unsqueeze(2)
    h, outputs = h0, []
    steps = zip(decay.unbind(1), written.unbind(1), C.unbind(1), strict=True)
    for decay_t, written_t, C_t in steps:
        h = decay_t * h + written_t
        outputs.append((h @ C_t.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, dim=1), h


def reference(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the loop computed in float64."""
    y, last = loop(u.double(), delta.double(), A.double(), B.double(), C.double(), h0.double())
    return y.to(u.dtype), last.to(u.dtype)


def associative(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the scan by a parallel prefix over the whole (B, T, D, N) tensor of states."""
    decay = torch.exp(delta.unsqueeze(-1) * A)
    written = (delta * u).unsqueeze(-1) * B.unsqueeze(2)
    states = linear.associative(decay, written, h0)
    return (states @ C.unsqueeze(-1)).squeeze(-1), states[:, -1]
