"""`seqdiag kvcache`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.cli.subject import DIn, Hf, Input, Layout, Model, ModelArg, Vocab, own_option
from seqdiag.units import (
    parse_count,
    parse_counts,
    parse_names,
    parse_rate,
    parse_share,
    parse_size,
)

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import kvcache_listing

    return kvcache_listing()


def _own(help: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="A model of your own"
    )
    return option


def _engine(help: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="Of an engine"
    )
    return option


def _planning(help: str, metavar: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="Planning"
    )
    return option


def _parse_weights(text: str) -> "int | Literal['auto']":
    return "auto" if text == "auto" else parse_size(text)


@command(_listing)
def kvcache(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A preset (see --list), a config.json, its folder, a .gguf, or a TOML "
            "spec. "
            "None: gqa-32l and mamba-32l.",
        ),
    ] = None,
    ctx: Annotated[
        str, typer.Option(help="Contexts in tokens; k = 1024.", metavar="LIST")
    ] = "1k,8k,32k,128k,1M",
    batch: Annotated[str, typer.Option(help="Sequences held at once.", metavar="N")] = "1",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of keys and values: float32, float16, bfloat16, fp8, fp8_ds_mla, int8, nvfp4, "
            "q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi-4 or kivi-2. Default: the engine's or the "
            "model's.",
            metavar="NAME",
        ),
    ] = None,
    k_dtype: Annotated[
        str | None, typer.Option(help="Of keys and latents alone.", metavar="NAME")
    ] = None,
    v_dtype: Annotated[str | None, typer.Option(help="Of values alone.", metavar="NAME")] = None,
    conv_dtype: Annotated[
        str | None,
        typer.Option(help="Of convolution states. Default: as --engine does.", metavar="NAME"),
    ] = None,
    state_dtype: Annotated[
        str | None,
        typer.Option(
            help="Of recurrent states. Default: as --engine does; ideal is float32 unless the "
            "spec says otherwise.",
            metavar="NAME",
        ),
    ] = None,
    kv_group: Annotated[
        str | None,
        typer.Option(help="kivi-2, kivi-4: elements that share a scale. Default: 32.", metavar="N"),
    ] = None,
    kv_residual: Annotated[
        str | None,
        typer.Option(
            help="kivi-2, kivi-4: recent tokens kept in 16 bits. Default: 128.", metavar="N"
        ),
    ] = None,
    enc_len: Annotated[
        str | None,
        typer.Option(
            help="Encoder tokens of encoder-decoder models. Default: the config's most.",
            metavar="N",
        ),
    ] = None,
    assume: Annotated[
        str | None,
        typer.Option(
            help="Read a config of unknown model_type as plain attention: attention.",
            metavar="KIND",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="Who allocates: ideal (the bare need), transformers, vllm, llama.cpp, sglang, "
            "whisper.cpp.",
            metavar="LIST",
        ),
    ] = "ideal",
    tp: Annotated[
        str | None, _engine("Ranks of tensor parallelism; bytes are of one rank. Default: 1.")
    ] = None,
    block_size: Annotated[str | None, _engine("vllm: tokens of a page. Default: 16.")] = None,
    max_batched_tokens: Annotated[
        str | None,
        _engine("vllm: tokens of a prefill step, which a window makes room for. Default: 8192."),
    ] = None,
    spec_tokens: Annotated[
        str | None,
        _engine("vllm, llama.cpp: draft tokens of speculative decoding. Default: 0."),
    ] = None,
    parallel: Annotated[
        str | None, _engine("llama.cpp: slots, each of --ctx tokens. Default: --batch.")
    ] = None,
    ubatch: Annotated[
        str | None,
        _engine("llama.cpp: physical batch, which a window makes room for. Default: 512."),
    ] = None,
    unified: Annotated[
        bool,
        typer.Option(
            "--unified",
            help="llama.cpp: one buffer for all sequences.",
            rich_help_panel="Of an engine",
        ),
    ] = False,
    swa_full: Annotated[
        bool,
        typer.Option(
            "--swa-full",
            help="llama.cpp: windows keep the whole context.",
            rich_help_panel="Of an engine",
        ),
    ] = False,
    swa_dtype: Annotated[
        str | None,
        _engine("llama.cpp: type of layers with a window. Default: that of the others.", "NAME"),
    ] = None,
    mamba_cache_mode: Annotated[
        str | None,
        _engine(
            "vllm: states kept of a sequence: none (the last), align (two) or all (one a page). "
            "Default: none.",
            "MODE",
        ),
    ] = None,
    disable_hybrid_kv_cache_manager: Annotated[
        bool,
        typer.Option(
            "--disable-hybrid-kv-cache-manager",
            help="vllm: windows keep the whole context.",
            rich_help_panel="Of an engine",
        ),
    ] = False,
    mla: Annotated[
        str | None,
        _engine(
            "llama.cpp: what it keeps of a latent: latent, latent-and-value (no flash attention) "
            "or expanded (a GGUF without MLA tensors). Default: latent.",
            "FORM",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        _planning("Of the device: gives the longest context and the most sequences.", "SIZE"),
    ] = None,
    weights: Annotated[
        str | None,
        _planning(
            "Of the weights on the device; auto: of the model's files, else by counting "
            "parameters.",
            "SIZE",
        ),
    ] = None,
    reserve: Annotated[
        str | None, _planning("Share of --memory left alone. Default: 10%.", "PERCENT")
    ] = None,
    bandwidth: Annotated[
        str | None,
        _planning("Gives the least time of a decode step, such as 3.35TB/s.", "RATE"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Give the context at which each MODEL reaches this one's bytes. "
            "Default: mamba-32l if it is one of them.",
            metavar="MODEL",
        ),
    ] = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="A row per layer.")] = False,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve", help="The size in closed form: constant and slope, and where they change."
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show the formula with the numbers and the fields read."),
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Allocate the tensors and count (needs torch).")
    ] = False,
    device: Annotated[
        str,
        typer.Option(help="Where --measure allocates: auto, cpu, cuda, cuda:N.", metavar="NAME"),
    ] = "auto",
    limit: Annotated[
        str | None,
        typer.Option(
            help="Most that --measure allocates. Default: 2GiB on the CPU.", metavar="SIZE"
        ),
    ] = None,
    layers: Annotated[str | None, _own("Layers.")] = None,
    kv_heads: Annotated[str | None, _own("Key/value heads.")] = None,
    head_dim: Annotated[str | None, _own("Dimension of a key head.")] = None,
    v_head_dim: Annotated[
        str | None, _own("Dimension of a value head. Default: --head-dim.")
    ] = None,
    window: Annotated[str | None, _own("Sliding window of every layer, in tokens.")] = None,
    model: Model = None,
    model_arg: ModelArg = None,
    hf: Hf = None,
    input: Input = "auto",
    d_in: DIn = None,
    vocab: Vocab = None,
    layout: Layout = "btd",
    lengths: Annotated[
        str,
        own_option(
            "Tokens of the runs that measure it: to see a window, one below it and two beyond.",
            metavar="LIST",
        ),
    ] = "16,24,40",
) -> "Diagnosis":
    """Bytes a model keeps between decode steps: KV cache against a fixed recurrent state."""
    from seqdiag.diagnostics.kvcache import KvcacheSpec
    from seqdiag.diagnostics.kvcache import kvcache as diagnose

    return diagnose(
        KvcacheSpec(
            models=tuple(models or ()),
            ctx=parse("--ctx", parse_counts, ctx),
            batch=parse("--batch", parse_count, batch),
            engine=parse("--engine", parse_names, engine),
            dtype=dtype,
            k_dtype=k_dtype,
            v_dtype=v_dtype,
            conv_dtype=conv_dtype,
            state_dtype=state_dtype,
            kv_group=parse_optional("--kv-group", parse_count, kv_group),
            kv_residual=parse_optional("--kv-residual", parse_count, kv_residual),
            enc_len=parse_optional("--enc-len", parse_count, enc_len),
            assume=choose("--assume", assume, ("attention",)),
            tp=parse_optional("--tp", parse_count, tp),
            block_size=parse_optional("--block-size", parse_count, block_size),
            max_batched_tokens=parse_optional(
                "--max-batched-tokens", parse_count, max_batched_tokens
            ),
            spec_tokens=parse_optional("--spec-tokens", parse_count, spec_tokens),
            parallel=parse_optional("--parallel", parse_count, parallel),
            ubatch=parse_optional("--ubatch", parse_count, ubatch),
            unified=unified,
            swa_full=swa_full,
            swa_dtype=swa_dtype,
            mamba_cache_mode=choose(
                "--mamba-cache-mode", mamba_cache_mode, ("none", "align", "all")
            ),
            disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
            mla=choose("--mla", mla, ("latent", "latent-and-value", "expanded")),
            layers=parse_optional("--layers", parse_count, layers),
            kv_heads=parse_optional("--kv-heads", parse_count, kv_heads),
            head_dim=parse_optional("--head-dim", parse_count, head_dim),
            v_head_dim=parse_optional("--v-head-dim", parse_count, v_head_dim),
            window=parse_optional("--window", parse_count, window),
            model=model,
            model_arg=tuple(model_arg or ()),
            hf=hf,
            input=choose("--input", input, ("auto", "floats", "tokens", "samples")),
            d_in=parse_optional("--d-in", parse_count, d_in),
            vocab=parse_optional("--vocab", parse_count, vocab),
            layout=choose("--layout", layout, ("btd", "tbd", "bdt")),
            lengths=parse("--lengths", parse_counts, lengths),
            memory=parse_optional("--memory", parse_size, memory),
            weights=parse_optional("--weights", _parse_weights, weights),
            reserve=parse_optional("--reserve", parse_share, reserve),
            bandwidth=parse_optional("--bandwidth", parse_rate, bandwidth),
            against=against,
            per_layer=per_layer,
            curve=curve,
            explain=explain,
            measure=measure,
            device=device,
            limit=parse_optional("--limit", parse_size, limit),
        )
    )
