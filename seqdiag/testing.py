"""The diagnostics as assertions for your own test suite.

from seqdiag.testing import assert_gradient_reaches

def test_my_model():
    assert_gradient_reaches(MyModel(), steps_back=50, min_ratio=1e-3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqdiag.api import gradflow, receptive_field
from seqdiag.errors import UsageError


def assert_gradient_reaches(
    model: nn.Module, *, steps_back: int, min_ratio: float = 1e-3, **options: Any
) -> None:
    """Asserts that `min_ratio` of the last step's gradient reaches `steps_back` steps back.

    Options are those of `seqdiag.gradflow`; `seq_len` is just long enough unless given. Raises
    `AssertionError` with the ratio and the horizon, `UsageError` if the module cannot be fed.
    """
    _check_module(model)
    if not 0 < min_ratio < math.inf:
        raise UsageError(f"min_ratio: {min_ratio} is not a number above 0")
    if options.get("seeds", 1) != 1 or options.get("by", "time") != "time":
        raise UsageError("assert_gradient_reaches looks at one seed, by time")
    options.setdefault("seq_len", steps_back + 1)
    if not isinstance(steps_back, int) or not 0 <= steps_back < options["seq_len"]:
        raise UsageError(f"steps_back: {steps_back} is not a lag below seq_len")
    result = gradflow(model, **options)
    (row,) = [record for record in result.records if record["steps_back"] == steps_back]
    last = result.records[-1]["grad_log10_norm"]
    if _log10_ratio(row, last) >= math.log10(min_ratio):
        return
    held = [
        int(record["steps_back"] or 0)
        for record in result.records
        if _log10_ratio(record, last) >= math.log10(min_ratio)
    ]
    ratio = row["grad_ratio"]
    shown = "no number" if ratio is None else f"{ratio:.3g}"
    note = f" ({row['note']})" if row["note"] else ""
    raise AssertionError(
        f"{type(model).__name__}: {steps_back} steps back the gradient is {shown} of the last "
        f"step's, less than {min_ratio:g}{note}; {_up_to(held)}"
    )


def _log10_ratio(record: Mapping[str, Any], last: Any) -> float:
    """Returns log10 of the ratio to the last step, finite where the ratio itself overflows."""
    log10 = record["grad_log10_norm"]
    return -math.inf if log10 is None or last is None else log10 - last


def _up_to(held: list[int]) -> str:
    return f"it holds up to {max(held)} steps back" if held else "it holds nowhere"


def _check_module(model: object) -> None:
    """Refuses what a factory that forgot to return gives."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"{model!r:.60} is not a torch.nn.Module")


def assert_causal(model: nn.Module, **options: Any) -> None:
    """Asserts that no output changes when inputs after its own time are replaced.

    Options are those of `seqdiag.receptive_field`. Raises `AssertionError` with how far ahead an
    output sees, where and, as far as the pattern tells, why; `UsageError` if the module cannot be
    fed.
    """
    _check_module(model)
    row = receptive_field(model, **options).records[0]
    if row["causal"] is True:
        return
    note = f" ({row['note']})" if row["note"] else ""
    if row["causal"] is None:
        raise AssertionError(f"{type(model).__name__}: causality could not be judged{note}")
    raise AssertionError(
        f"{type(model).__name__}: the future leaks in, {row['lookahead_steps']} steps ahead{note}"
    )


def assert_receptive_field(model: nn.Module, *, at_least: int, **options: Any) -> None:
    """Asserts that an output responds to inputs that span `at_least` steps.

    The last output, or the middle one if outputs look ahead; options are those of
    `seqdiag.receptive_field`, where `seq_len` is `at_least` or more unless given. Raises
    `AssertionError` with what it responds to.
    """
    _check_module(model)
    if type(at_least) is not int or at_least < 1:
        raise UsageError(f"at_least: {at_least!r} is not a whole number of 1 or more")
    if options.get("predict_only"):
        raise UsageError("assert_receptive_field measures: leave predict_only out")
    options.setdefault("seq_len", max(64, 2 * at_least))
    options.setdefault("max_seq_len", max(16384, int(options["seq_len"])))
    row = receptive_field(model, **options).records[0]
    steps = row["measured_steps"]
    if isinstance(steps, int) and steps >= at_least:
        return
    note = f" ({row['note']})" if row["note"] else ""
    raise AssertionError(
        f"{type(model).__name__}: output {row['position']} sees {steps} steps, inputs "
        f"{row['first_input']} to {row['last_input']}, less than {at_least}{note}"
    )


def assert_step_matches_forward(
    model: nn.Module,
    *,
    width: int,
    seq_len: int = 65,
    batch: int = 2,
    rtol: float = 1e-4,
    seed: int = 0,
) -> None:
    """Asserts that a module's `step` and its `forward` are one function.

    The module has `forward(x: (B, T, D)) -> (B, T, ...)`, `init_state(batch)` and
    `step(x_t: (B, D), state) -> (y_t, state)`. `rtol` is relative to the largest output. Raises
    `AssertionError` with the first step that differs.
    """
    missing = [name for name in ("init_state", "step") if not hasattr(model, name)]
    if missing:
        raise UsageError(f"{type(model).__name__} has no {' and no '.join(missing)}")
    reference = next(model.parameters(), torch.zeros(()))
    x = torch.randn(batch, seq_len, width, generator=torch.Generator().manual_seed(seed))
    x = x.to(reference)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            whole: Tensor = model(x)
            stepped = _stepped(model, x)
    finally:
        model.train(was_training)
    scale = whole.abs().max().clamp(min=torch.finfo(whole.dtype).tiny)
    errors = ((whole - stepped).abs().flatten(2).amax(2).amax(0) / scale).tolist()
    wrong = [t for t, error in enumerate(errors) if not error <= rtol]
    if wrong:
        raise AssertionError(
            f"{type(model).__name__}: step and forward differ from step {wrong[0]} on: relative "
            f"error {errors[wrong[0]]:.3g}, at most {max(errors):.3g} over {seq_len} steps, "
            f"allowed {rtol:g}"
        )


def _stepped(model: Any, x: Tensor) -> Tensor:
    state, outputs = model.init_state(x.shape[0]), []
    for x_t in x.unbind(1):
        y_t, state = model.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, dim=1)
