"""The forms of each recurrence by the name of their row, and why one cannot run.

To add one: an implementation of the op in `seqdiag.ops.scan`, and a line in `FORMS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seqdiag.ops.registry import load_implementation
from seqdiag.ops.scan import INVARIANT, LINEAR, SELECTIVE, SSD, ScanProblem
from seqdiag.predict.scan_work import Kind

TABLES: dict[Kind, dict[str, str]] = {
    "lti": INVARIANT,
    "selective": SELECTIVE,
    "ssd": SSD,
    "linear-rnn": LINEAR,
}
_PLAIN: tuple[Kind, ...] = ("lti", "selective", "linear-rnn")


@dataclass(frozen=True, slots=True)
class Form:
    """A form: the implementation of the op behind it, for the kinds that it computes."""

    impl: str
    kinds: tuple[Kind, ...]
    description: str


FORMS = {
    "loop": Form("loop", (*_PLAIN, "ssd"), "one step at a time, as the papers write it"),
    "chunked": Form("chunked", _PLAIN, "chunks in bounded memory: the default on a CPU"),
    "associative": Form("associative", _PLAIN, "parallel prefix over the whole sequence"),
    "fft": Form("fft", _PLAIN, "convolution; for transitions fixed over time"),
    "ssd-chunked": Form("chunked", ("ssd",), "the dual form: matrix products inside chunks"),
    "scan-triton": Form("triton", ("selective",), "our Triton kernel, a loop over time"),
    "scan-triton-prefix": Form(
        "triton-associative", ("selective",), "tl.associative_scan, forward only"
    ),
    "ssd-triton": Form("triton", ("ssd",), "our Triton kernels for the dual form"),
    "mamba-ssm": Form("mamba-ssm", ("selective", "ssd"), "the package mamba_ssm (CUDA)"),
    "fla": Form("fla", ("ssd",), "flash-linear-attention's gated linear attention (CUDA)"),
    "mambapy": Form("mambapy", ("selective",), "the package mambapy, in plain PyTorch"),
    "scan-triton-interpret": Form("triton", ("selective",), "interpreted: checked, never timed"),
    "scan-triton-prefix-interpret": Form(
        "triton-associative", ("selective",), "interpreted: checked, never timed"
    ),
    "ssd-triton-interpret": Form("triton", ("ssd",), "interpreted: checked, never timed"),
}
INTERPRETED = frozenset(name for name in FORMS if name.endswith("-interpret"))
FORWARD_ONLY = frozenset(name for name, form in FORMS.items() if form.impl == "triton-associative")
CHUNKS = {"lti": 32, "ssd": 64, "linear-rnn": 64}
"""The chunk that the chunked form chooses by itself; that of the selective scan fits its caches."""
_INTERPRETED_STEPS = 4096
"""Steps of all programs that the interpreter gets through in seconds."""


def takes_chunk(name: str) -> bool:
    return FORMS[name].impl == "chunked" or name.startswith("ssd-triton")


def why_not(
    name: str,
    kind: Kind,
    problem: ScanProblem,
    device: torch.device,
    programs: int,
) -> tuple[str, str] | None:
    """Returns the status and the reason why a form cannot run a problem here, or None."""
    form = FORMS[name]
    if kind not in form.kinds:
        return "unsupported", f"computes {', '.join(form.kinds)}, not {kind}"
    if problem.chunk is not None and problem.chunk > problem.steps:
        return "unsupported", f"a chunk of {problem.chunk} is longer than the sequence"
    if name not in INTERPRETED and "triton" in form.impl and device.type != "cuda":
        return "unavailable", "needs a CUDA device; --interpret checks the kernels here"
    if name in INTERPRETED and problem.steps * programs > _INTERPRETED_STEPS:
        return "skipped", "too long to interpret: --seq-len 128 --d-model 64 takes seconds"
    reason = load_implementation(TABLES[kind], form.impl).why_not(problem, device)
    if reason is None:
        return None
    absent = "not installed" in reason or "CUDA device" in reason or "without its" in reason
    return ("unavailable" if absent else "unsupported"), reason
