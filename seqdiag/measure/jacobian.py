"""The Jacobian of a recurrent layer over many steps, in log space."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqdiag.measure.lyapunov import step_jacobians, trajectory
from seqdiag.models.recurrent import RNN, LinearRecurrence, Recurrent


@dataclass(frozen=True, slots=True)
class JacobianProfile:
    """log10 of the extreme singular values of d h_T / d h_{T-k}, for k = 1 ... T."""

    largest: list[float]
    smallest: list[float]
    """-inf where a step forgets a direction altogether."""


@dataclass(frozen=True, slots=True)
class RecurrentWeights:
    """What is often said to decide: the recurrent matrix by itself."""

    spectral_radius: float | None
    sigma_max: float | None
    bound_per_step: float | None
    """gamma sigma_max: below 1 the gradient must vanish (Pascanu 2013); None for gated layers."""


def jacobian_profile(layer: Recurrent, x: Tensor) -> JacobianProfile:
    """Returns the growth of the state's Jacobian back from the last step, for x (1, T, D).

    The product and the product of the inverses are rescaled as they grow, so neither the largest
    nor the smallest singular value leaves the range.
    """
    with torch.no_grad():
        states = trajectory(layer, x[0])
        size = states.shape[1]
        product, inverse = (torch.eye(size, dtype=x.dtype, device=x.device) for _ in range(2))
        log_product = log_inverse = 0.0
        largest, smallest = [], []
        for t in reversed(range(x.shape[1])):
            jacobian = step_jacobians(layer, x[0, t : t + 1], states[t : t + 1])[0]
            product, log_product = _scaled(product @ jacobian, log_product)
            largest.append(log_product + _log10_sigma(product))
            undone, failed = torch.linalg.inv_ex(jacobian)
            if failed.item() or not math.isfinite(log_inverse):
                log_inverse = math.inf
                smallest.append(-math.inf)
                continue
            inverse, log_inverse = _scaled(undone @ inverse, log_inverse)
            smallest.append(-(log_inverse + _log10_sigma(inverse)))
    return JacobianProfile(largest, smallest)


def recurrent_weights(layer: Recurrent) -> RecurrentWeights:
    """Returns the spectrum of W_hh and Pascanu's bound: gamma is 1 for tanh and ReLU."""
    if isinstance(layer, LinearRecurrence):
        a = abs(layer.multiplier)
        return RecurrentWeights(a, a, a)
    core = layer.core
    assert isinstance(core, nn.RNNBase)
    weight = core.all_weights[0][1].detach().double()
    if not isinstance(layer, RNN):
        return RecurrentWeights(None, torch.linalg.matrix_norm(weight, 2).item(), None)
    sigma = torch.linalg.matrix_norm(weight, 2).item()
    return RecurrentWeights(torch.linalg.eigvals(weight).abs().max().item(), sigma, sigma)


def _scaled(matrix: Tensor, log10: float) -> tuple[Tensor, float]:
    """Returns the matrix with its norm moved into the logarithm."""
    norm = matrix.norm().item()
    if norm == 0 or not math.isfinite(norm):
        return matrix, log10
    return matrix / norm, log10 + math.log10(norm)


def _log10_sigma(matrix: Tensor) -> float:
    sigma = torch.linalg.matrix_norm(matrix, 2).item()
    return math.log10(sigma) if sigma > 0 else -math.inf
