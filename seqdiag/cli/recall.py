"""`seqdiag recall`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.errors import UsageError
from seqdiag.units import parse_count, parse_counts, parse_float, parse_names

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import recall_listing

    return recall_listing()


def _training(help: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="Training, with --task"
    )
    return option


@command(_listing)
def recall(
    memory: Annotated[
        str | None,
        typer.Option(
            help="Write rules, see --list; some take a number: decay:0.9, delta:4. Default: "
            "linear.",
            metavar="LIST",
        ),
    ] = None,
    state_dim: Annotated[
        str | None, typer.Option(help="Length of keys. Default: 64.", metavar="LIST")
    ] = None,
    value_dim: Annotated[
        str | None, typer.Option(help="Length of values. Default: that of keys.", metavar="N")
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="How many pairs are written. Default: 8,32,64,128,512; trained 16.",
            metavar="LIST",
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(
            help="Independent memories a row. Default: enough for 2000 probes, 20 at least.",
            metavar="N",
        ),
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(help="Read one pair of each trial, or all. Default: all.", metavar="one|all"),
    ] = None,
    draw: Annotated[
        str | None,
        typer.Option(
            help='article: the draws of "Sequence models before transformers", number for number.',
            metavar="NAME",
        ),
    ] = None,
    seed: Annotated[str, typer.Option(help="Of all that is drawn.", metavar="N")] = "0",
    task: Annotated[
        str | None,
        _training("Train models on mqar, induction, copy or selective-copy instead.", "NAME"),
    ] = None,
    arch: Annotated[
        str | None,
        _training(
            "Stacks: sums such as conv+attention, layers (two of them), or files; see --list. "
            "Default: conv+attention.",
            "LIST",
        ),
    ] = None,
    pattern: Annotated[str | None, _training("A stack by letters, such as ba.", "LETTERS")] = None,
    seq_len: Annotated[str | None, _training("Tokens a sequence. Default: 64.", "LIST")] = None,
    vocab: Annotated[str | None, _training("Token ids. Default: 256.")] = None,
    d_model: Annotated[str | None, _training("Width. Default: 64.")] = None,
    equal: Annotated[
        str | None,
        _training(
            "What --arch have as much of as the first has at --d-model: width, params or state. "
            "Default: width.",
            "LIST",
        ),
    ] = None,
    heads: Annotated[str | None, _training("Of attention and linear memories. Default: 1.")] = None,
    window: Annotated[
        str | None, _training("Keys that sliding attention sees. Default: 16.")
    ] = None,
    filler: Annotated[
        str | None, _training("zero, or random ids of no pair. Default: zero.", "NAME")
    ] = None,
    updates: Annotated[str | None, _training("Optimiser updates at most. Default: 1500.")] = None,
    batch: Annotated[str | None, _training("Fresh sequences an update. Default: 128.")] = None,
    lr: Annotated[
        str | None, _training("Peak. Default: 3e-3, of attention alone 1e-3.", "X")
    ] = None,
    budget: Annotated[
        str | None, _training("CPU time for each model, such as 60s. Default: 60s.", "TIME")
    ] = None,
    seeds: Annotated[str | None, _training("How many seeds, from --seed on. Default: 1.")] = None,
    jobs: Annotated[
        str | None, _training("Models trained at once, a process each. Default: 1.")
    ] = None,
    scheduler: Annotated[
        str | None,
        _training(
            "Train on the workers of a Dask cluster, such as tcp://host:8786 (extra: cluster).",
            "ADDRESS",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        _training("Append finished rows to FILE; what it holds is not trained again.", "FILE"),
    ] = None,
) -> "Diagnosis":
    """How many pairs a memory gives back: predicted and measured, or trained on a task."""
    from seqdiag.diagnostics.recall import RecallSpec
    from seqdiag.diagnostics.recall import recall as diagnose

    trained = {
        "arch": parse_optional("--arch", parse_names, arch),
        "pattern": pattern,
        "seq_len": parse_optional("--seq-len", parse_counts, seq_len),
        "vocab": parse_optional("--vocab", parse_count, vocab),
        "d_model": parse_optional("--d-model", parse_count, d_model),
        "equal": parse_optional("--equal", _equal, equal),
        "heads": parse_optional("--heads", parse_count, heads),
        "window": parse_optional("--window", parse_count, window),
        "filler": choose("--filler", filler, ("zero", "random")),
        "updates": parse_optional("--updates", parse_count, updates),
        "batch": parse_optional("--batch", parse_count, batch),
        "lr": parse_optional("--lr", parse_float, lr),
        "budget_s": parse_optional("--budget", _seconds, budget),
        "seeds": parse_optional("--seeds", parse_count, seeds),
        "jobs": parse_optional("--jobs", _workers, jobs),
        "scheduler": scheduler,
        "resume": resume,
    }
    read_back = {
        "memory": parse_optional("--memory", parse_names, memory),
        "state_dim": parse_optional("--state-dim", parse_counts, state_dim),
        "value_dim": parse_optional("--value-dim", parse_count, value_dim),
        "trials": parse_optional("--trials", parse_count, trials),
        "probes": choose("--probes", probes, ("one", "all")),
        "draw": choose("--draw", draw, ("blocks", "article")),
    }
    _refuse(read_back if task else trained, task)
    chosen = trained if task else read_back
    return diagnose(
        RecallSpec(
            pairs=parse("--pairs", parse_counts, pairs or ("16" if task else "8,32,64,128,512")),
            seed=parse("--seed", _seed, seed),
            task=choose("--task", task, ("mqar", "induction", "copy", "selective-copy")),
            **{name: value for name, value in chosen.items() if value is not None},
        )
    )


def _refuse(options: dict[str, Any], task: str | None) -> None:
    """Raises for an option that the chosen kind of recall would ignore."""
    for name, value in options.items():
        if value is not None:
            option = "--" + name.removesuffix("_s").replace("_", "-")
            raise UsageError(
                f"{option}: is of reading back; --task trains models"
                if task
                else f"{option}: is of training",
                hint="leave one of the two out" if task else f"add --task mqar to use {option}",
            )


def _equal(text: str) -> tuple[str, ...]:
    names = parse_names(text)
    for name in names:
        if name not in ("width", "params", "state"):
            raise ValueError(f"{name!r} is not one of width, params, state")
    return names


def _workers(text: str) -> int:
    count = parse_count(text)
    if count > _MOST_WORKERS:
        raise ValueError(f"{text!r} is more than {_MOST_WORKERS} processes")
    return count


_MOST_WORKERS = 256
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|min)?", re.ASCII)


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text.strip())
    if match is None or float(match[1]) > 1e7:
        raise ValueError(f"{text!r} is not a time such as 60s, 10m or 1h")
    return float(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[match[2] or "s"]


def _seed(text: str) -> int:
    return parse_count(text, minimum=0)
