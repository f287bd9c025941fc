"""Our layers against those of `transformers` with the same weights; skipped where it is absent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqdiag.models.block import BlockStyle
from seqdiag.models.mamba import Mamba
from seqdiag.models.mamba2 import Mamba2
from seqdiag.models.positions import Rope
from seqdiag.models.stack import Stack, StackSpec

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, STEPS = 32, 21


def built(model_type: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[model_type](
        vocab_size=50, hidden_size=WIDTH, num_hidden_layers=2, **settings
    )
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name or name.endswith(".D"):
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ((ours - theirs).abs().max() / theirs.abs().max()).item() <= 1e-5


def tokens() -> Tensor:
    return torch.randint(50, (2, STEPS), generator=torch.Generator().manual_seed(1))


def copy_into(target: nn.Module, **weights: Tensor) -> None:
    """Sets the parameters of `target`; every one must be named, and fit."""
    parameters = dict(target.named_parameters())
    assert set(weights) == {name.replace(".", "__") for name in parameters}
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name.replace("__", ".")].copy_(value)


def step_through(layer: Any, x: Tensor) -> Tensor:
    state, outputs = layer.init_state(x.shape[0]), []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1)


@torch.no_grad()
def test_mamba() -> None:
    theirs = built("mamba", state_size=5, conv_kernel=4, time_step_rank=3).backbone.layers[0].mixer
    ours = Mamba(WIDTH, d_state=5, dt_rank=3).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, STEPS, WIDTH)
    close(ours(x), theirs(x))
    close(step_through(ours, x), theirs(x))


@torch.no_grad()
def test_mamba2() -> None:
    model = built(
        "mamba2", state_size=5, num_heads=8, head_dim=8, n_groups=2, chunk_size=8, conv_kernel=4
    )
    theirs = model.backbone.layers[0].mixer
    ours = Mamba2(WIDTH, d_state=5, head_dim=8, groups=2).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, STEPS, WIDTH)
    close(ours(x), theirs(x))
    close(step_through(ours, x), theirs(x))


def attention_weights(theirs: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    return {f"{prefix}{ours}__weight": getattr(theirs, name).weight for ours, name in names.items()}


@torch.no_grad()
def test_llama() -> None:
    model = built(
        "llama", num_attention_heads=4, num_key_value_heads=2, head_dim=6, intermediate_size=40
    ).model
    style = BlockStyle("pre", "rms", "swiglu", 40 / WIDTH, eps=1e-6)
    options = {"attention": {"heads": 4, "kv_heads": 2, "head_dim": 6}}
    ours = Stack(WIDTH, StackSpec("aa", style=style, positions="rope", options=options)).eval()
    weights = {"norm__weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        block = f"blocks__{i}__"
        weights |= attention_weights(layer.self_attn, f"{block}mixer__")
        for name in ("up_proj", "gate_proj", "down_proj"):
            weights[f"{block}mlp__{name}__weight"] = getattr(layer.mlp, name).weight
        weights[f"{block}norms__0__weight"] = layer.input_layernorm.weight
        weights[f"{block}norms__1__weight"] = layer.post_attention_layernorm.weight
    copy_into(ours, **weights)
    ids = tokens()
    x = model.embed_tokens(ids)
    expected = model(ids).last_hidden_state
    close(ours(x), expected)
    close(step_through(ours, x), expected)


@torch.no_grad()
def test_gpt2() -> None:
    model = built("gpt2", n_head=4, n_positions=64, activation_function="gelu").transformer
    style = BlockStyle("pre", "layer", "gelu", 4.0, eps=1e-5)
    options = {"attention": {"heads": 4, "bias": True}}
    spec = StackSpec("aa", style=style, positions="learned", max_len=64, options=options)
    ours = Stack(WIDTH, spec).eval()
    weights = {"positions": model.wpe.weight}
    weights |= {f"norm__{p}": getattr(model.ln_f, p) for p in ("weight", "bias")}
    for i, layer in enumerate(model.h):
        block = f"blocks__{i}__"
        for index, norm in enumerate((layer.ln_1, layer.ln_2)):
            weights |= {f"{block}norms__{index}__{p}": getattr(norm, p) for p in ("weight", "bias")}
        qkv = zip(
            ("q", "k", "v"),
            layer.attn.c_attn.weight.chunk(3, 1),
            layer.attn.c_attn.bias.chunk(3),
            strict=True,
        )
        for name, weight, bias in qkv:
            weights[f"{block}mixer__{name}_proj__weight"] = weight.t()
            weights[f"{block}mixer__{name}_proj__bias"] = bias
        for ours_name, theirs in (
            ("mixer__out_proj", layer.attn.c_proj),
            ("mlp__up_proj", layer.mlp.c_fc),
            ("mlp__down_proj", layer.mlp.c_proj),
        ):
            weights[f"{block}{ours_name}__weight"] = theirs.weight.t()
            weights[f"{block}{ours_name}__bias"] = theirs.bias
    copy_into(ours, **weights)
    ids = tokens()
    x = model.wte(ids)
    expected = model(ids).last_hidden_state
    close(ours(x), expected)
    close(step_through(ours, x), expected)


@torch.no_grad()
def test_gemma3() -> None:
    model = built(
        "gemma3_text",
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=40,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=10,
    ).model
    bases = {name: v["rope_theta"] for name, v in model.config.rope_parameters.items()}
    style = BlockStyle("peri", "rms", "geglu", 40 / WIDTH, eps=1e-6)
    shared = {"heads": 4, "kv_heads": 2, "head_dim": 8, "qk_norm": True, "scale": 10**-0.5}
    options = {
        "sliding-attention": {**shared, "window": 6, "rope": Rope(8, bases["sliding_attention"])},
        "attention": {**shared, "rope": Rope(8, bases["full_attention"])},
    }
    ours = Stack(WIDTH, StackSpec("wa", style=style, options=options)).eval()
    weights = {"norm__weight": 1 + model.norm.weight}  # Gemma stores the norm's weight less one
    for i, layer in enumerate(model.layers):
        block = f"blocks__{i}__"
        weights |= attention_weights(layer.self_attn, f"{block}mixer__")
        for name in ("q_norm", "k_norm"):
            weights[f"{block}mixer__{name}__weight"] = 1 + getattr(layer.self_attn, name).weight
        for name in ("up_proj", "gate_proj", "down_proj"):
            weights[f"{block}mlp__{name}__weight"] = getattr(layer.mlp, name).weight
        for target, norm in (
            ("norms__0", layer.input_layernorm),
            ("out_norms__0", layer.post_attention_layernorm),
            ("norms__1", layer.pre_feedforward_layernorm),
            ("out_norms__1", layer.post_feedforward_layernorm),
        ):
            weights[f"{block}{target}__weight"] = 1 + norm.weight
    copy_into(ours, **weights)
    ids = tokens()
    x = model.embed_tokens(ids)
    expected = model(ids).last_hidden_state
    close(ours(x), expected)
    close(step_through(ours, x), expected)


@torch.no_grad()
def test_yarn() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    )
    frequencies, scale = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    ours = Rope(64, scaling="yarn", factor=4.0, original=1024)
    torch.testing.assert_close(ours.frequencies().float(), frequencies, rtol=1e-5, atol=0)
    assert ours.attention_scale() == pytest.approx(scale)


def test_hf_config_and_folder(tmp_path: Any) -> None:
    """Random weights for a config alone, the folder's own where it has them."""
    import seqdiag

    model = built("llama", num_attention_heads=4, intermediate_size=40)
    model.config.save_pretrained(tmp_path / "bare")
    model.save_pretrained(tmp_path / "whole")
    bare = seqdiag.gradflow(hf=str(tmp_path / "bare" / "config.json"), seq_len=9)
    whole = seqdiag.gradflow(hf=str(tmp_path / "whole"), seq_len=9)
    given = seqdiag.gradflow(model, seq_len=9)
    norms = [[r["grad_norm"] for r in result.records] for result in (bare, whole, given)]
    assert norms[1] == pytest.approx(norms[2], rel=1e-5)
    assert norms[0] != pytest.approx(norms[1], rel=1e-2)
    assert len(seqdiag.gradflow(hf=str(tmp_path / "bare"), by="layer", seq_len=9).records) == 2
