"""attn-bench: wrong implementations are caught by the probe meant for them, right ones timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from seqdiag.diagnostics.attn_bench import AttnBenchSpec, attn_bench
from seqdiag.diagnostics.attn_bench import bench as bench_module
from seqdiag.diagnostics.attn_bench.exact import compute, sampled_queries
from seqdiag.diagnostics.attn_bench.findings import exponent
from seqdiag.diagnostics.attn_bench.gate import Gate, Verdict
from seqdiag.diagnostics.attn_bench.problem import Problem
from seqdiag.errors import SeqdiagError
from seqdiag.ops.attention import IMPLEMENTATIONS
from seqdiag.ops.attention.blocked import blocked
from seqdiag.ops.attention.reference import naive
from seqdiag.ops.registry import Implementation
from seqdiag.predict.work import AttentionShape, Pass

CPU = torch.device("cpu")
Options = dict[str, Any]


def problem(
    q_len: int,
    kv_len: int | None = None,
    *,
    heads: int = 2,
    window: int | None = None,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    head_dim: int = 32,
) -> Problem:
    kv_len = q_len if kv_len is None else kv_len
    shape = AttentionShape(1, heads, 1, q_len, kv_len, head_dim, head_dim, causal, window)
    return Problem(shape, dtype, CPU, 0)


def judge(run: Callable[..., Tensor], of: Problem, which: Pass = "fwd") -> Verdict:
    inputs = of.inputs()
    return Gate(of, inputs, which != "fwd").judge(
        Implementation("x", run, lambda p, d: None), which
    )


def window_off_by_one(q: Tensor, k: Tensor, v: Tensor, *, window: int, **options: Any) -> Tensor:
    return blocked(q, k, v, window=window + 1, **options)


def newest_key_dropped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return blocked(q, k[:, :, :-1], v[:, :, :-1], **{**options, "causal": False})


class _CausalForgotten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.options = options
        return blocked(q, k, v, **options)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            out = blocked(*leaves, **{**ctx.options, "causal": False})
            return (*torch.autograd.grad(out, leaves, d_out), None)


def causal_ignored_in_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out: Tensor = _CausalForgotten.apply(q, k, v, options)
    return out


def bfloat16_accumulation(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The online softmax with its sums kept in bfloat16, piece by piece."""
    total = torch.zeros(*q.shape[:3], 1, dtype=torch.bfloat16)
    acc = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.bfloat16)
    positions = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    for start in range(0, k.shape[2], 16):
        keys = torch.arange(start, min(start + 16, k.shape[2]))
        scores = (q.float() @ k[:, :, keys].float().transpose(-1, -2)) * options["scale"]
        weights = torch.exp(scores.masked_fill(keys > positions, -torch.inf) - 4)
        total += weights.sum(-1, keepdim=True).bfloat16()
        acc += (weights @ v[:, :, keys].float()).bfloat16()
    return acc / total


@pytest.mark.parametrize("length", [300, 8192])
def test_a_window_off_by_one_is_caught_by_needles(length: int) -> None:
    of = problem(length, heads=1, window=100)
    verdict = judge(window_off_by_one, of)
    assert verdict.status == "inaccurate"
    assert "needles" in verdict.note
    assert judge(blocked, of).status == "ok"


