"""The diagnosis itself."""

from __future__ import annotations

import dataclasses

import torch

from seqdiag.diagnostics.attn_bench import bench, findings
from seqdiag.diagnostics.attn_bench.bench import Setting
from seqdiag.diagnostics.attn_bench.row import DECODE_PLOT, PLOT, AttnBenchRow
from seqdiag.diagnostics.attn_bench.spec import AttnBenchSpec
from seqdiag.errors import UnavailableError, UsageError
from seqdiag.measure.device import resolve_device
from seqdiag.predict.accelerators import Peak, peak_of
from seqdiag.report.result import Diagnosis


def attn_bench(spec: AttnBenchSpec) -> Diagnosis:
    """Returns the diagnosis for `spec`.

    Raises `UsageError` for options that do not fit each other, `UnavailableError` for an absent
    device, or without Triton for `interpret` and `inspect`.
    """
    spec = with_preset(spec)
    spec.check()
    if spec.inspect is not None:
        from seqdiag.diagnostics.attn_bench.by_inspect import inspection

        return inspection(spec)
    device, label = resolve_device("cpu" if spec.interpret else spec.device)
    if spec.interpret:
        from seqdiag.ops import interpreter

        interpreter.enable()
        label = "cpu (interpreter)"
    if device.type != "cuda" and spec.l2 != "cold":
        raise UsageError("--l2: only a GPU's cache can be wiped", hint="leave it out on the CPU")
    if spec.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    dtype = spec.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    torch_dtype: torch.dtype = getattr(torch, dtype)
    setting = Setting(spec, torch_dtype, device, _peak(spec, device, torch_dtype), spec.calibrate)
    return Diagnosis(
        command="attn-bench",
        spec=dataclasses.asdict(spec),
        row_type=AttnBenchRow,
        rows=bench.rows(setting),
        total=len(spec.shapes) * len(spec.passes) * len(spec.implementations),
        conclude=lambda rows: findings.conclude(spec, rows),
        plot=DECODE_PLOT if spec.mode == "decode" else PLOT,
        device=label,
        dtype=dtype,
        seed=spec.seed,
    )


def _peak(spec: AttnBenchSpec, device: torch.device, dtype: torch.dtype) -> Peak | None:
    if spec.calibrate:
        from seqdiag.measure.calibrate import calibrate

        rates = calibrate(device, dtype)
        return Peak(rates.flops_per_s, rates.flops_per_s, rates.bytes_per_s)
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def with_preset(spec: AttnBenchSpec) -> AttnBenchSpec:
    """Returns `spec` with the heads of its preset where it names none of its own."""
    if spec.preset is None:
        return spec
    from seqdiag.config import config_dir, config_names, parse_toml
    from seqdiag.errors import unknown

    names = config_names("models")
    if spec.preset not in names:
        raise unknown("--preset", spec.preset, names)
    data = parse_toml("--preset", config_dir("models") / f"{spec.preset}.toml")
    config = data.get("config")
    fields = config if isinstance(config, dict) else {}
    heads = fields.get("num_attention_heads")
    plain = "kv_lora_rank" not in fields and "layer_types" not in fields
    if not isinstance(heads, int) or not plain:
        raise UnavailableError(
            f"--preset: {spec.preset} has no plain attention layers",
            hint="give --heads, --kv-heads and --head-dim",
        )
    head_dim = fields.get("head_dim") or fields["hidden_size"] // heads
    return dataclasses.replace(
        spec,
        preset=None,
        heads=spec.heads or heads,
        kv_heads=spec.kv_heads or fields.get("num_key_value_heads") or heads,
        head_dim=spec.head_dim or head_dim,
    )
