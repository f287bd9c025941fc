"""Selective copying: hold the one marked token of a sequence, at a place that varies.

The marked token is the output that is asked for at the last step. A selective scan forgets all and
writes where the mark is (delta large), and does nothing elsewhere (delta = 0). A recurrence fixed
over time weighs a token by its distance to the end alone: over random places no filter leaves less
than sqrt(1 - 1/T) of the token (weights 1/T at every lag are the least-squares optimum).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.ops.scan import invariant_scan, selective_scan

STEPS, _TRIALS = 64, 256
_RESET = 40.0
"""exp(-40) of the state stays: below the precision of float32."""


def floor(steps: int = STEPS) -> float:
    """Returns the relative error that no filter fixed over time goes below."""
    return float((1 - 1 / steps) ** 0.5)


def selectivity_rows(spec: SsmBenchSpec) -> Iterator[SsmBenchRow]:
    """Yields the best fixed decay and the input-dependent one on the same sequences."""
    generator = torch.Generator().manual_seed(spec.seed)
    tokens = torch.randn(_TRIALS, STEPS, generator=generator)
    marked = torch.randint(STEPS, (_TRIALS,), generator=generator)
    wanted = tokens[range(_TRIALS), marked]
    note = f"relative error of the marked token, at random among {STEPS}, read at the last step"
    fixed = f"{note}; the best of {STEPS} decays, and no fixed filter does better than"
    yield _row(spec, "lti", best_fixed(tokens, wanted), f"{fixed} {floor():.3f}")
    yield _row(spec, "selective", selected(tokens, marked, wanted), note)


def best_fixed(tokens: Tensor, wanted: Tensor) -> float:
    """Returns the error of the best decay of a grid, its output scaled to fit best."""
    decays = 1 - torch.logspace(-4, 0, STEPS).unsqueeze(1)  # (D, 1), a channel for each
    ones = torch.ones_like(decays)
    y, _ = invariant_scan(tokens.unsqueeze(-1).expand(-1, -1, STEPS), decays, ones, ones)
    held = y[:, -1]  # (trials, D)
    scale = (held * wanted.unsqueeze(1)).sum(0) / held.square().sum(0)
    return float(((scale * held - wanted.unsqueeze(1)).norm(dim=0) / wanted.norm()).min())


def selected(tokens: Tensor, marked: Tensor, wanted: Tensor) -> float:
    """Returns the error of a scan whose step size is large at the mark and zero elsewhere."""
    delta = torch.zeros(*tokens.shape, 1)
    delta[range(len(tokens)), marked] = _RESET
    one = torch.ones(1, 1, 1)
    y, _ = selective_scan(tokens.unsqueeze(-1), delta, -torch.ones(1, 1), one / _RESET, one)
    return float((y[:, -1, 0] - wanted).norm() / wanted.norm())


def _row(spec: SsmBenchSpec, kind: str, error: float, note: str) -> SsmBenchRow:
    blank = dict.fromkeys(
        ("chunk", "position", "time_ms", "time_ms_p10", "time_ms_p90", "repeats", "first_call_ms",
         "tokens_per_s", "time_per_token_us", "gb_per_s", "flop_count", "min_flop_count",
         "peak_bytes", "max_abs_error", "dual_max_error", "first_divergent_step", "speedup_ratio"),
    )  # fmt: skip
    return SsmBenchRow(
        implementation="selective-copy",
        kind=kind,
        pass_="fwd",
        mode="selectivity",
        batch=_TRIALS,
        d_model=1,
        d_state=1,
        n_heads=1,
        seq_len=STEPS,
        dtype="float32",
        device="cpu",
        state_bytes=4,
        rel_rms_error=error,
        status="ok",
        note=note,
        **blank,
    )
