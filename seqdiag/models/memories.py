"""The memories by name: all pairs written in order, then read with every key.

To add one: a function `(k, v, parameter) -> reads` and a line in `MEMORIES`. Keys k (B, N, K) have
unit length, values are v (B, N, V), reads are (B, N, V); pair N - 1 is the last written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.errors import UsageError, unknown
from seqdiag.ops.memory.chunked import delta
from seqdiag.ops.memory.features import elu1
from seqdiag.ops.memory.softmax import softmax_read

Read = Callable[[Tensor, Tensor, float], Tensor]
Numbers = Callable[[int, int, int], int]
"""How many numbers the state holds, of (pairs, state_dim, value_dim)."""


def _linear(k: Tensor, v: Tensor, _: float) -> Tensor:
    return k @ (k.transpose(1, 2) @ v)


def _decay(k: Tensor, v: Tensor, g: float) -> Tensor:
    """S = g S + v k^T at each write."""
    return k @ ((k * _kept(k, g)).transpose(1, 2) @ v)


def _kept(k: Tensor, g: float) -> Tensor:
    ages = torch.arange(k.shape[1] - 1, -1, -1, dtype=torch.float64, device=k.device)
    kept: Tensor = (g**ages).to(k.dtype).unsqueeze(-1)
    return kept


def _delta(k: Tensor, v: Tensor, passes: float) -> Tensor:
    return _delta_passes(k, v, int(passes), None)


def _gated_delta(k: Tensor, v: Tensor, g: float) -> Tensor:
    return _delta_passes(k, v, 1, math.log(g))


def _delta_passes(k: Tensor, v: Tensor, passes: int, log_g: float | None) -> Tensor:
    """S = g S (I - k k^T) + v k^T, the pairs written `passes` times over."""
    keys, values = k.unsqueeze(1), v.unsqueeze(1)
    beta = k.new_ones(k.shape[0], 1, k.shape[1])
    rates = None if log_g is None else beta * log_g
    state = k.new_zeros(k.shape[0], 1, k.shape[2], v.shape[2])
    for _ in range(passes):
        _, state = delta(keys, keys, values, beta, state, rates)
    return k @ state.squeeze(1)


def _least_squares(k: Tensor, v: Tensor, _: float) -> Tensor:
    """The S with the least ||S k - v||^2 over all pairs, of least norm: many passes end here."""
    solved: Tensor = torch.linalg.pinv(k) @ v
    return k @ solved


def _quadratic(k: Tensor, v: Tensor, _: float) -> Tensor:
    weights = (k @ k.transpose(1, 2)).square()
    return weights @ v


def _softmax(k: Tensor, v: Tensor, beta: float) -> Tensor:
    return softmax_read(k, k, v, beta)


def _elu1(k: Tensor, v: Tensor, _: float) -> Tensor:
    """Keys of length sqrt(d), as a projection gives them; read phi(q) S / (phi(q) . z)."""
    features = elu1(k * k.shape[-1] ** 0.5)
    total = features @ features.sum(dim=1).unsqueeze(-1)
    return (features @ (features.transpose(1, 2) @ v)) / total


def _taylor2(k: Tensor, v: Tensor, _: float) -> Tensor:
    """Keys of length sqrt(d): products of the features of `taylor2` are 1 + s + s^2 / 2."""
    s = k @ k.transpose(1, 2) * k.shape[-1] ** 0.5
    weights = 1 + s + s.square() / 2
    read: Tensor = (weights @ v) / weights.sum(dim=-1, keepdim=True)
    return read


@dataclass(frozen=True, slots=True)
class Memory:
    """A write rule and how it is read."""

    read: Read
    numbers: Numbers
    description: str
    parameter: str = ""
    """What the number after the colon of `name:number` is, empty where there is none."""
    default: float = 0.0
    low: float = 0.0
    high: float = math.inf


MEMORIES = {
    "linear": Memory(_linear, lambda n, d, m: d * m, "S += v k^T"),
    "decay": Memory(
        _decay, lambda n, d, m: d * m, "S = g S + v k^T, decay:0.99", "g", 0.99, 1e-3, 1.0
    ),
    "delta": Memory(
        _delta, lambda n, d, m: d * m, "S += (v - S k) k^T, delta:PASSES", "passes", 1, 1, 1000
    ),
    "gated-delta": Memory(
        _gated_delta,
        lambda n, d, m: d * m,
        "S = g S (I - k k^T) + v k^T, gated-delta:0.99",
        "g",
        0.99,
        1e-3,
        1.0,
    ),
    "least-squares": Memory(_least_squares, lambda n, d, m: d * m, "min ||S k - v||^2"),
    "quadratic": Memory(
        _quadratic, lambda n, d, m: d * (d + 1) // 2 * m, "reads weighted by (k . q)^2"
    ),
    "softmax": Memory(
        _softmax,
        lambda n, d, m: n * (d + m),
        "keeps every pair, softmax:BETA",
        "beta",
        8,
        1e-3,
        1e4,
    ),
    "elu1": Memory(_elu1, lambda n, d, m: d * (m + 1), "linear attention, elu(k) + 1, normalised"),
    "taylor2": Memory(
        _taylor2,
        lambda n, d, m: (1 + d + d * (d + 1) // 2) * (m + 1),
        "1 + s + s^2/2 of s = q.k/sqrt(d), normalised",
    ),
}


def parse_memory(text: str) -> tuple[str, Memory, float]:
    """Returns the name, the memory and its parameter for `delta` or `delta:4`.

    Raises `UsageError` for an unknown name and a parameter out of range.
    """
    name, colon, number = text.partition(":")
    if name not in MEMORIES:
        raise unknown("--memory", name, MEMORIES)
    memory = MEMORIES[name]
    if not colon:
        return name, memory, memory.default
    if not memory.parameter:
        raise UsageError(f"--memory: {name} takes no number, but {text!r} has one")
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"--memory: {number!r} of {text!r} is not a number") from None
    if not memory.low <= value <= memory.high or (name == "delta" and value != int(value)):
        whole = "a whole number " if name == "delta" else ""
        raise UsageError(
            f"--memory: {memory.parameter} of {text!r} must be {whole}"
            f"from {memory.low:g} to {memory.high:g}"
        )
    return name, memory, value
