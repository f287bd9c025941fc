"""Running Triton kernels on the CPU, exactly enough to judge them.

Triton's interpreter runs a kernel program by program in numpy. Left as it is, it computes bfloat16
on bit patterns and truncates where a GPU rounds; `enable` mends that and makes scans fast.
`strict` adds what a GPU would punish: reads and writes outside the arguments, use of masked lanes,
two programs writing one address, dependence on the order of programs.
"""

from __future__ import annotations

import os
import sys

from seqdiag.errors import UnavailableError

VARIABLE = "TRITON_INTERPRET"


def is_enabled() -> bool:
    """Returns whether kernels of this process are interpreted."""
    shim = sys.modules.get("seqdiag.ops.interpreter.shim")
    return getattr(shim, "installed", False)


def enable() -> None:
    """Makes every kernel that is imported from now on run in the mended interpreter.

    Triton decides at its import: raises `UnavailableError` where it is missing, where it was
    imported to compile, and where the mended interpreter fails its own check.
    """
    if is_enabled():
        return
    if "triton" in sys.modules and os.environ.get(VARIABLE) != "1":
        raise UnavailableError(
            "Triton is loaded to compile kernels; it cannot interpret them in the same process",
            hint=f"set {VARIABLE}=1 before Python starts",
        )
    os.environ[VARIABLE] = "1"
    try:
        import triton  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "interpreting kernels needs Triton, which has wheels for Linux only",
            hint="pip install triton",
        ) from None
    from seqdiag.ops.interpreter.selfcheck import check
    from seqdiag.ops.interpreter.shim import install

    install()
    check()
