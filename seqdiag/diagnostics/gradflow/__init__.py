"""How much gradient of a loss at the last step reaches each earlier step."""

from seqdiag.diagnostics.gradflow.diagnosis import gradflow
from seqdiag.diagnostics.gradflow.spec import GradflowSpec

__all__ = ["GradflowSpec", "gradflow"]
