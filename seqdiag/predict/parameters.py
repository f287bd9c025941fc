"""How many parameters a model has, from the fields of its `config.json`.

The counts are those of the causal models of transformers 5.24, which build what the configs say:
embeddings, blocks, final norm and, where it is not tied, the head. Multi-token-prediction layers
that some checkpoints add are not counted, since these models leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from seqdiag.predict.kv_cache.fields import Fields


@dataclass(frozen=True, slots=True)
class _Family:
    """What the fields of a transformer's config do not say."""

    tied: bool = False
    """Whether the head is the embedding, unless `tie_word_embeddings` says otherwise."""
    biased: str = "qkvo"
    """Which projections have a bias where `attention_bias` is true."""
    bias: bool = False
    """Whether they have one where the config does not say."""
    norms: int = 2
    """Norms of a block, each as wide as the model."""
    qk_norm: str = ""
    """Norms of queries and keys: `head` by head, `full` over all heads; else none."""
    gated: bool = True
    """Whether the feed-forward layer has a gate: three matrices rather than two."""
    norm_numbers: int = 1
    """Numbers of a norm for each channel: 2 with a bias."""
    query_gate: bool = False
    """Whether queries come with a gate of the output, twice as wide."""


_FAMILIES = {
    "llama": _Family(),
    "mistral": _Family(),
    "ministral": _Family(),
    "mixtral": _Family(),
    "granite": _Family(),
    "phi3": _Family(),
    "smollm3": _Family(tied=True),
    "qwen2": _Family(biased="qkv", bias=True),
    "qwen2_moe": _Family(biased="qkv", bias=True),
    "qwen3": _Family(qk_norm="head"),
    "qwen3_moe": _Family(qk_norm="head"),
    "gemma": _Family(tied=True),
    "gemma2": _Family(tied=True, norms=4),
    "gemma3_text": _Family(tied=True, norms=4, qk_norm="head"),
    "olmo2": _Family(qk_norm="full"),
    "glm4": _Family(biased="qkv", bias=True, norms=4),
    "cohere2": _Family(tied=True, norms=1),
    "starcoder2": _Family(tied=True, bias=True, gated=False, norm_numbers=2),
    "deepseek_v2": _Family(),
    "deepseek_v3": _Family(),
    "kimi_k2": _Family(),
    "qwen3_next": _Family(qk_norm="head", query_gate=True),
    "qwen3_5_text": _Family(qk_norm="head", query_gate=True),
    "qwen3_5_moe_text": _Family(qk_norm="head", query_gate=True),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MAMBA = {"mamba": True, "falcon_mamba": True, "mamba2": False}
"""Whether the head is the embedding by default."""

COUNTED = (*_FAMILIES, *_MAMBA, "gpt2")
"""Model types whose parameters can be counted."""


def count_parameters(
    model_type: str, config: Mapping[str, object], where: str, names: Mapping[str, str]
) -> int:
    """Returns the number of parameters of one of `COUNTED`.

    `names` says how the model class spells fields. Raises `UsageError` for a missing field.
    """
    fields = Fields(config, where, names=names)
    if model_type == "gpt2":
        return _gpt2(fields)
    if model_type in _MAMBA:
        return _mamba(fields, model_type)
    return _transformer(fields, _FAMILIES[model_type])


def _transformer(fields: Fields, family: _Family) -> int:
    hidden = fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    norm = family.norm_numbers * hidden
    total = _embeddings(fields, family.tied) + norm
    linear = _linear_layers(fields, layers)
    attention = _latent_attention if fields.has("kv_lora_rank") else _attention
    if linear < layers:
        total += (layers - linear) * attention(fields, family)
    if linear:
        total += linear * _delta_net(fields)
    dense = _dense_layers(fields, layers)
    if dense:
        total += dense * _feed_forward(fields, family, fields.integer("intermediate_size"))
    if dense < layers:
        total += (layers - dense) * _mixture(fields, family)
    return total + layers * family.norms * norm


def _embeddings(fields: Fields, tied: bool) -> int:
    table = fields.integer("vocab_size") * fields.integer("hidden_size")
    return table if fields.flag("tie_word_embeddings", default=tied) else 2 * table


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Returns query heads, key/value heads and the dimension of one."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    return (
        heads,
        kv_heads,
        fields.integer("head_dim", default=fields.integer("hidden_size") // heads),
    )


def _attention(fields: Fields, family: _Family) -> int:
    hidden = fields.integer("hidden_size")
    heads, kv_heads, dim = _heads(fields)
    queries = (2 if family.query_gate else 1) * heads * dim
    total = hidden * (queries + 2 * kv_heads * dim + heads * dim)
    name = "use_bias" if fields.has("use_bias") else "attention_bias"
    if fields.flag(name, default=family.bias):
        total += queries + 2 * kv_heads * dim + ("o" in family.biased) * hidden
    normed = {"head": 2 * dim, "full": (heads + kv_heads) * dim}
    return total + normed.get(family.qk_norm, 0)


def _latent_attention(fields: Fields, family: _Family) -> int:
    """Queries by way of a low rank if there is one, the latent, and what expands it."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rank, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    queries = heads * (nope + rope)
    if fields.has("q_lora_rank"):
        low = fields.integer("q_lora_rank")
        total = hidden * low + low + low * queries
    else:
        total = hidden * queries
    total += hidden * (rank + rope) + rank + rank * heads * (nope + value)
    total += heads * value * hidden
    if fields.flag("attention_bias", default=False):
        total += (low if fields.has("q_lora_rank") else 0) + rank + rope + hidden
    return total


def _delta_net(fields: Fields) -> int:
    """Gated DeltaNet: q, k, v and gate, two numbers a head, convolution, norm and output."""
    hidden = fields.integer("hidden_size")
    values = fields.integer("linear_num_value_heads")
    keys = fields.integer("linear_num_key_heads") * fields.integer("linear_key_head_dim")
    width = values * fields.integer("linear_value_head_dim")
    channels = 2 * keys + width
    return (
        hidden * (channels + width + 2 * values)
        + channels * fields.integer("linear_conv_kernel_dim")
        + 2 * values
        + fields.integer("linear_value_head_dim")
        + width * hidden
    )


def _linear_layers(fields: Fields, layers: int) -> int:
    kinds = fields.raw("layer_types")
    if isinstance(kinds, list):
        return kinds.count("linear_attention")
    if fields.has("linear_num_value_heads"):
        every = fields.integer("full_attention_interval", default=4)
        return layers - layers // every
    return 0


def _dense_layers(fields: Fields, layers: int) -> int:
    """Returns how many layers have one feed-forward layer rather than experts."""
    if fields.given(*_EXPERTS) is None:
        return layers
    if fields.has("first_k_dense_replace"):
        return min(fields.integer("first_k_dense_replace", minimum=0), layers)
    step = fields.integer("decoder_sparse_step", default=1)
    listed = fields.raw("mlp_only_layers")
    only = set(listed) if isinstance(listed, list) else set()
    return sum((i + 1) % step != 0 or i in only for i in range(layers))


def _feed_forward(fields: Fields, family: _Family, width: int) -> int:
    hidden = fields.integer("hidden_size")
    matrices = 3 if family.gated else 2
    bias = fields.flag("use_bias", default=False) or fields.flag("mlp_bias", default=False)
    if not family.gated and not fields.has("use_bias"):
        bias = family.bias
    return matrices * hidden * width + bias * ((matrices - 1) * width + hidden)


def _mixture(fields: Fields, family: _Family) -> int:
    """Experts, the router, and what every token passes through besides."""
    hidden = fields.integer("hidden_size")
    experts = fields.integer(fields.given(*_EXPERTS) or _EXPERTS[0])
    name = fields.given("moe_intermediate_size", "intermediate_size") or "intermediate_size"
    width = fields.integer(name)
    total = experts * (3 * hidden * width + hidden)
    if fields.has("shared_expert_intermediate_size"):
        total += 3 * hidden * fields.integer("shared_expert_intermediate_size") + hidden
    if fields.has("n_shared_experts"):
        total += 3 * hidden * width * fields.integer("n_shared_experts", minimum=0)
    return total


def _gpt2(fields: Fields) -> int:
    hidden = fields.integer("hidden_size")
    inner = fields.integer("n_inner", default=4 * hidden)
    name = fields.given("max_position_embeddings", "n_positions") or "n_positions"
    positions = fields.integer(name) * hidden
    block = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    layers = fields.integer("num_hidden_layers")
    return _embeddings(fields, True) + positions + layers * block + 2 * hidden


def _mamba(fields: Fields, model_type: str) -> int:
    hidden, state = fields.integer("hidden_size"), fields.integer("state_size")
    layers, kernel = fields.integer("num_hidden_layers"), fields.integer("conv_kernel", default=4)
    expanded = int(fields.number("expand", default=2) * hidden)
    width = fields.integer("intermediate_size", default=expanded)
    block: Callable[..., int] = _mamba2_block if model_type == "mamba2" else _mamba_block
    mixer = block(fields, hidden, width, state, kernel)
    return _embeddings(fields, _MAMBA[model_type]) + layers * (mixer + hidden) + hidden


def _mamba_block(fields: Fields, hidden: int, width: int, state: int, kernel: int) -> int:
    rank = -(-hidden // 16)
    if fields.has("time_step_rank") and not fields.is_auto("time_step_rank"):
        rank = fields.integer("time_step_rank")
    convolution = width * (kernel + fields.flag("use_conv_bias", default=True))
    bias = fields.flag("use_bias", default=False) * (2 * width + hidden)
    projections = 2 * width * hidden + width * (rank + 2 * state) + rank * width + width * hidden
    return projections + width + convolution + width * state + width + bias


def _mamba2_block(fields: Fields, hidden: int, width: int, state: int, kernel: int) -> int:
    heads, groups = fields.integer("num_heads"), fields.integer("n_groups")
    channels = width + 2 * groups * state
    convolution = channels * (kernel + fields.flag("use_conv_bias", default=True))
    inputs = width + channels + heads
    bias = fields.flag("use_bias", default=False) * (inputs + hidden)
    return hidden * inputs + convolution + 3 * heads + width + width * hidden + bias
