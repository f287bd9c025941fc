"""One problem with its inputs, and calling an implementation on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.ops.attention import AttentionProblem
from seqdiag.ops.registry import Implementation
from seqdiag.predict.work import AttentionShape, Pass


@dataclass(frozen=True, slots=True)
class Problem:
    """A shape in a dtype on a device."""

    shape: AttentionShape
    dtype: torch.dtype
    device: torch.device
    seed: int

    @property
    def scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    @property
    def for_ops(self) -> AttentionProblem:
        s = self.shape
        return AttentionProblem(
            s.batch, s.heads, s.kv_heads, s.q_len, self.kept_keys, s.head_dim, s.v_head_dim,
            self.dtype, s.causal, s.window,
        )  # fmt: skip

    @property
    def kept_keys(self) -> int:
        """Keys that are passed on: aligned top-left, those after the last query are hidden."""
        s = self.shape
        return s.q_len if s.causal and s.align == "top-left" else s.kv_len

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns q, k, v and d_out, standard normal, the same for every implementation."""
        s = self.shape
        generator = torch.Generator().manual_seed(self.seed)
        sizes = (
            (s.batch, s.heads, s.q_len, s.head_dim),
            (s.batch, s.kv_heads, s.kv_len, s.head_dim),
            (s.batch, s.kv_heads, s.kv_len, s.v_head_dim),
            (s.batch, s.heads, s.q_len, s.v_head_dim),
        )
        q, k, v, d_out = (
            torch.randn(size, generator=generator).to(self.device, self.dtype) for size in sizes
        )
        return q, k, v, d_out

    def call(self, run: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns what an implementation makes of the inputs."""
        kept = self.kept_keys
        return run(
            q, k[:, :, :kept], v[:, :, :kept],
            causal=self.shape.causal, window=self.shape.window, scale=self.scale,
        )  # fmt: skip

    def gradients(
        self, run: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, d_out: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns dq, dk, dv."""
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = self.call(run, *leaves)
        return torch.autograd.grad(out, leaves, d_out)


def timed_call(
    problem: Problem, implementation: Implementation, which: Pass, inputs: tuple[Tensor, ...]
) -> Callable[[], object]:
    """Returns what is timed: a forward pass, its gradients alone, or both as a unit."""
    q, k, v, d_out = inputs
    if which == "fwd":

        def forward() -> Tensor:
            with torch.no_grad():
                return problem.call(implementation.run, q, k, v)

        return forward
    if which == "both":
        return lambda: problem.gradients(implementation.run, q, k, v, d_out)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = problem.call(implementation.run, *leaves)
    return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)
