"""Which attention is fastest on this machine for a shape, and whether it is right."""

from seqdiag.diagnostics.attn_bench.diagnosis import attn_bench
from seqdiag.diagnostics.attn_bench.spec import AttnBenchSpec

__all__ = ["AttnBenchSpec", "attn_bench"]
