"""Errors against float64, and what a dtype allows."""

from __future__ import annotations

import math

import pytest
import torch

from seqdiag.measure.error import Error, error_of, why_inaccurate
from seqdiag.measure.memory import peak_bytes

EXACT = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_one_rounding_is_allowed_in_every_dtype() -> None:
    """Rounding alone is 0.42 unit roundoffs rms: 2.0e-4 in float16, 1.6e-3 in bfloat16."""
    levels = {torch.float32: 2.5e-8, torch.float16: 2.0e-4, torch.bfloat16: 1.65e-3}
    for dtype, level in levels.items():
        error = error_of(EXACT.to(dtype), EXACT)
        assert error.rel_rms == pytest.approx(level, rel=0.1)
        assert why_inaccurate(error, error, dtype) is None


def test_errors_beyond_the_naive_run_are_named() -> None:
    naive = error_of(EXACT.float(), EXACT)
    off = EXACT.clone()
    off[7] += 1e-3
    assert "largest error 0.001" in str(
        why_inaccurate(error_of(off.float(), EXACT), naive, torch.float32)
    ) or ("rms error" in str(why_inaccurate(error_of(off.float(), EXACT), naive, torch.float32)))
    assert "rms error" in str(
        why_inaccurate(error_of((EXACT * 1.001).float(), EXACT), naive, torch.float32)
    )


def test_values_that_are_not_finite() -> None:
    broken = EXACT.float()
    broken[3] = math.nan
    error = error_of(broken, EXACT)
    assert error.nonfinite == 1
    assert why_inaccurate(error, error_of(EXACT.float(), EXACT), torch.float32) == (
        "1 values are not finite"
    )
    # Equal infinities agree: the log-sum-exp of a query without keys is -inf on both sides.
    infinite = torch.tensor([-math.inf, 1.0], dtype=torch.float64)
    assert error_of(infinite.float(), infinite) == Error(0.0, 0.0, 0, 1.0)


def test_zeros_and_shapes() -> None:
    zeros = torch.zeros(3, dtype=torch.float64)
    assert error_of(zeros, zeros).rel_rms == 0
    assert error_of(zeros + 1, zeros).rel_rms == math.inf
    assert error_of(zeros, zeros).ratio_to(error_of(zeros, zeros)) == 1
    with pytest.raises(ValueError, match="differ"):
        error_of(zeros, zeros[:2])


def test_the_worst_of_several() -> None:
    good, bad = EXACT.clone(), EXACT + 1
    both = error_of([good, bad], [EXACT, EXACT])
    assert both.max_abs == pytest.approx(1)
    assert both == error_of([bad, good], [EXACT, EXACT])


def test_peak_bytes_counts_what_lives_at_once() -> None:
    x = torch.randn(1000, 1000)
    slack = 4096
    assert peak_bytes(lambda: x + 1, x.device) == pytest.approx(4_000_000, abs=slack)
    # The first sum lives while the second is made.
    assert peak_bytes(lambda: (x + 1) + 1, x.device) == pytest.approx(8_000_000, abs=slack)

    def in_turn() -> None:
        for _ in range(3):
            (x + 1).sum()

    assert peak_bytes(in_turn, x.device) == pytest.approx(4_000_000, abs=slack)
    assert peak_bytes(lambda: x.add_(1), x.device) <= slack
