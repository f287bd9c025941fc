"""Records the cache tensors of real `transformers` models, tiny and random, as JSON.

    python tests/data/record_transformers_cache.py > tests/data/transformers_cache.json

Needs torch and transformers; the recorded file was made with transformers 5.24.0 on a CPU. Each
entry holds the model's config as `save_pretrained` writes it and the shapes and dtypes that its
cache holds for each layer after a forward pass over `tokens` tokens.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

TOKENS = 20
ATTENTION = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OWN_HEAD = {**ATTENTION, "head_dim": 10}
MOE = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
MLA = {
    **ATTENTION,
    "num_key_value_heads": 4,
    "kv_lora_rank": 14,
    "q_lora_rank": None,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 8,
    "v_head_dim": 9,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 6,
}
MAMBA = {
    "vocab_size": 64,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "state_size": 5,
    "conv_kernel": 4,
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {**OWN_HEAD}),
    "llama without head_dim": ("llama", ATTENTION),
    "llama multi-head": ("llama", {**ATTENTION, "num_key_value_heads": None}),
    "mistral": ("mistral", {**OWN_HEAD, "sliding_window": 8}),
    "mistral full": ("mistral", {**OWN_HEAD, "sliding_window": None}),
    "mixtral": ("mixtral", {**OWN_HEAD, **MOE, "sliding_window": None}),
    "mixtral sliding": ("mixtral", {**OWN_HEAD, **MOE, "sliding_window": 8}),
    "phi3": ("phi3", {**ATTENTION, "sliding_window": 8, "pad_token_id": 0}),
    "qwen2": ("qwen2", {**ATTENTION, "sliding_window": 8, "use_sliding_window": False}),
    "qwen2 sliding": (
        "qwen2",
        {**ATTENTION, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4},
    ),
    "qwen3": (
        "qwen3",
        {**OWN_HEAD, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3_moe": ("qwen3_moe", {**OWN_HEAD, **MOE, "moe_intermediate_size": 8}),
    "qwen3_moe sliding": (
        "qwen3_moe",
        {
            **OWN_HEAD,
            **MOE,
            "moe_intermediate_size": 8,
            "sliding_window": 8,
            "use_sliding_window": True,
            "max_window_layers": 4,
        },
    ),
    "gemma2": ("gemma2", {**OWN_HEAD, "sliding_window": 8}),
    "gemma3_text": ("gemma3_text", {**OWN_HEAD, "sliding_window": 8}),
    "gpt_oss": ("gpt_oss", {**OWN_HEAD, **MOE, "sliding_window": 8}),
    "deepseek_v2": ("deepseek_v2", MLA),
    "deepseek_v3": ("deepseek_v3", MLA),
    "mamba": ("mamba", MAMBA),
    "falcon_mamba": ("falcon_mamba", {**MAMBA, "intermediate_size": 36, "expand": 16}),
    "mamba2": ("mamba2", {**MAMBA, "num_heads": 6, "head_dim": 8, "n_groups": 2}),
    "jamba": (
        "jamba",
        {
            **ATTENTION,
            **MOE,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "mamba_d_state": 5,
            "mamba_d_conv": 3,
            "use_mamba_kernels": False,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        {
            **OWN_HEAD,
            "mamba_d_ssm": 56,
            "mamba_n_heads": 7,
            "mamba_d_head": 8,
            "mamba_d_state": 5,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
        },
    ),
}


def tensors(value: object) -> list[dict[str, object]]:
    """Returns shape and dtype of the tensors in nested dicts and lists."""
    if isinstance(value, torch.Tensor):
        return [{"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [found for item in value for found in tensors(item)]
    return []


def record(model_type: str, overrides: dict[str, object]) -> dict[str, object]:
    """Returns config and cache of one model after a forward pass in bfloat16."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**overrides)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    saved = json.loads(config.to_json_string(use_diff=False))
    with torch.no_grad():
        output = model(torch.randint(64, (1, TOKENS)), use_cache=True)
    cache = getattr(output, "past_key_values", None) or output.cache_params
    kept = ("keys", "values", "conv_states", "recurrent_states")
    return {
        "given": overrides,
        "config": {key: saved[key] for key in sorted(saved) if key != "transformers_version"},
        "layers": [
            {name: tensors(getattr(layer, name, None)) for name in kept} for layer in cache.layers
        ],
    }


def main() -> None:
    cases = {name: record(*case) for name, case in CASES.items()}
    json.dump(
        {"transformers": transformers.__version__, "tokens": TOKENS, "cases": cases},
        sys.stdout,
        indent=1,
    )


if __name__ == "__main__":
    main()
