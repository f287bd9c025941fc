"""`--by logits`: why attention divides by sqrt(d_k)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.measure.logits import softmax_health
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="d_k",
    y="softmax_jacobian_trace",
    series="scaled",
    x_label="key dimension",
    y_label="trace of the softmax Jacobian",
    log_x=True,
    log_y=True,
)


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """The softmax of attention at one key dimension, scaled or not."""

    d_k: int = column("key dimension", identity=True)
    scaled: bool = column("whether logits are divided by sqrt(d_k)", identity=True)
    seed: int = column("seed of queries and keys", identity=True)
    seq_len: int = column("keys, and queries", identity=True)
    logit_variance: float = column("variance of q . k for q, k from N(0, I)")
    softmax_jacobian_trace: float = column("1 - sum p^2, median over queries")
    entropy_nats: float = column("-sum p ln p, median over queries")
    grad_norm: float = column("norm of d(read along a random direction) / d logits, median")
    status: Status = column("ok")
    note: str = column("nothing so far")


def row_type(spec: GradflowSpec) -> type:
    return LogitsRow


def count(spec: GradflowSpec) -> int:
    return 2 * len(spec.d_k)


def headline(spec: GradflowSpec) -> None:
    return None


def rows(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[LogitsRow]:
    """Yields all dimensions unscaled, then scaled."""
    for scaled in (False, True):
        for d_k in spec.d_k:
            health = softmax_health(d_k, scaled, spec.seq_len, spec.seed)
            yield LogitsRow(
                d_k=d_k,
                scaled=scaled,
                seed=spec.seed,
                seq_len=spec.seq_len,
                logit_variance=health.logit_variance,
                softmax_jacobian_trace=health.jacobian_trace,
                entropy_nats=health.entropy_nats,
                grad_norm=health.grad_norm,
                status="ok",
                note="",
            )


def conclude(spec: GradflowSpec, rows: Sequence[LogitsRow]) -> list[str]:
    """Says what the scale saves."""
    largest = max(spec.d_k)
    raw, scaled = (
        next(r for r in rows if r.d_k == largest and r.scaled is on) for on in (False, True)
    )
    return [
        f"At d_k = {largest} the unscaled softmax passes {raw.softmax_jacobian_trace:.2g} of its "
        f"gradient on, the scaled one {scaled.softmax_jacobian_trace:.2g}: the variance of a dot "
        "product is d_k, and dividing by sqrt(d_k) makes it 1."
    ]
