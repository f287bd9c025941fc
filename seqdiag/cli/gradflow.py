"""`seqdiag gradflow`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated

import typer

from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.units import parse_count, parse_counts, parse_float, parse_floats, parse_names

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import gradflow_listing

    return gradflow_listing()


def _layer(help: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="Built-in layers"
    )
    return option


def _own(help: str, *flags: str, metavar: str | None = None) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        *flags, help=help, metavar=metavar, rich_help_panel="Your own module"
    )
    return option


@command(_listing)
def gradflow(
    arch: Annotated[
        str | None,
        typer.Option(
            help="Layers and stacks to probe, see --list. Default: rnn,lstm,gru.", metavar="LIST"
        ),
    ] = None,
    model: Annotated[
        str | None,
        _own(
            "Probe a module of yours instead: package.module:factory or path/file.py:factory.",
            metavar="SPEC",
        ),
    ] = None,
    seq_len: Annotated[str, typer.Option(help="Steps in the sequence.", metavar="N")] = "60",
    hidden: Annotated[str, typer.Option(help="Width of input and state.", metavar="N")] = "32",
    batch: Annotated[
        str | None,
        typer.Option(help="Sequences at once. Default: 1, by layer and cell 8.", metavar="N"),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="A row per step (time), subject (summary), layer, layer and step (cell), lag of "
            "the state's Jacobian (jacobian), or key dimension of a softmax (logits).",
            metavar="VIEW",
        ),
    ] = "time",
    steps_back: Annotated[
        str | None,
        typer.Option(
            help="Which lags to show, 0 being the last step. Default: all.", metavar="LIST"
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Of the sequences of a padded batch: the loss is at each one's last step.",
            metavar="LIST",
        ),
    ] = None,
    horizon_ratio: Annotated[
        str, typer.Option(help="What counts as reaching, for horizon_steps.", metavar="X")
    ] = "1e-3",
    seed: Annotated[str, typer.Option(help="Of inputs and weights.", metavar="N")] = "0",
    seeds: Annotated[
        str,
        typer.Option(help="How many seeds, from --seed on; summary shows the spread.", metavar="N"),
    ] = "1",
    dtype: Annotated[
        str, typer.Option(help="float64, float32, float16 or bfloat16.", metavar="NAME")
    ] = "float64",
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N.", metavar="NAME")
    ] = "auto",
    jacobian: Annotated[bool, typer.Option("--jacobian", help="Short for --by jacobian.")] = False,
    reduce: Annotated[
        str | None,
        typer.Option(
            help="Loss at the last step: sum, or a random direction, which cannot cancel. Default: "
            "sum for recurrent layers, random otherwise.",
            metavar="NAME",
        ),
    ] = None,
    after_steps: Annotated[
        str, typer.Option(help="Train this many steps on a copy task first.", metavar="N")
    ] = "0",
    lr: Annotated[
        str, typer.Option(help="Of those steps: Adam, no warm-up.", metavar="X")
    ] = "1e-3",
    d_k: Annotated[
        str, typer.Option(help="Key dimensions for --by logits.", metavar="LIST")
    ] = "4,16,64,256,1024",
    depth: Annotated[str | None, _layer("Stack a layer in this many blocks.")] = None,
    norm: Annotated[str | None, _layer("Of blocks: pre, post, peri or deepnorm.", "NAME")] = None,
    norm_type: Annotated[str | None, _layer("layer or rms.", "NAME")] = None,
    pattern: Annotated[
        str | None, _layer("A stack by letters, such as mmma; see --list.", "LETTERS")
    ] = None,
    multiplier: Annotated[
        str, _layer("For linear: a of h_t = a h_{t-1} + x_t.", "LIST")
    ] = "0.9,0.99,1.0,1.1",
    forget_bias: Annotated[
        str | None, _layer("For lstm: the effective forget bias (PyTorch adds two).", "X")
    ] = None,
    init: Annotated[
        str,
        _layer("Of recurrent weights: default, orthogonal, or identity with zero biases.", "NAME"),
    ] = "default",
    nonlinearity: Annotated[str, _layer("For rnn: tanh or relu.", "NAME")] = "tanh",
    model_arg: Annotated[
        list[str] | None,
        _own("Argument for the factory. Repeatable.", "--model-arg", metavar="KEY=VALUE"),
    ] = None,
    hf: Annotated[
        str | None,
        _own(
            "A config.json of a transformers causal LM, or its folder: its weights if it has them, "
            "random ones otherwise.",
            metavar="PATH",
        ),
    ] = None,
    input: Annotated[
        str, _own("auto, floats or tokens: what the module takes.", metavar="KIND")
    ] = "auto",
    d_in: Annotated[str | None, _own("Input width. Default: found by trying.", metavar="N")] = None,
    vocab: Annotated[
        str | None, _own("Token ids are below this. Default: the embedding's.", metavar="N")
    ] = None,
    layout: Annotated[
        str, _own("Order of batch, time and width: btd, tbd or bdt.", metavar="NAME")
    ] = "btd",
    pick: Annotated[
        str | None, _own("Which output to take if several have a time axis.", metavar="PATH")
    ] = None,
    train_mode: Annotated[bool, _own("Leave the module in train mode.", "--train-mode")] = False,
) -> "Diagnosis":
    """How much gradient of a loss at the last step reaches each earlier step."""
    from seqdiag.diagnostics.gradflow import GradflowSpec
    from seqdiag.diagnostics.gradflow import gradflow as diagnose

    return diagnose(
        GradflowSpec(
            arch=parse_optional("--arch", parse_names, arch),
            model=model,
            model_arg=tuple(model_arg or ()),
            hf=hf,
            seq_len=parse("--seq-len", parse_count, seq_len),
            hidden=parse("--hidden", parse_count, hidden),
            batch=parse_optional("--batch", parse_count, batch),
            by="jacobian" if jacobian else choose("--by", by, VIEWS),
            steps_back=parse_optional("--steps-back", _lags, steps_back),
            lengths=parse_optional("--lengths", parse_counts, lengths),
            horizon_ratio=parse("--horizon-ratio", parse_float, horizon_ratio),
            seed=parse("--seed", _seed, seed),
            seeds=parse("--seeds", parse_count, seeds),
            dtype=dtype,
            device=device,
            multiplier=parse("--multiplier", parse_floats, multiplier),
            forget_bias=parse_optional("--forget-bias", parse_float, forget_bias),
            init=choose("--init", init, ("default", "orthogonal", "identity")),
            nonlinearity=choose("--nonlinearity", nonlinearity, ("tanh", "relu")),
            input=choose("--input", input, ("auto", "floats", "tokens")),
            d_in=parse_optional("--d-in", parse_count, d_in),
            vocab=parse_optional("--vocab", parse_count, vocab),
            layout=choose("--layout", layout, ("btd", "tbd", "bdt")),
            pick=pick,
            train_mode=train_mode,
            depth=parse_optional("--depth", parse_count, depth),
            norm=choose("--norm", norm, NORMS),
            norm_type=choose("--norm-type", norm_type, NORM_TYPES),
            pattern=pattern,
            reduce=choose("--reduce", reduce, ("sum", "random")),
            after_steps=parse("--after-steps", _lag, after_steps),
            lr=parse("--lr", parse_float, lr),
            d_k=parse("--d-k", parse_counts, d_k),
        )
    )


VIEWS = ("time", "summary", "layer", "cell", "logits", "jacobian")
NORMS = ("pre", "post", "peri", "deepnorm")
NORM_TYPES = ("layer", "rms")


def _lag(text: str) -> int:
    return parse_count(text, minimum=0)


def _lags(text: str) -> tuple[int, ...]:
    return parse_counts(text, minimum=0)


def _seed(text: str) -> int:
    return parse_count(text, minimum=0)