@pytest.mark.parametrize("length", [64, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_newest_key_dropped_in_decode_is_caught_by_needles(
    length: int, dtype: torch.dtype
) -> None:
    of = problem(1, length, dtype=dtype)
    verdict = judge(newest_key_dropped, of)
    assert verdict.status == "inaccurate"
    assert f"misses key {length - 1} of its keys 0 to {length - 1}" in verdict.note
    if length == 8192:
        # Random inputs hardly see it: it is within the 1e-2 that public benchmarks allow.
        assert verdict.error is not None
        assert verdict.error.max_abs < 1e-2
    assert judge(blocked, of).status == "ok"


@pytest.mark.parametrize(("q_len", "kv_len"), [(100, 100), (256, 8192)])
def test_causal_ignored_in_backward_is_caught_by_the_gradients(q_len: int, kv_len: int) -> None:
    of = problem(q_len, kv_len, heads=1)
    assert judge(causal_ignored_in_backward, of, "fwd").status == "ok"
    verdict = judge(causal_ignored_in_backward, of, "bwd")
    assert verdict.status == "inaccurate"
    assert verdict.note.startswith("rms error")


@pytest.mark.parametrize("length", [1024, 8192])
def test_bfloat16_accumulation_is_caught_by_the_error(length: int) -> None:
    of = problem(64, length, dtype=torch.bfloat16, heads=1)
    verdict = judge(bfloat16_accumulation, of)
    assert verdict.status == "inaccurate"
    assert judge(naive, of).status == "ok"


def test_nan_is_nonfinite() -> None:
    def broken(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = naive(q, k, v, **options)
        out[..., 5, 0] = torch.nan
        return out

    assert judge(broken, problem(20)).status == "nonfinite"


def test_a_leak_of_hidden_nan_is_noted() -> None:
    assert "leaks" in judge(naive, problem(20)).note

    def tight(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return torch.cat(
            [naive(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], **options)
             for i in range(q.shape[2])], dim=2,
        )  # fmt: skip

    assert judge(tight, problem(20)).note == ""


@pytest.mark.parametrize("impl", ["naive", "sdpa", "sdpa-math", "sdpa-flash", "blocked"])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "window", "causal"),
    [(1, 1, None, True), (1, 64, None, True), (2, 5, None, True), (5, 2, None, True),
     (65, 65, 1, True), (257, 257, 256, True), (4, 20, None, False), (17, 127, 8, True),
     (1000, 1025, None, True), (63, 63, None, True)],
)  # fmt: skip
def test_right_implementations_pass(
    impl: str, q_len: int, kv_len: int, window: int | None, causal: bool
) -> None:
    from seqdiag.ops.registry import load_implementation

    of = problem(q_len, kv_len, window=window, causal=causal, heads=4)
    implementation = load_implementation(IMPLEMENTATIONS, impl)
    verdict = Gate(of, of.inputs(), True).judge(implementation, "both")
    assert (verdict.status, verdict.needles_failed) == ("ok", 0), verdict.note


def test_sampled_gradients_are_exact() -> None:
    """With d_out zero off the sampled queries, gradients from them alone are the whole truth."""
    of = problem(150, 170, window=60, heads=4)
    q, k, v, d_out = (x.double() for x in of.inputs())
    rows = torch.tensor([0, 3, 77, 149])
    kept = torch.zeros_like(d_out)
    kept[:, :, rows] = d_out[:, :, rows]
    found = compute(of, (q, k, v, kept), rows, torch.float64, True)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = of.call(naive, *leaves)
    dq, dk, dv = torch.autograd.grad(out, leaves, kept)
    torch.testing.assert_close(found.out, out.detach()[:, :, rows])
    torch.testing.assert_close(found.dq, dq[:, :, rows])
    torch.testing.assert_close(found.dk, dk)
    torch.testing.assert_close(found.dv, dv)


def test_which_queries_are_sampled() -> None:
    assert len(sampled_queries(problem(100).shape, 0)) == 100
    rows = sampled_queries(problem(8192).shape, 0).tolist()
    assert len(rows) == 64
    assert {0, 127, 128, 8191, 8063} <= set(rows)


def test_inputs_are_the_same_for_everyone() -> None:
    first, again = problem(8).inputs(), problem(8).inputs()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = dataclasses.replace(problem(8), seed=1).inputs()
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def rows(**options: Any) -> list[dict[str, Any]]:
    return [dict(r) for r in attn_bench(AttnBenchSpec(budget=0.05, **options)).run().records]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrong implementations in the registry, as a user's fork might have them."""
    wrong = {"wrong": "newest_key_dropped", "fails": "out_of_memory", "refuses": "no_kernel"}
    for name, function in wrong.items():
        monkeypatch.setitem(IMPLEMENTATIONS, name, f"{__name__}:{function}")
    yield


def out_of_memory(*args: Any, **options: Any) -> Tensor:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


def no_kernel(*args: Any, **options: Any) -> Tensor:
    raise RuntimeError("No available kernel. Aborting execution.")


def test_a_wrong_row_has_an_error_and_no_time(registered: None) -> None:
    found = rows(impl=("naive", "wrong", "fails", "refuses"), mode="decode", ctx=(64,), heads=2)
    by_name = {row["implementation"]: row for row in found}
    assert by_name["naive"]["status"] == "ok"
    assert by_name["naive"]["time_ms"] > 0
    assert by_name["wrong"]["status"] == "inaccurate"
    assert by_name["wrong"]["needles_failed"] > 0
    assert by_name["wrong"]["time_ms"] is None
    assert by_name["fails"]["status"] == "oom"
    assert by_name["fails"]["note"].startswith("CUDA out of memory")
    assert by_name["refuses"]["status"] == "unsupported"


def test_scores_beyond_the_memory_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_module, "available_bytes", lambda device: 5 * 2**20)
    found = rows(impl=("naive", "blocked"), seq_len=(512,), heads=2)
    assert [row["status"] for row in found] == ["oom", "ok"]
    assert "are free" in found[0]["note"]


