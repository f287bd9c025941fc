"""Which inputs an output reads, from the structure of a network alone."""

from seqdiag.predict.receptive_field.field import (
    Field,
    predict_field,
    skipped_inputs,
    without_norms,
)
from seqdiag.predict.receptive_field.positions import Positions
from seqdiag.predict.receptive_field.structure import (
    Blocks,
    Chain,
    Conv,
    Everything,
    Parallel,
    Past,
    Slice,
    Structure,
    StructureError,
    Transposed,
    causal_padding,
    window,
)

__all__ = [
    "Blocks",
    "Chain",
    "Conv",
    "Everything",
    "Field",
    "Parallel",
    "Past",
    "Positions",
    "Slice",
    "Structure",
    "StructureError",
    "Transposed",
    "causal_padding",
    "predict_field",
    "skipped_inputs",
    "window",
    "without_norms",
]
