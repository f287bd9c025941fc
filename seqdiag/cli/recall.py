"""`seqdiag recall`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated

import typer

from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.units import parse_count, parse_counts, parse_names

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import recall_listing

    return recall_listing()


@command(_listing)
def recall(
    memory: Annotated[
        str,
        typer.Option(
            help="Write rules, see --list; some take a number: decay:0.9, delta:4.", metavar="LIST"
        ),
    ] = "linear",
    state_dim: Annotated[str, typer.Option(help="Length of keys.", metavar="LIST")] = "64",
    value_dim: Annotated[
        str | None, typer.Option(help="Length of values. Default: that of keys.", metavar="N")
    ] = None,
    pairs: Annotated[
        str, typer.Option(help="How many pairs are written.", metavar="LIST")
    ] = "8,32,64,128,512",
    trials: Annotated[
        str | None,
        typer.Option(
            help="Independent memories a row. Default: enough for 2000 probes, 20 at least.",
            metavar="N",
        ),
    ] = None,
    probes: Annotated[
        str, typer.Option(help="Read one pair of each trial, or all.", metavar="one|all")
    ] = "all",
    seed: Annotated[str, typer.Option(help="Of keys and values.", metavar="N")] = "0",
) -> "Diagnosis":
    """How many pairs a memory of fixed size gives back, predicted and measured."""
    from seqdiag.diagnostics.recall import RecallSpec
    from seqdiag.diagnostics.recall import recall as diagnose

    return diagnose(
        RecallSpec(
            memory=parse("--memory", parse_names, memory),
            state_dim=parse("--state-dim", parse_counts, state_dim),
            value_dim=parse_optional("--value-dim", parse_count, value_dim),
            pairs=parse("--pairs", parse_counts, pairs),
            trials=parse_optional("--trials", parse_count, trials),
            probes=choose("--probes", probes, ("one", "all")),
            seed=parse("--seed", _seed, seed),
        )
    )


def _seed(text: str) -> int:
    return parse_count(text, minimum=0)
