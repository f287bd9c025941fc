"""The diagnostics from Python: the same options as on the command line, with `_` for `-`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqdiag.report.result import Result

if TYPE_CHECKING:
    from torch import nn


def attn_bench(**options: Any) -> Result:
    """Returns attention implementations side by side, each judged before it is timed.

    Options are those of `AttnBenchSpec`: `impl`, `seq_len`, `heads`, `passes`, `mode` ...
    """
    from seqdiag.diagnostics.attn_bench import AttnBenchSpec
    from seqdiag.diagnostics.attn_bench import attn_bench as diagnose

    return diagnose(AttnBenchSpec(**_tuples(options))).run()


def gradflow(model: nn.Module | None = None, **options: Any) -> Result:
    """Returns how much gradient of a loss at the last step reaches each earlier step.

    `model` is a module that maps floats (B, T, D) or token ids (B, T) to something with a time
    axis; it is left as it was. Without one, `arch` names built-in layers. Options are those of
    `GradflowSpec`: `by`, `seq_len`, `steps_back`, `seeds`, `dtype` ... Raises `UsageError` for
    options that do not fit.
    """
    from seqdiag.diagnostics.gradflow import GradflowSpec
    from seqdiag.diagnostics.gradflow import gradflow as diagnose

    return diagnose(GradflowSpec(**_tuples(options)), model).run()


def kvcache(*models: str | os.PathLike[str] | nn.Module, **options: Any) -> Result:
    """Returns the bytes that models keep between decode steps.

    `models` are presets, paths, or modules, which are run to measure what they keep and are left
    as they were. Options are those of `KvcacheSpec`: `ctx`, `batch`, `dtype` ... Raises
    `UsageError` for options that do not fit.
    """
    from seqdiag.diagnostics.kvcache import KvcacheSpec
    from seqdiag.diagnostics.kvcache import kvcache as diagnose

    named = tuple(os.fspath(m) for m in models if isinstance(m, str | os.PathLike))
    modules = [m for m in models if not isinstance(m, str | os.PathLike)]
    return diagnose(KvcacheSpec(models=named, **_tuples(options)), modules).run()


def ssm_bench(**options: Any) -> Result:
    """Returns scans in every form, checked against each other and timed side by side.

    Options are those of `SsmBenchSpec`: `kind`, `impl`, `seq_len`, `mode` ...; `pass_` for
    `--pass`. Raises `UsageError` for options that do not fit.
    """
    from seqdiag.diagnostics.ssm_bench import SsmBenchSpec
    from seqdiag.diagnostics.ssm_bench import ssm_bench as diagnose

    return diagnose(SsmBenchSpec(**_tuples(options))).run()


def receptive_field(model: nn.Module | None = None, **options: Any) -> Result:
    """Returns what each output can see, predicted and measured, and whether the future leaks in.

    `model` is a module as for `gradflow`; without one, `arch`, or `kernel` and `dilations`, say
    what is probed. Options are those of `ReceptiveFieldSpec`: `seq_len`, `position`, `layout` ...
    """
    from seqdiag.diagnostics.receptive_field import ReceptiveFieldSpec
    from seqdiag.diagnostics.receptive_field import receptive_field as diagnose

    return diagnose(ReceptiveFieldSpec(**_tuples(options)), model).run()


def recall(**options: Any) -> Result:
    """Returns how many pairs memories give back, or with `task` models trained to recall.

    Options are those of `RecallSpec`: `memory`, `state_dim`, `pairs`, `trials` ..., or `task`,
    `arch`, `seq_len`, `updates` ... Raises `UsageError` for options that do not fit.
    """
    from seqdiag.diagnostics.recall import RecallSpec
    from seqdiag.diagnostics.recall import recall as diagnose

    return diagnose(RecallSpec(**_tuples(options))).run()


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with lists as the tuples that a frozen spec holds."""
    return {k: tuple(v) if isinstance(v, list | range) else v for k, v in options.items()}
