"""`seqdiag receptive-field`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated

import typer

from seqdiag.cli import subject
from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.units import parse_count, parse_float, parse_series

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import receptive_field_listing

    return receptive_field_listing()


def _chain(help: str, metavar: str = "LIST") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="A chain of convolutions"
    )
    return option


@command(_listing)
def receptive_field(
    kernel: Annotated[str | None, _chain("Kernel sizes, one or one a layer. Default: 2.")] = None,
    dilations: Annotated[str | None, _chain("Dilations. Default: 1,2,4,8, or 1.")] = None,
    strides: Annotated[str | None, _chain("Strides. Default: 1.")] = None,
    padding: Annotated[str, _chain("causal, same or none.", "NAME")] = "causal",
    convs: Annotated[
        str, _chain("Convolutions at each dilation; 2 in the blocks of a TCN.", "N")
    ] = "1",
    stacks: Annotated[str, _chain("How often all of them follow one another.", "N")] = "1",
    arch: Annotated[
        str | None,
        typer.Option(help="Layers, stacks and encoders to probe, see --list.", metavar="LIST"),
    ] = None,
    model: subject.Model = None,
    seq_len: Annotated[str, typer.Option(help="Steps in the sequence.", metavar="N")] = "64",
    max_seq_len: Annotated[
        str,
        typer.Option(
            help="The sequence is doubled up to this if it is shorter than the field.", metavar="N"
        ),
    ] = "16k",
    position: Annotated[
        str | None,
        typer.Option(
            help="Which output: last, middle, all or a number. Default: last, or middle if it "
            "looks ahead.",
            metavar="P",
        ),
    ] = None,
    needs: Annotated[
        str | None, typer.Option(help="Exit 1 if fewer steps are seen.", metavar="N")
    ] = None,
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="From the structure alone; measure nothing.")
    ] = False,
    fail_on_leak: Annotated[
        bool, typer.Option("--fail-on-leak", help="Exit 1 unless every output is causal.")
    ] = False,
    sample_rate: Annotated[
        str | None, typer.Option(help="Steps per second, for latency_ms.", metavar="HZ")
    ] = None,
    effective: Annotated[
        bool,
        typer.Option("--effective", help="Also the runs that hold 50, 90, 99 % of the gradient."),
    ] = False,
    streaming: Annotated[
        bool,
        typer.Option("--streaming", help="Also whether pieces give the same as the whole."),
    ] = False,
    leaks_csv: Annotated[
        str | None,
        typer.Option(help="Write every pair of output and input that responds.", metavar="FILE"),
    ] = None,
    align: Annotated[
        str | None,
        typer.Option(
            help="Where the length changes: whether outputs and inputs belong together from the "
            "start or from the end. Default: whichever is worse.",
            metavar="NAME",
        ),
    ] = None,
    hidden: subject.Hidden = "32",
    seed: subject.Seed = "0",
    dtype: Annotated[str, typer.Option(help="float64 or float32.", metavar="NAME")] = "float64",
    device: subject.Device = "auto",
    depth: subject.Depth = None,
    norm: subject.Norm = None,
    norm_type: subject.NormType = None,
    pattern: subject.Pattern = None,
    attn_impl: subject.AttnImpl = None,
    model_arg: subject.ModelArg = None,
    hf: subject.Hf = None,
    input: subject.Input = "auto",
    d_in: subject.DIn = None,
    vocab: subject.Vocab = None,
    layout: subject.Layout = "btd",
    pick: subject.Pick = None,
    train_mode: subject.TrainMode = False,
    seed_forward: Annotated[
        bool,
        subject.own_option("Put the random stream at one place for every pass.", "--seed-forward"),
    ] = False,
) -> "Diagnosis":
    """What each output can see, predicted and measured, and whether the future leaks in."""
    fields = subject.subject_fields(locals())
    from seqdiag.diagnostics.receptive_field import ReceptiveFieldSpec
    from seqdiag.diagnostics.receptive_field import receptive_field as diagnose

    return diagnose(
        ReceptiveFieldSpec(
            **fields,
            kernel=parse_optional("--kernel", parse_series, kernel),
            dilations=parse_optional("--dilations", parse_series, dilations),
            strides=parse_optional("--strides", parse_series, strides),
            padding=choose("--padding", padding, ("causal", "same", "none")),
            convs=parse("--convs", parse_count, convs),
            stacks=parse("--stacks", parse_count, stacks),
            seq_len=parse("--seq-len", parse_count, seq_len),
            max_seq_len=parse("--max-seq-len", parse_count, max_seq_len),
            position=position,
            needs=parse_optional("--needs", parse_count, needs),
            predict_only=predict_only,
            fail_on_leak=fail_on_leak,
            sample_rate=parse_optional("--sample-rate", parse_float, sample_rate),
            effective=effective,
            streaming=streaming,
            leaks_csv=leaks_csv,
            align=choose("--align", align, ("start", "end")),
            dtype=dtype,
            seed_forward=seed_forward,
        )
    )
