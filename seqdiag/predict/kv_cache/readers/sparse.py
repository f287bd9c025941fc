"""Models that attend to chosen or compressed tokens, each in a way of its own."""

from __future__ import annotations

import dataclasses

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, Layer, Part
from seqdiag.predict.kv_cache.readers.attention import KINDS, layer_count, read_heads
from seqdiag.predict.kv_cache.readers.latent import indexed_part, latent_part
from seqdiag.predict.kv_cache.readers.linear import delta_net_parts, kda_parts
from seqdiag.predict.kv_cache.special import (
    CompressedAttention,
    HiddenStates,
    IndexedAttention,
    IndexedLatent,
    IndexKeys,
    WindowedLatent,
)

_CSA, _HCA = "compressed_sparse_attention", "heavily_compressed_attention"
_BY_RATIO = {0: "sliding", 4: _CSA, 128: _HCA}


def read_deepseek_v4(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V4: a window in every layer, beside entries of 4 or of 128 tokens."""
    head_dim, window = fields.integer("head_dim"), fields.integer("sliding_window")
    rates = {_CSA: 4, _HCA: 128}
    given = fields.raw("compress_rates")
    if isinstance(given, dict):
        inner = Fields(given, f"{fields.where}: compress_rates")
        rates = {name: inner.integer(name, default=rate) for name, rate in rates.items()}
    else:
        rates = {
            _CSA: fields.integer("compress_rate_csa", default=4),
            _HCA: fields.integer("compress_rate_hca", default=128),
        }
    by_kind: dict[str, Part] = {
        "sliding": HiddenStates(head_dim, window),
        _HCA: CompressedAttention(head_dim, window, rates[_HCA]),
        _CSA: CompressedAttention(
            head_dim,
            window,
            rates[_CSA],
            fields.integer("index_head_dim"),
            fields.integer("index_topk"),
        ),
    }
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, {"sliding_attention": "sliding", _CSA: _CSA, _HCA: _HCA})
    if kinds is None and fields.has("compress_ratios"):
        ratios = fields.integers("compress_ratios", minimum=0)[:layers]
        if len(ratios) < layers or not set(ratios) <= set(_BY_RATIO):
            raise fields.inconsistent(f"compress_ratios does not list {layers} of 0, 4 and 128")
        kinds = [_BY_RATIO[ratio] for ratio in ratios]
    if kinds is None:
        fields.assumed["layer_types"] = f"{_HCA} and, from the fourth on in turn, {_CSA}"
        kinds = [_CSA if i > 2 and i % 2 else _HCA for i in range(layers)]
    return tuple(Layer((by_kind[kind],)) for kind in kinds)


def read_dots3(fields: Fields) -> tuple[Layer, ...]:
    """dots.note: indexed latents, and windows over latents of another rank."""
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None:
        fields.assumed["layer_types"] = "all in the first two layers and every fourth, else window"
        kinds = ["full" if i < 2 or i % 4 == 1 else "sliding" for i in range(layers)]
    full: Part = IndexedLatent(
        fields.integer("kv_lora_rank"),
        fields.integer("qk_rope_head_dim"),
        fields.integer("index_head_dim"),
        fields.integer("index_topk"),
        wide=True,
    )
    rank, rope = _sliding_latent(fields, kinds)
    name = fields.either("sliding_window", "sliding_window_size") or "sliding_window"
    local = WindowedLatent(rank, rope, fields.integer(name))
    return tuple(Layer((local if kind == "sliding" else full,)) for kind in kinds)


def _sliding_latent(fields: Fields, kinds: list[str]) -> tuple[int, int]:
    """Returns rank and rotary width of window layers: of the published fields, else per layer."""
    own = fields.raw("per_layer_config")
    if isinstance(own, dict) and "sliding" in kinds:
        at = kinds.index("sliding")
        table = next((v for k, v in own.items() if str(k).lstrip("0") in (str(at), "")), None)
        if isinstance(table, dict):
            inner = Fields(table, f"{fields.where}: per_layer_config")
            # What the layer's own table leaves out is the model's.
            owner = inner if inner.has("qk_rope_head_dim") else fields
            return inner.integer("kv_lora_rank"), owner.integer("qk_rope_head_dim")
    rank = fields.integer("swa_kv_lora_rank", default=1024)
    if fields.has("swa_qk_rope_head_dim"):
        return rank, fields.integer("swa_qk_rope_head_dim")
    head = fields.integer("swa_head_dim", default=256)
    rope = head - fields.integer("swa_qk_nope_head_dim", default=192)
    if rope < 0:
        raise fields.inconsistent(f"swa_head_dim {head} is below swa_qk_nope_head_dim")
    return rank, rope


def read_mistral_large4(fields: Fields) -> tuple[Layer, ...]:
    """Mistral Large 4: indexed latents, some without a rotary key, some reused by later layers."""
    part, bare, layers = *indexed_part(fields), layer_count(fields)
    rotary = _per_layer(fields, "no_rope_layers", layers)
    if rotary is None:
        every = fields.integer("no_rope_layer_interval", default=4)
        rotary = [int((i + 1) % every != 0) for i in range(layers)]
    sources = _per_layer(fields, "kv_source_layers", layers) or list(range(layers))
    shared = indexer_shared(fields, layers)
    built = []
    for i in range(layers):
        rope = part.rope_dim if rotary[i] else 0
        if sources[i] == i:
            own = bare if shared[i] else part
            built.append(Layer((dataclasses.replace(own, rope_dim=rope),)))
        else:  # the latent of an earlier layer is read, only the indexer's key is its own
            built.append(Layer(() if shared[i] else (IndexKeys(part.index_dim),)))
    return tuple(built)


def _per_layer(fields: Fields, name: str, layers: int) -> list[int] | None:
    if not fields.has(name):
        return None
    values = fields.integers(name, minimum=0)
    if len(values) != layers:
        raise fields.inconsistent(f"{name} lists {len(values)} layers, not {layers}")
    return list(values)


def indexer_shared(fields: Fields, layers: int) -> list[bool]:
    """Returns which layers use an earlier layer's indexer."""
    types = fields.raw("indexer_types")
    pattern = fields.raw("index_topk_pattern")
    if isinstance(types, list):
        kinds = [str(kind) for kind in types]
    elif isinstance(pattern, str):
        kinds = ["shared" if letter == "S" else "full" for letter in pattern]
    elif isinstance(pattern, list):
        kinds = [str(kind) for kind in pattern]
    else:
        every = fields.integer("index_topk_freq", default=1)
        offset = fields.integer("index_skip_topk_offset", default=2, minimum=0)
        return [max(i - offset + 1, 0) % every != 0 for i in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"full", "shared"}:
        raise fields.inconsistent(f"the indexer types do not list {layers} of full and shared")
    return [kind == "shared" for kind in kinds]


def read_hy_v4(fields: Fields) -> tuple[Layer, ...]:
    """Hunyuan V4: indexed latents; in three of four layers the indexer is an earlier one's."""
    part, bare = indexed_part(fields)
    layers = layer_count(fields)
    if fields.has("indexer_types"):
        shared = indexer_shared(fields, layers)
    else:
        fields.assumed["indexer_types"] = "full in the first layer and every fourth from the second"
        shared = [i > 0 and (i - 1) % 4 > 0 for i in range(layers)]
    return tuple(Layer((bare if own else part,)) for own in shared)


def read_glm5_next(fields: Fields) -> tuple[Layer, ...]:
    """GLM-5-Next: KDA states, every fourth layer a latent with an indexer of pooled keys."""
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None:
        fields.assumed["layer_types"] = "a latent in every fourth layer"
        kinds = ["full" if i % 4 == 3 else "linear" for i in range(layers)]
    pool = fields.integer("index_kpool", default=16)
    full = Layer(
        (
            IndexedLatent(
                fields.integer("kv_lora_rank"),
                fields.integer("qk_rope_head_dim", minimum=0),
                # The key, what gates it in its pool, and a number a token.
                2 * fields.integer("index_head_dim") + 1,
                fields.integer("index_topk") + pool - 1,
            ),
        )
    )
    bare = Layer((latent_part(fields, minimum_rope=0),))
    shared = indexer_shared(fields, layers)
    state = Layer(kda_parts(fields))
    return tuple(
        state if kind == "linear" else bare if own else full
        for kind, own in zip(kinds, shared, strict=True)
    )


def read_minimax_m3(fields: Fields) -> tuple[Layer, ...]:
    """MiniMax-M3: sparse layers keep an indexer's key beside grouped keys and values."""
    layers = layer_count(fields)
    kv_heads, head_dim = read_heads(fields)
    inner = fields
    published = fields.raw("sparse_attention_config")
    names = ("index_head_dim", "index_topk_blocks", "index_block_size")
    if isinstance(published, dict):
        inner = Fields(published, f"{fields.where}: sparse_attention_config")
        names = ("sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
    known = {"full_attention": "full", "minimax_m3_sparse": "sparse"}
    kinds = fields.layer_kinds(layers, known)
    if kinds is None and inner is not fields and inner.has("sparse_attention_freq"):
        flags = _per_layer(inner, "sparse_attention_freq", layers) or []
        kinds = ["sparse" if flag else "full" for flag in flags]
    kinds = kinds or ["full"] * layers
    full: Part = Attention(kv_heads, head_dim, head_dim)
    if "sparse" not in kinds:
        return (Layer((full,)),) * layers
    dim = inner.integer(names[0], default=128)
    blocks, size = inner.integer(names[1], default=16), inner.integer(names[2], default=128)
    sparse = IndexedAttention(kv_heads, head_dim, dim, blocks * size)
    return tuple(Layer((sparse if kind == "sparse" else full,)) for kind in kinds)


def read_qwen4(fields: Fields) -> tuple[Layer, ...]:
    """Qwen4-Exp: Gated DeltaNet, every fourth layer attention with a token indexer."""
    if fields.raw("ple_layer_ids"):
        raise fields.inconsistent("ple_layer_ids: what per-layer embeddings keep is not known")
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None:
        every = fields.integer("full_attention_interval", default=4)
        kinds = ["linear" if (i + 1) % every else "full" for i in range(layers)]
    kv_heads, head_dim = read_heads(fields)
    full: Part = Attention(kv_heads, head_dim, head_dim)
    if fields.has("indexer_n_heads"):
        dim = fields.integer("indexer_head_dim")
        chosen = fields.integer("indexer_budget") + fields.integer("indexer_compress_ratio") - 1
        # transformers keeps three 8-byte positions a token.
        full = IndexedAttention(kv_heads, head_dim, dim, chosen, position_bytes=24)
    state = Layer(delta_net_parts(fields))
    return tuple(state if kind == "linear" else Layer((full,)) for kind in kinds)
