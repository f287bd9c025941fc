"""`seqdiag gradflow`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated

import typer

from seqdiag.cli import subject
from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.units import parse_count, parse_counts, parse_float, parse_floats

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import gradflow_listing

    return gradflow_listing()


@command(_listing)
def gradflow(
    arch: Annotated[
        str | None,
        typer.Option(
            help="Layers and stacks to probe, see --list. Default: rnn,lstm,gru.", metavar="LIST"
        ),
    ] = None,
    model: subject.Model = None,
    seq_len: Annotated[str, typer.Option(help="Steps in the sequence.", metavar="N")] = "60",
    hidden: subject.Hidden = "32",
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
            help="Of the sequences of a padded batch: each is measured from its own last step.",
            metavar="LIST",
        ),
    ] = None,
    horizon_ratio: Annotated[
        str, typer.Option(help="What counts as reaching, for horizon_steps.", metavar="X")
    ] = "1e-3",
    seed: subject.Seed = "0",
    seeds: Annotated[
        str,
        typer.Option(help="How many seeds, from --seed on; summary shows the spread.", metavar="N"),
    ] = "1",
    dtype: Annotated[
        str, typer.Option(help="float64, float32, float16 or bfloat16.", metavar="NAME")
    ] = "float64",
    device: subject.Device = "auto",
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
    depth: subject.Depth = None,
    norm: subject.Norm = None,
    norm_type: subject.NormType = None,
    pattern: subject.Pattern = None,
    attn_impl: subject.AttnImpl = None,
    multiplier: Annotated[
        str, subject.layer_option("For linear: a of h_t = a h_{t-1} + x_t.", "LIST")
    ] = "0.9,0.99,1.0,1.1",
    forget_bias: Annotated[
        str | None,
        subject.layer_option("For lstm: the effective forget bias (PyTorch adds two).", "X"),
    ] = None,
    init: Annotated[
        str,
        subject.layer_option(
            "Of recurrent weights: default, orthogonal, or identity with zero biases.", "NAME"
        ),
    ] = "default",
    nonlinearity: Annotated[str, subject.layer_option("For rnn: tanh or relu.", "NAME")] = "tanh",
    model_arg: subject.ModelArg = None,
    hf: subject.Hf = None,
    input: subject.Input = "auto",
    d_in: subject.DIn = None,
    vocab: subject.Vocab = None,
    layout: subject.Layout = "btd",
    pick: subject.Pick = None,
    train_mode: subject.TrainMode = False,
) -> "Diagnosis":
    """How much gradient of a loss at the last step reaches each earlier step."""
    fields = subject.subject_fields(locals())
    from seqdiag.diagnostics.gradflow import GradflowSpec
    from seqdiag.diagnostics.gradflow import gradflow as diagnose

    return diagnose(
        GradflowSpec(
            **fields,
            seq_len=parse("--seq-len", parse_count, seq_len),
            batch=parse_optional("--batch", parse_count, batch),
            by="jacobian" if jacobian else choose("--by", by, VIEWS),
            steps_back=parse_optional("--steps-back", _lags, steps_back),
            lengths=parse_optional("--lengths", parse_counts, lengths),
            horizon_ratio=parse("--horizon-ratio", parse_float, horizon_ratio),
            seeds=parse("--seeds", parse_count, seeds),
            dtype=dtype,
            multiplier=parse("--multiplier", parse_floats, multiplier),
            forget_bias=parse_optional("--forget-bias", parse_float, forget_bias),
            init=choose("--init", init, ("default", "orthogonal", "identity")),
            nonlinearity=choose("--nonlinearity", nonlinearity, ("tanh", "relu")),
            reduce=choose("--reduce", reduce, ("sum", "random")),
            after_steps=parse("--after-steps", _lag, after_steps),
            lr=parse("--lr", parse_float, lr),
            d_k=parse("--d-k", parse_counts, d_k),
        )
    )


VIEWS = ("time", "summary", "layer", "cell", "logits", "jacobian")


def _lag(text: str) -> int:
    return parse_count(text, minimum=0)


def _lags(text: str) -> tuple[int, ...]:
    return parse_counts(text, minimum=0)
