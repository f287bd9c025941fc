"""The scans of other packages, where they are installed."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from seqdiag.ops.scan import ScanProblem


def _missing(package: str, install: str) -> str | None:
    found = importlib.util.find_spec(package) is not None
    return None if found else f"{package} is not installed: pip install {install}"


def _on_cuda_only(package: str, install: str, device: torch.device) -> str | None:
    reason = _missing(package, install)
    if reason is None and device.type != "cuda":
        return f"{package} needs a CUDA device"
    return reason


def why_not_mambapy(problem: ScanProblem, device: torch.device) -> str | None:
    return _missing("mambapy", "mambapy")


def mambapy(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y and the last state by `mambapy`'s parallel scan (Blelloch), in plain PyTorch."""
    from mambapy.pscan import pscan

    decay = torch.exp(delta.unsqueeze(-1) * A)  # (B, T, D, N)
    written = (delta * u).unsqueeze(-1) * B.unsqueeze(2)
    first = written[:, :1] + decay[:, :1] * h0.unsqueeze(1)
    states = pscan(decay, torch.cat([first, written[:, 1:]], dim=1))
    return (states @ C.unsqueeze(-1)).squeeze(-1), states[:, -1]


def why_not_mamba_ssm(problem: ScanProblem, device: torch.device) -> str | None:
    reason = _on_cuda_only("mamba_ssm", "mamba-ssm", device)
    if reason is None and importlib.util.find_spec("selective_scan_cuda") is None:
        return "mamba_ssm is installed without its CUDA extension selective_scan_cuda"
    return reason or _without_state(problem, "mamba_ssm's selective scan")


def mamba_ssm(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y and the last state by `mamba_ssm`'s CUDA kernel, from the empty state."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    operands = (x.transpose(1, 2).contiguous() for x in (u, delta))
    u_t, delta_t = operands
    y, last = selective_scan_fn(
        u_t, delta_t, A, B.transpose(1, 2), C.transpose(1, 2), return_last_state=True
    )
    return y.transpose(1, 2), last


def why_not_mamba_ssm_ssd(problem: ScanProblem, device: torch.device) -> str | None:
    return _on_cuda_only("mamba_ssm", "mamba-ssm", device)


def mamba_ssm_ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, chunk: int = 256
) -> tuple[Tensor, Tensor]:
    """Returns y and the last state by `mamba_ssm`'s Triton kernels."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    y, last = mamba_chunk_scan_combined(
        x, dt, A, B, C, chunk, initial_states=h0, return_final_states=True
    )
    return y, last


def why_not_fla(problem: ScanProblem, device: torch.device) -> str | None:
    return _on_cuda_only("fla", "flash-linear-attention", device)


def fla(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y and the last state by the gated linear attention of `fla`: one function.

    q = C, k = B, v = dt x, and the log decay of a step is dt A.
    """
    from fla.ops.simple_gla import chunk_simple_gla

    shared = x.shape[2] // B.shape[2]
    B, C = (t.repeat_interleave(shared, dim=2) for t in (B, C))
    y, last = chunk_simple_gla(
        C, B, (dt.unsqueeze(-1) * x).to(x.dtype), g=dt * A, scale=1.0,
        initial_state=h0.transpose(2, 3).contiguous(), output_final_state=True,
    )  # fmt: skip
    return y, last.transpose(2, 3)


def _without_state(problem: ScanProblem, what: str) -> str | None:
    return f"{what} starts from the empty state" if problem.has_state else None
