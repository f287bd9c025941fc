"""Scans side by side: one function in every form, its price, and attention beside it."""

from seqdiag.diagnostics.ssm_bench.diagnosis import ssm_bench
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec

__all__ = ["SsmBenchSpec", "ssm_bench"]
