"""`python -m seqdiag` and the console script."""

from __future__ import annotations

import gc
import sys


def run() -> None:
    """Runs the command line and exits with its code."""
    # Start-up allocates many objects that live to the end: collecting among them is a tenth of
    # the time of `seqdiag --help` and finds nothing.
    gc.disable()
    try:
        from seqdiag.cli.app import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # before the command line could take care of it
        code = 130
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    run()
