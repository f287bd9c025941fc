"""How much a memory holds: predicted, measured by reading back, and trained."""

from seqdiag.diagnostics.recall.diagnosis import recall
from seqdiag.diagnostics.recall.spec import RecallSpec

__all__ = ["RecallSpec", "recall"]
