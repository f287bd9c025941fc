"""The options that say which module is probed, the same for every command that probes one."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import Annotated, Any

import typer

from seqdiag.cli.options import choose, parse_optional
from seqdiag.units import parse_count, parse_names

NORMS = ("pre", "post", "peri", "deepnorm")
NORM_TYPES = ("layer", "rms")


def layer_option(help: str, metavar: str = "N") -> typer.models.OptionInfo:
    """Returns an option of the built-in layers."""
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="Built-in layers"
    )
    return option


def own_option(help: str, *flags: str, metavar: str | None = None) -> typer.models.OptionInfo:
    """Returns an option of the user's own module."""
    option: typer.models.OptionInfo = typer.Option(
        *flags, help=help, metavar=metavar, rich_help_panel="Your own module"
    )
    return option


Model = Annotated[
    str | None,
    own_option(
        "Probe a module of yours instead: package.module:factory or path/file.py:factory.",
        metavar="SPEC",
    ),
]
ModelArg = Annotated[
    list[str] | None,
    own_option("Argument for the factory. Repeatable.", "--model-arg", metavar="KEY=VALUE"),
]
Hf = Annotated[
    str | None,
    own_option(
        "A config.json of a transformers model, or its folder: its weights if it has them, "
        "random ones otherwise.",
        metavar="PATH",
    ),
]
Input = Annotated[
    str,
    own_option("auto, floats, tokens or samples (B, T): what the module takes.", metavar="KIND"),
]
DIn = Annotated[str | None, own_option("Input width. Default: found by trying.", metavar="N")]
Vocab = Annotated[
    str | None, own_option("Token ids are below this. Default: the embedding's.", metavar="N")
]
Layout = Annotated[
    str, own_option("Order of batch, time and width: btd, tbd or bdt.", metavar="NAME")
]
Pick = Annotated[
    str | None, own_option("Which output to take if several have a time axis.", metavar="PATH")
]
TrainMode = Annotated[bool, own_option("Leave the module in train mode.", "--train-mode")]
Hidden = Annotated[str, typer.Option(help="Width of input and state.", metavar="N")]
Depth = Annotated[str | None, layer_option("Stack a layer in this many blocks.")]
Norm = Annotated[str | None, layer_option("Of blocks: pre, post, peri or deepnorm.", "NAME")]
NormType = Annotated[str | None, layer_option("layer or rms.", "NAME")]
Pattern = Annotated[
    str | None, layer_option("A stack by letters, such as mmma; see --list.", "LETTERS")
]
AttnImpl = Annotated[
    str | None,
    layer_option("What attention layers run on, as in attn-bench. Default: sdpa.", "NAME"),
]
Seed = Annotated[str, typer.Option(help="Of inputs and weights.", metavar="N")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", metavar="NAME")]


def subject_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options above, parsed, as the fields of a spec; `given` are a command's own."""
    return {
        "arch": parse_optional("--arch", parse_names, given["arch"]),
        "model": given["model"],
        "model_arg": tuple(given["model_arg"] or ()),
        "hf": given["hf"],
        "input": choose("--input", given["input"], ("auto", "floats", "tokens", "samples")),
        "d_in": parse_optional("--d-in", parse_count, given["d_in"]),
        "vocab": parse_optional("--vocab", parse_count, given["vocab"]),
        "layout": choose("--layout", given["layout"], ("btd", "tbd", "bdt")),
        "pick": given["pick"],
        "train_mode": given["train_mode"],
        "depth": parse_optional("--depth", parse_count, given["depth"]),
        "norm": choose("--norm", given["norm"], NORMS),
        "norm_type": choose("--norm-type", given["norm_type"], NORM_TYPES),
        "pattern": given["pattern"],
        "attn_impl": given["attn_impl"],
        "hidden": parse_optional("--hidden", parse_count, given["hidden"]),
        "seed": parse_optional("--seed", parse_seed, given["seed"]),
        "device": given["device"],
    }


def parse_seed(text: str) -> int:
    """Returns a seed: a whole number from 0."""
    return parse_count(text, minimum=0)
