"""Operations of a decode step against PyTorch's own counter and the scan's closed form."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
from seqdiag.predict.kv_cache.decode import step_flops
from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    CrossAttention,
    Latent,
    RecurrentState,
)
from seqdiag.predict.kv_cache.readers import read_config
from seqdiag.predict.scan_work import ScanShape


def matmul_flops(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    with FlopCounterMode(display=False) as counter:
        for a, b in pairs:
            torch.zeros(a) @ torch.zeros(b)
    return counter.get_total_flops()


def test_attention_is_its_two_products() -> None:
    heads, tokens, key, value = 6, 40, 8, 5
    expected = matmul_flops(
        ((heads, 1, key), (heads, key, tokens)), ((heads, 1, tokens), (heads, tokens, value))
    )
    assert step_flops([Attention(2, key, value)], tokens, heads) == expected
    assert step_flops([Attention(2, key, value, window=40)], 4096, heads) == expected
    assert step_flops([CrossAttention(2, 8, 40)], 3, heads) == 4 * heads * 40 * 8
    assert step_flops([Attention(2, key, value)], tokens, None) is None


def test_a_latent_is_scored_and_summed_in_its_own_space() -> None:
    heads, tokens, rank, rope = 4, 30, 16, 8
    attended = matmul_flops(
        ((heads, rank + rope), (rank + rope, tokens)), ((heads, tokens), (tokens, rank))
    )
    assert step_flops([Latent(rank, rope)], tokens, heads) == attended
    indexed = Latent(rank, rope, index_dim=12, index_heads=3, topk=30)
    scored = matmul_flops(((3, 12), (12, 500)))
    assert step_flops([indexed], 500, heads) == attended + scored


def test_states_are_the_scan_one_step_at_a_time() -> None:
    """Up to the products once a channel or head, which belong to no number of the state."""
    selective = ScanShape("selective", 1, 1, 32, 16, 1)
    assert step_flops([RecurrentState((32, 16), 6)], 1, None) == selective.min_flops - 32
    dual = ScanShape("ssd", 1, 1, 32, 16, 4)
    assert step_flops([RecurrentState((4, 8, 16), 5)], 1, None) == dual.min_flops - 32 - 4
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.conv1d(torch.zeros(1, 24, 4), torch.zeros(24, 1, 4), groups=24)
    assert step_flops([ConvState(24, 3)], 1, None) == counter.get_total_flops()
    assert step_flops([RecurrentState((4, 4))], 1, None) is None


def test_attention_grows_with_the_context_and_a_state_does_not() -> None:
    records = kvcache(KvcacheSpec(ctx=(1024, 2048))).run().records
    flops = {(r["model"], r["ctx_tokens"]): r["decode_flops"] for r in records}
    assert flops["gqa-32l", 2048] == 2 * flops["gqa-32l", 1024] == 32 * 2 * 32 * 2048 * 256
    assert flops["mamba-32l", 2048] == flops["mamba-32l", 1024] == 32 * 8192 * 16 * 6


@pytest.mark.parametrize(("batch", "tp"), [(1, 2), (3, 4)])
def test_batch_multiplies_and_ranks_divide(batch: int, tp: int) -> None:
    one = kvcache(KvcacheSpec(models=("qwen3.5-27b",), ctx=(4096,))).run().records[0]
    spec = KvcacheSpec(models=("qwen3.5-27b",), ctx=(4096,), engine=("vllm",), batch=batch, tp=tp)
    many = kvcache(spec).run().records[0]
    assert many["decode_flops"] * tp == batch * one["decode_flops"]


def test_what_is_not_known_is_left_empty() -> None:
    config = {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2}
    layout = read_config("m", config, "w")
    assert step_flops(layout.parts(), 10, layout.query_heads) is None
