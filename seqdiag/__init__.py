"""seqdiag: diagnostics that measure what sequence models do.

Shapes in docstrings: B batch, T time steps (tokens), D model width, H hidden width, L layers.
"""

from __future__ import annotations

__version__ = "0.1.0"
