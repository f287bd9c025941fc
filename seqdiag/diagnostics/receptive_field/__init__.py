"""What each output can see, predicted, measured and effective; and whether the future leaks in."""

from seqdiag.diagnostics.receptive_field.diagnosis import receptive_field
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec

__all__ = ["ReceptiveFieldSpec", "receptive_field"]
