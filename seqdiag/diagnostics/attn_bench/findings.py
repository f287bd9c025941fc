"""What the rows of `attn-bench` say, in sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from seqdiag.diagnostics.attn_bench.bench import conditions
from seqdiag.diagnostics.attn_bench.row import AttnBenchRow
from seqdiag.diagnostics.attn_bench.spec import AttnBenchSpec
from seqdiag.units import format_bytes, format_tokens

_JUMP = 1.5
"""A step of the scaling that is this much steeper than the whole is a cliff."""


def conclude(spec: AttnBenchSpec, rows: Sequence[AttnBenchRow]) -> list[str]:
    """Says which is the fastest correct one, what it saves, how time grows, and what failed."""
    findings: list[str] = []
    groups = list(conditions(rows).values())
    for group in groups[-1:]:
        findings += _fastest(spec, group)
    findings += _scaling(spec, rows)
    if groups:
        findings += _traffic(groups[-1][0])
    wrong = [row for row in rows if row.status in ("inaccurate", "nonfinite", "error")]
    findings += [
        f"{row.implementation} ({row.pass_}, {row.seq_len} x {row.kv_len}) is {row.status}: "
        f"{row.note}."
        for row in wrong
    ]
    if spec.check_only or spec.interpret:
        right = sum(row.status == "ok" for row in rows)
        ran = sum(row.status not in ("unsupported", "unavailable") for row in rows)
        findings.append(f"{right} of {ran} implementations that ran are right.")
    elif spec.impl is None and not any(row.backend == "triton" and row.time_ms for row in rows):
        findings.append(
            "Our Triton kernels need a GPU to be timed: here --interpret checks them, --inspect "
            "compiles them."
        )
    return findings


def _fastest(spec: AttnBenchSpec, group: Sequence[AttnBenchRow]) -> list[str]:
    timed = [row for row in group if row.status == "ok" and row.time_ms is not None]
    if not timed:
        return []
    best = min(timed, key=lambda row: row.time_ms or math.inf)
    against = next((row for row in timed if row.implementation == spec.against), None)
    name = best.implementation
    if best.backend not in ("", "eager", "triton", name):
        name += f" ({best.backend})"
    text = f"Fastest correct at {_problem(best)}: {name}, {best.time_ms:.3g} ms"
    if against is not None and against is not best:
        text += f", {best.speedup_ratio:.3g} x {against.implementation}"
    if against is not None and best.peak_bytes and against.peak_bytes:
        ratio = against.peak_bytes / best.peak_bytes
        text += (
            f"; at its peak it held {format_bytes(best.peak_bytes)}, {against.implementation} "
            f"{format_bytes(against.peak_bytes)} ({ratio:.3g} x)"
        )
    return [text + "."]


def _problem(row: AttnBenchRow) -> str:
    length = format_tokens(row.seq_len)
    if row.kv_len != row.seq_len:
        queries = "query" if row.seq_len == 1 else "queries"
        length += f" {queries} on {format_tokens(row.kv_len)} keys"
    return f"{length} ({row.pass_}, {row.mask}, {row.dtype})"


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Returns b of time = a * length^b, by least squares in logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


def _scaling(spec: AttnBenchSpec, rows: Sequence[AttnBenchRow]) -> list[str]:
    """Says how time grows with length, where there are several lengths at one batch."""
    decode = spec.mode == "decode"
    what = "context" if decode else "length"
    lines = []
    for which in spec.passes:
        grown = []
        for name in dict.fromkeys(row.implementation for row in rows):
            chosen = [
                row for row in rows
                if row.implementation == name and row.pass_ == which and row.time_ms
                and row.status == "ok"
            ]  # fmt: skip
            points = {
                float(r.kv_len if decode else r.seq_len): float(r.time_ms or 0) for r in chosen
            }
            if len(points) < 2 or len({row.batch for row in chosen}) > 1:
                continue
            found = sorted(points.items())
            grown.append(f"{name} {exponent(found):.2f}{_cliff(found)}")
        if grown:
            lines.append(f"Time grows with {what} to the power ({which}): {', '.join(grown)}.")
    if decode and lines:
        lines.append("One step reads the whole cache: attention's time per token grows with it.")
    return lines


def _cliff(points: Sequence[tuple[float, float]]) -> str:
    for before, after in itertools.pairwise(points):
        if len(points) > 2 and exponent([before, after]) > exponent(points) + _JUMP:
            return f" (jumps between {before[0]:g} and {after[0]:g})"
    return ""


def _traffic(row: AttnBenchRow) -> list[str]:
    ratio = row.materialised_bytes / row.min_bytes
    return [
        f"At {_problem(row)} unfused attention moves {format_bytes(row.materialised_bytes)} "
        f"between memory and processor, once each tensor {format_bytes(row.min_bytes)}: fusing "
        f"saves {ratio:.3g} x. Assumed: the {row.dtype} score matrix is written and read by each "
        "operator, and caches hold none of it."
    ]
