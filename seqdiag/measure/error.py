"""How far a result is from the exact one, and whether that is what its dtype allows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_FLOOR = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 3.7e-4, torch.bfloat16: 2.9e-3}
"""An rms error that is good enough whatever a naive run reaches: 0.75 unit roundoff in 16 bits (one
rounding of the output is 0.42), several in the long ones, whose sums round many times."""
_LARGEST = {
    torch.float64: 1e-12,
    torch.float32: 4e-6,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}
"""A largest error, relative to the largest value, that is good enough: a unit in the last place in
16 bits, several in the long dtypes."""
_NAIVE_RMS, _NAIVE_MAX = 1.25, 2.0


@dataclass(frozen=True, slots=True)
class Error:
    """The distance of one result, or of several together, from float64."""

    max_abs: float
    rel_rms: float
    """||result - exact|| / ||exact||."""
    nonfinite: int
    """How many values are not finite where the exact one is."""
    scale: float
    """The largest exact magnitude."""

    def ratio_to(self, naive: Error) -> float:
        """Returns this rms error over that of a naive run; 0 / 0 is 1."""
        if naive.rel_rms == 0:
            return 1.0 if self.rel_rms == 0 else math.inf
        return self.rel_rms / naive.rel_rms


def error_of(
    result: Tensor | Iterable[Tensor], exact: Tensor | Iterable[Tensor], noise: float = 0.0
) -> Error:
    """Returns the error of `result` against `exact`, which is in float64; of lists, the worst.

    An exact rms below `noise` counts as `noise`: it is zero but for rounding.
    """
    if isinstance(result, Tensor) and isinstance(exact, Tensor):
        return _error(result, exact, noise)
    return worst(_error(r, e, noise) for r, e in zip(result, exact, strict=True))


def worst(errors: Iterable[Error]) -> Error:
    """Returns the largest of each figure, so that a good tensor hides no bad one."""
    found = list(errors)
    return Error(
        max_abs=max(e.max_abs for e in found),
        rel_rms=max(e.rel_rms for e in found),
        nonfinite=sum(e.nonfinite for e in found),
        scale=max(e.scale for e in found),
    )


def _error(result: Tensor, exact: Tensor, noise: float) -> Error:
    if result.shape != exact.shape:
        raise ValueError(f"result {tuple(result.shape)} and exact {tuple(exact.shape)} differ")
    result = result.detach().double()
    wrong = ~torch.isfinite(result) & torch.isfinite(exact)
    equal_infinities = (result == exact) & ~torch.isfinite(exact)
    difference = torch.where(equal_infinities, 0.0, result - exact)
    finite_exact = torch.where(torch.isfinite(exact), exact, 0.0)
    norm = max(float(finite_exact.norm()), noise * exact.numel() ** 0.5)
    distance = float(difference.norm())
    rel_rms = distance / norm if norm > 0 else (0.0 if distance == 0 else math.inf)
    return Error(
        max_abs=float(difference.abs().max()) if difference.numel() else 0.0,
        rel_rms=rel_rms,
        nonfinite=int(wrong.sum()),
        scale=max(float(finite_exact.abs().max()) if exact.numel() else 0.0, noise),
    )


def why_inaccurate(error: Error, naive: Error, dtype: torch.dtype) -> str | None:
    """Returns why `error` is more than `dtype` allows, or None.

    Allowed is 1.25 times the rms error and twice the largest error of a naive run in the same
    dtype, with a floor for each: FlashAttention's own rule, tighter.
    """
    if error.nonfinite or math.isnan(error.rel_rms):
        return f"{error.nonfinite} values are not finite"
    rms = max(_NAIVE_RMS * naive.rel_rms, _FLOOR[dtype])
    if error.rel_rms > rms:
        return f"rms error {error.rel_rms:.2g}, allowed {rms:.2g} (naive {naive.rel_rms:.2g})"
    most = _NAIVE_MAX * naive.max_abs + _LARGEST[dtype] * error.scale
    if error.max_abs > most:
        return f"largest error {error.max_abs:.2g}, allowed {most:.2g} (naive {naive.max_abs:.2g})"
    return None