def test_every_pass_and_a_mask() -> None:
    found = rows(
        impl=("naive", "sdpa-flash"), seq_len=(40,), heads=2, kv_heads=1, head_dim=16,
        passes=("fwd", "bwd", "both"), mask="window:9",
    )  # fmt: skip
    assert [row["status"] for row in found] == ["ok"] * 6
    assert {row["mask"] for row in found} == {"window:9"}
    flops = [row["tflop_per_s"] * row["time_ms"] for row in found[::2]]
    assert flops[0] + flops[1] == pytest.approx(flops[2])
    assert flops[1] == pytest.approx(2.5 * flops[0])
    assert [row["backend"] for row in found[:2]] == ["eager", "flash"]


def test_top_left_alignment() -> None:
    """Aligned top-left, query i sees the keys up to i, whatever comes after the queries."""
    found = rows(impl=("naive", "blocked"), seq_len=(16,), kv_len=(64,), align="top-left")
    assert [row["status"] for row in found] == ["ok", "ok"]
    with pytest.raises(SeqdiagError, match="needs as many keys"):
        AttnBenchSpec(seq_len=(64,), kv_len=(16,), align="top-left").check()


def test_traffic_that_fusing_saves() -> None:
    """At L = 4096, D = 64 in 16 bits the score matrix is most of the traffic: far more than 5x."""
    shape = AttentionShape(1, 8, 8, 4096, 4096, 64, 64)
    assert shape.materialised_bytes(2) / shape.min_bytes(2) > 5
    result = attn_bench(
        AttnBenchSpec(impl=("blocked",), seq_len=(4096,), heads=1, check_only=True)
    ).run()
    (row,) = result.records
    assert float(row["materialised_bytes"] or 0) / float(row["min_bytes"] or 1) > 5
    assert any("Assumed" in line for line in result.findings)


def test_decoding_grows_with_the_context() -> None:
    result = attn_bench(
        AttnBenchSpec(impl=("naive", "sdpa"), mode="decode", ctx=(1024, 4096, 16384), heads=2)
    ).run()
    found = [dict(row) for row in result.records]
    assert [row["kv_len"] for row in found[::2]] == [1024, 4096, 16384]
    assert all(row["seq_len"] == 1 and row["status"] == "ok" for row in found)
    bytes_read = [row["min_bytes"] for row in found[::2]]
    assert bytes_read[2] / bytes_read[0] == pytest.approx(16, rel=0.05)
    assert any(line.startswith("Time grows with context") for line in result.findings)


def test_the_exponent_of_a_power_law() -> None:
    assert exponent([(1, 3), (10, 300), (100, 30000)]) == pytest.approx(2)


def test_constant_tokens_and_a_preset() -> None:
    spec = AttnBenchSpec(seq_len=(512, 2048), tokens=4096)
    assert [shape.batch for shape in spec.shapes] == [8, 2]
    found = rows(preset="llama-3.1-8b", impl=("naive",), seq_len=(4,), check_only=True)[0]
    assert (found["n_heads"], found["n_kv_heads"], found["head_dim"]) == (32, 8, 128)
    with pytest.raises(SeqdiagError, match="no plain attention"):
        attn_bench(AttnBenchSpec(preset="mamba-32l"))


def test_interpreted_kernels_are_judged_and_never_timed(kernel_device: torch.device) -> None:
    if kernel_device.type == "cuda":
        pytest.skip("kernels are compiled here")
    found = rows(interpret=True, impl=("naive", "flash-triton-interpret"), seq_len=(40,))
    ours = found[1]
    assert (ours["status"], ours["needles_failed"], ours["time_ms"]) == ("ok", 0, None)
    assert "never timed" in ours["note"]
    assert ours["rel_rms_error"] < 5e-6


def test_deterministic_means_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMPLEMENTATIONS, "wobbles", f"{__name__}:wobbles")
    found = rows(impl=("naive", "wobbles"), seq_len=(16,), deterministic=True)
    torch.use_deterministic_algorithms(False)
    assert [row["status"] for row in found] == ["ok", "inaccurate"]
    assert found[1]["note"] == "ten runs differ in their bits"


def wobbles(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return naive(q, k, v, **options) * (1 + 1e-7 * torch.rand(()))
