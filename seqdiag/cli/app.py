"""The one place where errors become lines on stderr and exit codes."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from seqdiag import __version__
from seqdiag.errors import SeqdiagError, is_memory

OK, BAD_USAGE, BUG, INTERRUPTED = 0, 2, 4, 130

COMMANDS = {
    "attn-bench": "seqdiag.cli.attn_bench:attn_bench",
    "gradflow": "seqdiag.cli.gradflow:gradflow",
    "kvcache": "seqdiag.cli.kvcache:kvcache",
    "recall": "seqdiag.cli.recall:recall",
    "receptive-field": "seqdiag.cli.receptive_field:receptive_field",
    "ssm-bench": "seqdiag.cli.ssm_bench:ssm_bench",
}


def build_app(names: Iterable[str]) -> typer.Typer:
    """Returns the Typer application with the commands `names`."""
    app = typer.Typer(
        name="seqdiag",
        help="Diagnostics for sequence models: claims measured, on your model and your machine.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_options)
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        app.command(name)(getattr(importlib.import_module(module), function))
    return app


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"seqdiag {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main(arguments: list[str]) -> int:
    """Runs the command line and returns the exit code."""
    if sys.stdout is None:  # closed by the caller: nobody reads the result
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    # Before torch is imported: spinning OpenMP threads stall chains of small ops on busy machines.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return _run(arguments or ["--help"])
    except SeqdiagError as error:
        _complain(error.message, error.hint, _debugged(error, arguments))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except OSError as error:  # a disk that is full, a folder that cannot be entered
        place = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror or error}{place}", "", _debugged(error, arguments))
        return BAD_USAGE
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own: an unknown option, a missing value
            _complain(error.format_message(), _usage_hint(arguments))
            return BAD_USAGE
        if isinstance(error, MemoryError | RuntimeError) and is_memory(error):
            reason = " ".join(str(error).split())
            _complain(f"not enough memory: {reason:.120}", "", _debugged(error, arguments))
            return BAD_USAGE
        _complain(
            f"internal error: {type(error).__name__}: {error}",
            "" if "--debug" in arguments else "--debug shows the traceback",
            _debugged(error, arguments),
        )
        return BUG
    finally:
        _flush()


def _debugged(error: BaseException, arguments: list[str]) -> BaseException | None:
    return error if "--debug" in arguments else None


def _flush() -> None:
    """Empties the streams, so that the interpreter's exit finds nothing that could fail."""
    from seqdiag.report.sink import silence

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(stream)
        except AttributeError:  # closed before we started
            continue


def _run(arguments: list[str]) -> int:
    try:
        # A command needs only itself: importing and describing the others takes time.
        names = arguments[:1] if arguments[0] in COMMANDS else COMMANDS
        code = build_app(names)(
            arguments, prog_name="seqdiag", standalone_mode=False, obj=arguments
        )
    except (SystemExit, BrokenPipeError):  # the reader of --help has gone
        from seqdiag.report.sink import silence

        silence(sys.stdout)
        return OK
    return code if isinstance(code, int) else OK


def _usage_hint(arguments: list[str]) -> str:
    known = [word for word in arguments[:1] if word in COMMANDS]
    return " ".join(["seqdiag", *known, "--help"]) + " lists what is accepted"


def _complain(message: str, hint: str = "", error: BaseException | None = None) -> None:
    with contextlib.suppress(OSError, AttributeError):  # a closed or full stderr
        if error is not None:
            import traceback

            traceback.print_exception(error)
        lines = [f"error: {' '.join(message.split())}"]
        if hint:
            lines.append(f"hint: {' '.join(hint.split())}")
        sys.stderr.write("".join(f"{line}\n" for line in lines))
