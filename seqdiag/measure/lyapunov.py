"""Lyapunov exponents of a recurrent layer along one trajectory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from seqdiag.models.mixer import State
from seqdiag.models.recurrent import Recurrent

_CHUNK_ELEMENTS = 2**22
_DIRECTIONS = 512
"""Followed at once, so that one the map forgets (a dead ReLU) does not decide."""


def leading_exponent(layer: Recurrent, x: Tensor) -> float:
    """Returns the leading Lyapunov exponent per step, for the trajectory that `x` (B, T, D) drives.

    lambda_i = (1/T) sum_t log |R_ii| of the QR decomposition of the running Jacobian product
    (Benettin 1980; Engelken 2020, arXiv 2006.02427), for the leading directions, averaged over the
    batch. -inf for a map that forgets everything.
    """
    with torch.no_grad():
        exponents = [_exponent(layer, sequence) for sequence in x.unbind(0)]
    return float(torch.stack(exponents).mean())


def _exponent(layer: Recurrent, x: Tensor) -> Tensor:
    states = trajectory(layer, x)
    size = states.shape[1]
    directions = torch.eye(size, min(size, _DIRECTIONS), dtype=x.dtype, device=x.device)
    logs = x.new_zeros(directions.shape[1])
    chunk = max(1, _CHUNK_ELEMENTS // size**2)
    for inputs, before in zip(torch.split(x, chunk), torch.split(states, chunk), strict=True):
        for jacobian in step_jacobians(layer, inputs, before):
            directions, upper = torch.linalg.qr(jacobian @ directions)
            logs += upper.diagonal().abs().log()
    leading: Tensor = (logs / x.shape[0]).max()
    return leading


def step_jacobians(layer: Recurrent, x: Tensor, states: Tensor) -> Tensor:
    """Returns d state_t / d state_{t-1} for inputs (T, D) and the states before them (T, S)."""

    def advance(state: Tensor, x_t: Tensor) -> Tensor:
        return _pack(layer.step(x_t.unsqueeze(0), _unpack(layer, state))[1])

    jacobians: Tensor = vmap(jacrev(advance))(states, x)
    return jacobians


def trajectory(layer: Recurrent, x: Tensor) -> Tensor:
    """Returns the state before each step, (T, S)."""
    state = layer.init_state(1)
    states = []
    for x_t in x:
        states.append(_pack(state))
        _, state = layer.step(x_t.unsqueeze(0), state)
    return torch.stack(states)


def _pack(state: State) -> Tensor:
    return torch.cat([part.squeeze(0) for part in state])


def _unpack(layer: Recurrent, packed: Tensor) -> State:
    return tuple(part.unsqueeze(0) for part in torch.split(packed, layer.width))
