"""seqdiag: diagnostics that measure what sequence models do.

    result = seqdiag.gradflow(my_module, seq_len=200)
    result.frame()

Shapes in docstrings: B batch, T time steps (tokens), D model width, H hidden width, L layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqdiag.api import attn_bench, gradflow, kvcache, recall, receptive_field, ssm_bench

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "attn_bench",
    "gradflow",
    "kvcache",
    "recall",
    "receptive_field",
    "ssm_bench",
]


def __getattr__(name: str) -> object:
    """Imports the diagnostics when they are used: importing torch takes seconds."""
    if name in __all__:
        from seqdiag import api

        return getattr(api, name)
    raise AttributeError(f"module 'seqdiag' has no attribute {name!r}")
