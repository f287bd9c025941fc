"""What a gradient profile says in two numbers: its slope and its horizon."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_MOST_POINTS = 2048


def decay_per_step(log10_norms: Sequence[float]) -> float | None:
    """Returns the factor by which the gradient changes per step back.

    The Theil-Sen slope (the median over all pairs) of the log norm against the lag: profiles are
    not monotone and start with a transient, so neither two points nor least squares will do.
    `log10_norms` runs from the first step to the last; steps without a gradient are left out.
    None with fewer than two points.
    """
    norms = np.asarray(log10_norms, dtype=np.float64)[::-1]
    lags = np.flatnonzero(np.isfinite(norms))
    if len(lags) > _MOST_POINTS:
        lags = lags[np.linspace(0, len(lags) - 1, _MOST_POINTS).astype(int)]
    if len(lags) < 2:
        return None
    first, second = np.triu_indices(len(lags), k=1)
    slopes = (norms[lags[second]] - norms[lags[first]]) / (lags[second] - lags[first])
    return float(10.0 ** np.median(slopes))


def horizon(log10_norms: Sequence[float], ratio: float) -> int | None:
    """Returns the largest lag at which the gradient is at least `ratio` of the last step's.

    None if the last step has no gradient.
    """
    last = log10_norms[-1]
    if not math.isfinite(last):
        return None
    floor = last + math.log10(ratio)
    lags = [lag for lag, norm in enumerate(reversed(log10_norms)) if norm >= floor]
    return lags[-1] if lags else 0
