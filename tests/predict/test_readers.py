"""Configs against what `transformers` really allocates, published sizes, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqdiag.config import config_names
from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.engines import Ideal
from seqdiag.predict.kv_cache.layout import Attention, Layer, Layout, Part, dtypes_for
from seqdiag.predict.kv_cache.readers import read_config
from seqdiag.predict.kv_cache.readers.table import READERS
from seqdiag.predict.kv_cache.subjects import load_subject

DATA = Path(__file__).parent.parent / "data"
MEASURED = json.loads((DATA / "transformers_cache.json").read_text())
MIB = 2**20


def shapes(part: Part, tokens: int) -> list[tuple[int, ...]]:
    """Returns what transformers 5.24 holds for a part.

    Its conventions: a window of W leaves W-1 tokens after a step, a convolution keeps K columns
    where K-1 are needed, and a latent has a head axis of one.
    """
    if isinstance(part, Attention) and part.window is not None:
        held = min(tokens, part.window - 1)
        return [(part.kv_heads, held, part.head_dim), (part.kv_heads, held, part.v_head_dim)]
    kept = [tensor.shape for tensor in part.tensors(tokens)]
    if part.kind == "conv":
        return [(channels, columns + 1) for channels, columns in kept]
    return [(1, *shape) for shape in kept] if part.kind == "latent" else kept


@pytest.mark.parametrize("source", ["given", "config"])
@pytest.mark.parametrize("name", MEASURED["cases"])
def test_layout_is_what_transformers_holds(name: str, source: str) -> None:
    case = MEASURED["cases"][name]
    config = {"model_type": case["config"]["model_type"], **case[source]}
    layout = read_config(name, config, name)
    assert len(layout.layers) == len(case["layers"])
    for layer, measured in zip(layout.layers, case["layers"], strict=True):
        held = [(tensor["shape"][1:], tensor["dtype"]) for t in measured.values() for tensor in t]
        dtypes = dtypes_for(layout, "bfloat16", None)
        expected = [
            (list(shape), dtypes.of(part.tensors(1)[0].role))
            for part in layer.parts
            for shape in shapes(part, MEASURED["tokens"])
        ]
        assert expected == held


def test_every_recorded_type_is_known() -> None:
    types = {case["config"]["model_type"] for case in MEASURED["cases"].values()}
    assert types <= set(READERS)


# Bytes a token in the limit, MiB of keys and values at 32k tokens, MiB of state: bf16 cache and
# convolution (K-1 columns), float32 state. Computed by hand from the fields named in each preset's
# source, and for the larger families as logged by llama.cpp and vLLM.
PUBLISHED = {
    "llama-2-7b": (524_288, 16_384, 0),
    "llama-2-13b": (819_200, 25_600, 0),
    "llama-2-70b": (327_680, 10_240, 0),
    "llama-3.1-8b": (131_072, 4_096, 0),
    "llama-3.1-70b": (327_680, 10_240, 0),
    "llama-3.1-405b": (516_096, 16_128, 0),
    "llama-3.2-1b": (32_768, 1_024, 0),
    "llama-3.2-3b": (114_688, 3_584, 0),
    "mistral-7b-v0.3": (131_072, 4_096, 0),
    "mixtral-8x7b": (131_072, 4_096, 0),
    "mixtral-8x22b": (229_376, 7_168, 0),
    "qwen2-0.5b": (12_288, 384, 0),
    "qwen2-1.5b": (28_672, 896, 0),
    "qwen2-7b": (57_344, 1_792, 0),
    "qwen3-0.6b": (114_688, 3_584, 0),
    "qwen3-8b": (147_456, 4_608, 0),
    "qwen3-32b": (262_144, 8_192, 0),
    "qwen3-30b-a3b": (98_304, 3_072, 0),
    "qwen3-235b-a22b": (192_512, 6_016, 0),
    "deepseek-v3": (70_272, 2_196, 0),
    "deepseek-v2-lite": (31_104, 972, 0),
    "gpt-oss-20b": (24_576, 771, 0),
    "gpt-oss-120b": (36_864, 1_156.5, 0),
    "gemma-2-2b": (53_248, 1_872, 0),
    "gemma-2-9b": (172_032, 6_048, 0),
    "gemma-2-27b": (188_416, 6_624, 0),
    "gemma-3-1b": (4_096, 139, 0),
    "gemma-3-12b": (65_536, 2_368, 0),
    "gemma-3-27b": (81_920, 2_976, 0),
    "phi-3-mini-128k": (393_216, 12_288, 0),
    "jamba-v0.1": (16_384, 512, 15.31),
    "falcon-mamba-7b": (0, 0, 35.00),
    "mamba-codestral-7b": (0, 0, 259.75),
    "falcon-h1-1.5b": (24_576, 768, 72.49),
    "falcon-h1-7b": (45_056, 1_408, 132.90),
    "qwen3.5-27b": (65_536, 2_048, 146.81),
    "llama-4-scout": (49_152, 2_688, 0),
    "ministral-3-3b": (106_496, 3_328, 0),
    "mistral-small-4-119b": (23_040, 720, 0),
    "qwen3-1.7b": (114_688, 3_584, 0),
    "qwen3-coder-480b": (253_952, 7_936, 0),
    "qwen3.5-35b-a3b": (20_480, 640, 61.41),
    "qwen3.5-122b-a10b": (24_576, 768, 146.53),
    "qwen3.5-397b-a17b": (30_720, 960, 183.16),
    "qwen3-next-80b-a3b": (24_576, 768, 73.69),
    # Latents as in deepseek-v3, and 61 or 78 indexer keys of 128 in bf16.
    "deepseek-v3.2": (70_272 + 61 * 256, 2_196 + 488, 0),
    "glm-5": (89_856 + 78 * 256, 2_808 + 624, 0),
    "kimi-k2": (70_272, 2_196, 0),
    "glm-4-32b-0414": (62_464, 1_952, 0),
    "minimax-m2.5": (253_952, 7_936, 0),
    "gemma-4-26b-a4b": (20_480, 840, 0),
    "gemma-4-31b": (81_920, 3_360, 0),
    "gemma-4-e4b": (16_384, 532, 0),
    "olmo-2-32b": (262_144, 8_192, 0),
    "nemotron-3-nano-30b-a3b": (6_144, 192, 46.81),
    "nemotron-3-super-120b": (8_192, 256, 162.34),
    "nemotron-nano-9b-v2": (16_384, 512, 136.90),
    "nemotron-h-56b": (40_960, 1_280, 870.33),
    "lfm2-1.2b": (12_288, 384, 0.08),
    "gqa-32l": (131_072, 4_096, 0),
    "mamba-32l": (0, 0, 8),
}


@pytest.mark.parametrize("name", config_names("models"))
def test_presets(name: str) -> None:
    slope, kv_mib, state_mib = PUBLISHED[name]
    layout = load_subject(name)
    need = allocate(layout, 32768)
    assert need.kv_bytes == kv_mib * MIB
    assert round(need.state_bytes / MIB, 2) == pytest.approx(state_mib, abs=1e-9)
    far = 10**5
    assert allocate(layout, far + 1).kv_bytes - allocate(layout, far).kv_bytes == slope
    assert layout.source


def allocate(layout: Layout, tokens: int) -> Any:
    return Ideal().allocate(layout.parts(), tokens, 1, dtypes_for(layout, None, None))


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 40,
}


def test_what_is_read_and_assumed_is_remembered() -> None:
    layout = read_config("m", {**LLAMA, "torch_dtype": "float16"}, "m")
    assert layout.dtype == "float16"
    assert layout.assumed == {}
    assert layout.fields["num_attention_heads"] == 4
    wide = {**LLAMA, "num_attention_heads": 16, "hidden_size": 160}
    mistral = read_config("m", {**wide, "model_type": "mistral"}, "m")
    assert mistral.assumed == {
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "dtype": "bfloat16",
    }


def test_a_wrapper_is_unwrapped() -> None:
    config = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {**LLAMA}}
    layout = read_config("m", config, "m")
    assert len(layout.layers) == 2
    assert layout.dtype == "bfloat16"
    assert layout.assumed == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers = -3"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers = '32'"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers = 1.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"num_hidden_layers": 10**18}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": [4]}, "num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 2}, "hidden_size = 2 is not a whole number from 4 to 2^40"),
        ({"model_type": None}, "model_type"),
        ({"model_type": 3}, "model_type"),
        ({"model_type": "hyena"}, "unknown model_type 'hyena'"),
        ({"dtype": "int7"}, "dtype"),
        ({"layer_types": ["full_attention"]}, "lists 1 layers"),
        ({"layer_types": ["full_attention", "magic"]}, "layer_types"),
    ],
)
def test_a_wrong_config_names_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_config("m", {**LLAMA, **change}, "config.json")
    assert message in caught.value.message
    assert "config.json" in caught.value.message


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("llama", {"num_key_value_heads": 3}, "no multiple of num_key_value_heads 3"),
        ("llama", {"num_key_value_heads": 8}, "no multiple of num_key_value_heads 8"),
        ("llama", {"hidden_size": 42}, "no multiple of num_attention_heads"),
        ("jamba", {"num_key_value_heads": 2, "attn_layer_offset": 8}, "not below"),
        ("mamba2", {"num_heads": 3, "head_dim": 8}, "do not make the inner width 80"),
        ("falcon_h1", {"num_key_value_heads": 2, "mamba_d_ssm": 99}, "do not make the inner width"),
    ],
)
def test_fields_that_contradict_each_other(
    model_type: str, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_config("m", {**LLAMA, "model_type": model_type, **fields}, "config.json")


def test_expand_may_be_a_fraction() -> None:
    config = {"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 40, "expand": 1.5}
    assert allocate(read_config("m", config, "m"), 1).state_bytes == 60 * 3 * 2 + 60 * 16 * 4


def test_an_unknown_type_says_what_was_found() -> None:
    with pytest.raises(UsageError) as caught:
        read_config("m", {**LLAMA, "model_type": "hyena"}, "config.json")
    assert "hidden_size" in caught.value.message
    assert "TOML" in caught.value.hint


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_paths(tmp_path: Path) -> None:
    write(tmp_path / "config.json", json.dumps(LLAMA))
    by_file = load_subject(str(tmp_path / "config.json"))
    by_folder = load_subject(str(tmp_path))
    assert by_file.layers == by_folder.layers
    spec = write(
        tmp_path / "mine.toml",
        """
        dtype = "float16"
        [[layers]]
        count = 3
        parts = [
            {kind = "attention", kv_heads = 2, head_dim = 8, v_head_dim = 4, window = 16},
            {kind = "conv", channels = 5, columns = 3},
            {kind = "recurrent", shape = [5, 7]},
        ]
        [[layers]]
        parts = [{kind = "latent", rank = 6, rope_dim = 2}]
        """,
    )
    layout = load_subject(str(spec))
    assert len(layout.layers) == 4
    need = allocate(layout, 100)
    assert need.kv_bytes == 3 * 16 * 2 * 12 * 2 + 100 * 8 * 2
    assert need.state_bytes == 3 * (15 * 2 + 35 * 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", "not json"),
        ("c.json", "[1, 2]"),
        ("c.json", '"llama"'),
        ("c.json", '{"model_type": "llama", "num_hidden_layers": NaN}'),
        ("c.json", "[" * 100_000),
        ("c.toml", "= 3"),
        ("c.toml", "x = 3"),
        ("c.toml", "dtype = 'float16'"),
        ("c.toml", "layers = 3"),
        ("c.toml", "[[layers]]\ncount = 0\nparts = []"),
        ("c.toml", "[[layers]]\nparts = 3"),
        ("c.toml", "[[layers]]\nparts = [{kind = 'attention'}]"),
        ("c.toml", "[[layers]]\nparts = [{kind = 'magic'}]"),
        ("c.toml", "[[layers]]\nparts = [{kind = 'latent', rank = 1, rope_dim = 1, x = 1}]"),
        ("c.toml", "[[layers]]\nparts = [{kind = 'recurrent', shape = [0]}]"),
        ("c.toml", "[[layers]]\nwidth = 3\nparts = []"),
        ("c.toml", "dtype = 'f16'\n[[layers]]\nparts = []"),
        ("c.toml", "[[layers]]\ncount = 10000000\nparts = []"),
        ("c.toml", "[config]\nmodel_type = 'llama'\n[[layers]]\nparts = []"),
        ("c.toml", "x = " + "9" * 5000),
        ("c.json", '{"model_type": "llama", "num_hidden_layers": ' + "9" * 5000 + "}"),
    ],
)
def test_a_wrong_file_is_refused(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_subject(str(write(tmp_path / name, text)))
    assert str(tmp_path / name) in caught.value.message


@pytest.mark.parametrize("name", ["missing.json", "missing.toml", "missing/folder", "."])
def test_a_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="MODEL"):
        load_subject(str(tmp_path / name))


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        load_subject(str(path))


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load_subject("llama-3.1-8")
    assert "did you mean llama-3.1-8b?" in caught.value.hint


def test_of_two_spellings_the_class_s_own_wins_and_that_is_said() -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "hidden_size": 128}
    layout = read_config("m", config, "m")
    assert layout.layers[0].parts == (Attention(4, 16, 16),)
    assert layout.conflicts == ("n_embd = 64 wins over hidden_size = 128",)


def test_a_window_switched_on_without_a_size_is_the_class_s() -> None:
    config = {**LLAMA, "model_type": "qwen3_moe", "num_key_value_heads": 2}
    layout = read_config("m", {**config, "use_sliding_window": True}, "m")
    assert layout.layers[0].parts == (Attention(2, 10, 10, 4096),)
    assert layout.assumed["sliding_window"] == 4096


def test_an_unknown_type_is_plain_attention_only_if_the_user_says_so() -> None:
    config = {
        "model_type": "foonet",
        "n_layer": 12,
        "n_head": 16,
        "n_embd": 1024,
        "num_kv_heads": 4,
        "mamba_d_state": 16,
        "torch_dtype": "float16",
    }
    with pytest.raises(UsageError, match="unknown model_type 'foonet'"):
        read_config("m", config, "config.json")
    layout = read_config("m", config, "config.json", assume_attention=True)
    assert layout.layers == (Layer((Attention(4, 64, 64),)),) * 12
    assert layout.dtype == "float16"
    assert "read as plain attention" in layout.caution
    assert "the config also has mamba_d_state" in layout.caution
    nested = {"model_type": "wrapper", "text_config": config}
    assert read_config("m", nested, "w", assume_attention=True).layers == layout.layers
    with pytest.raises(UsageError, match="num_hidden_layers"):
        read_config("m", {"model_type": "foonet", "bar": 3}, "w", assume_attention=True)
