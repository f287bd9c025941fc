"""How many bytes a model keeps between decode steps: a growing cache or a fixed state."""

from seqdiag.diagnostics.kvcache.diagnosis import kvcache
from seqdiag.diagnostics.kvcache.spec import KvcacheSpec

__all__ = ["KvcacheSpec", "kvcache"]
