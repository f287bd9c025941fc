"""Options that every command shares, and the step from a command to its exit code."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from seqdiag.errors import UsageError

if TYPE_CHECKING:
    from seqdiag.report.publish import OutputOptions
    from seqdiag.report.result import Diagnosis

T = TypeVar("T")


def _use_config(ctx: typer.Context, value: str | None) -> None:
    if value is not None:
        ctx.meta[_CONFIG] = value
        _set_defaults(ctx)


def _use_preset(ctx: typer.Context, value: str | None) -> str | None:
    if value is not None:
        ctx.meta[_PRESET] = value
        _set_defaults(ctx)
    return value


_CONFIG, _PRESET = "seqdiag.config", "seqdiag.preset"


def _set_defaults(ctx: typer.Context) -> None:
    """Makes the options of a file the defaults of this command: the command line still wins.

    --config and --preset come in either order; the second to come sees both.
    """
    value, preset = ctx.meta.get(_CONFIG), ctx.meta.get(_PRESET)
    if value is None:
        return
    from seqdiag.config import load_options

    params = {str(p.name).rstrip("_"): p for p in ctx.command.params}
    for name in ("config", "preset", "list", "debug", "help"):
        if name in params and (name != "preset" or params[name].is_eager):  # else the command's own
            del params[name]
    defaults = {}
    for name, option in load_options(value, ctx.command.name or "", params, preset).items():
        param = params[name]
        many = getattr(param, "multiple", False) or param.nargs == -1
        defaults[str(param.name)] = _as_typed(option, many)
    ctx.default_map = defaults


def _as_typed(option: Any, many: bool) -> Any:
    """Returns an option of a file as the command line would give it."""
    if isinstance(option, bool):
        return option
    if many:
        return [str(item) for item in (option if isinstance(option, list) else [option])]
    return ",".join(map(str, option)) if isinstance(option, list) else str(option)


def _output(help: str, *flags: str, metavar: str | None = None) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        *flags, help=help, metavar=metavar, rich_help_panel="Output"
    )
    return option


def _run(help: str, *flags: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel="Run", **more)


def _shared_options(
    *,
    format_: Annotated[
        str | None,
        _output("table (default), csv, json, jsonl or md.", "--format", "-f", metavar="NAME"),
    ] = None,
    csv: Annotated[bool, _output("Short for --format csv.", "--csv")] = False,
    json: Annotated[bool, _output("Short for --format json.", "--json")] = False,
    output: Annotated[
        list[str] | None,
        _output(
            "Also write FILE, format by suffix: .csv .json .jsonl .md .txt. Repeatable.",
            "--output",
            "-o",
            metavar="FILE",
        ),
    ] = None,
    force: Annotated[bool, _output("Replace files that exist.", "--force")] = False,
    plot: Annotated[str | None, _output("Draw the result: .png, .svg.", metavar="FILE")] = None,
    fail_if: Annotated[
        list[str] | None,
        _output(
            "Exit 1 if EXPR, a pandas query over the columns, holds for a row. Repeatable.",
            "--fail-if",
            metavar="EXPR",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        _output(
            "Add <metric>_baseline and <metric>_change_ratio from an earlier .json or .csv.",
            metavar="FILE",
        ),
    ] = None,
    cross_device: Annotated[
        bool, _output("Accept a baseline from another device or dtype.", "--cross-device")
    ] = False,
    quiet: Annotated[
        bool, _output("No findings, no progress, no warnings.", "--quiet", "-q")
    ] = False,
    config: Annotated[
        str | None,
        _run(
            "Options from a TOML file, a named study or an earlier result's .json.",
            metavar="FILE|NAME",
            is_eager=True,
            callback=_use_config,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        _run(
            "Of the study in --config: the sizes it names, such as small.",
            metavar="NAME",
            is_eager=True,
            callback=_use_preset,
        ),
    ] = None,
    list_: Annotated[bool, _run("List what this command knows.", "--list")] = False,
    debug: Annotated[bool, _run("Show tracebacks.", "--debug")] = False,
) -> "OutputOptions":
    """The options of every command; `config` and `debug` act elsewhere."""
    from seqdiag.report.formats import load_format
    from seqdiag.report.publish import OutputOptions

    named = [format_, "csv" if csv else None, "json" if json else None]
    chosen = {name for name in named if name is not None}
    if len(chosen) > 1:
        raise UsageError(f"--format: {' and '.join(sorted(chosen))} exclude each other")
    name = chosen.pop() if chosen else "table"
    load_format(name)
    return OutputOptions(
        format=name,
        output=tuple(map(Path, output or ())),
        force=force,
        plot=None if plot is None else Path(plot),
        fail_if=tuple(fail_if or ()),
        baseline=None if baseline is None else Path(baseline),
        cross_device=cross_device,
        quiet=quiet,
    )


def command(
    listing: "Callable[[], Diagnosis]",
) -> "Callable[[Callable[..., Diagnosis]], Callable[..., None]]":
    """Makes a function that returns a `Diagnosis` a command with all the shared options."""

    def decorate(function: "Callable[..., Diagnosis]") -> Callable[..., None]:
        own = _parameters(function)
        names = {p.name for p in own}
        shared = [p for p in _parameters(_shared_options) if p.name not in names]

        @functools.wraps(function)
        def run(context_: typer.Context, **given: Any) -> None:
            # Older Typers take no default from a file for a list of arguments.
            for name, value in (context_.default_map or {}).items():
                given[name] = value if given[name] in (None, (), []) else given[name]
            if context_.meta.get(_PRESET) is not None and _CONFIG not in context_.meta:
                raise UsageError("--preset: is of a study; name it with --config")
            common = {p.name: given.pop(p.name) for p in shared}
            options = _shared_options(**common)
            diagnosis = listing() if common["list_"] else function(**given)
            from seqdiag.report.publish import publish

            raise typer.Exit(publish(diagnosis, options, argv=context_.obj))

        context = inspect.Parameter(
            "context_", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = [context, *own, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters with their annotations resolved, keyword-only."""
    returned = {"Diagnosis": None, "OutputOptions": None}  # imported for type checkers only
    hints = typing.get_type_hints(function, localns=returned, include_extras=True)
    return [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name])
        for p in inspect.signature(function).parameters.values()
    ]


def parse(option: str, parser: Callable[[str], T], text: str) -> T:
    """Returns `parser(text)`; what it refuses becomes an error that names the option."""
    try:
        return parser(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def parse_optional(option: str, parser: Callable[[str], T], text: str | None) -> T | None:
    """Returns `parse(...)`, or None where the option was not given."""
    return None if text is None else parse(option, parser, text)


def choose(option: str, value: str | None, accepted: tuple[str, ...]) -> Any:
    """Returns `value` if it is one of `accepted` or not given; typed as the `Literal` it is for."""
    if value is not None and value not in accepted:
        raise UsageError(f"{option}: {value!r} is not one of {', '.join(accepted)}")
    return value
