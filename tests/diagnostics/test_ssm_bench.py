"""`ssm-bench`: forms are checked before they are timed, and wrong ones are caught."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqdiag
from seqdiag.diagnostics.ssm_bench import SsmBenchSpec, by_step, by_stream, selectivity
from seqdiag.diagnostics.ssm_bench.by_scan import Measured
from seqdiag.diagnostics.ssm_bench.checking import Checked, Truth, check
from seqdiag.diagnostics.ssm_bench.findings import crossover
from seqdiag.diagnostics.ssm_bench.problems import Problem, draw
from seqdiag.diagnostics.ssm_bench.spec import KINDS
from seqdiag.errors import UsageError
from seqdiag.measure.timing import Timing

Run = Callable[..., Any]
CPU = torch.device("cpu")
SMALL = {"d_model": 8, "d_state": 3, "heads": 2, "seq_len": (130,), "budget_s": 0.05}
COLUMNS = (
    "implementation,kind,pass,mode,batch,d_model,d_state,n_heads,chunk,seq_len,position,dtype,"
    "device,time_ms,time_ms_p10,time_ms_p90,repeats,first_call_ms,tokens_per_s,time_per_token_us,"
    "gb_per_s,flop_count,min_flop_count,peak_bytes,state_bytes,max_abs_error,rel_rms_error,"
    "dual_max_error,first_divergent_step,speedup_ratio,status,note"
)


def bench(**options: Any) -> Any:
    return seqdiag.ssm_bench(**{**SMALL, **options})


def test_every_form_is_the_same_function_and_timed() -> None:
    result = bench(kind=KINDS, pass_=("fwd", "both"), against=())
    rows = [r for r in result.records if r["mode"] == "scan"]
    ran = {(r["kind"], r["implementation"]) for r in rows if r["status"] == "ok"}
    plain = {(k, i) for k in KINDS if k != "ssd" for i in ("loop", "chunked", "associative")}
    assert ran >= plain | {("lti", "fft"), ("ssd", "loop"), ("ssd", "ssd-chunked")}
    for row in rows:
        if row["status"] == "ok":
            assert row["dual_max_error"] <= 1e-4
            assert row["time_ms"] > 0
            assert row["time_per_token_us"] == pytest.approx(row["time_ms"] / 130 * 1e3)
            assert row["first_call_ms"] > 0
            assert row["peak_bytes"] > 0
        else:
            assert row["time_ms"] is None
            assert row["note"]
    loops = [r for r in rows if r["implementation"] == "loop"]
    assert all(r["speedup_ratio"] == 1 for r in loops)
    assert len(result.findings) >= 2 * len(KINDS)


def test_count_is_the_number_of_rows() -> None:
    from seqdiag.diagnostics.ssm_bench import ssm_bench

    for options in (
        {"pass_": ("fwd", "bwd"), "chunk": (16, 32)},
        {"mode": "step", "position": (1, 40)},
        {"mode": "stream", "hours": 2, "rate": 1, "against": ()},
        {"impl": ("fft", "ssd-chunked"), "kind": ("lti", "selective", "ssd"), "against": ("gru",)},
    ):
        diagnosis = ssm_bench(SsmBenchSpec(**{**SMALL, "check_only": True, **options}))
        assert diagnosis.total == len(list(diagnosis.rows)), options


@pytest.mark.parametrize(
    ("dtype", "limit", "kinds"),
    [("float64", 1e-10, ("lti", "selective", "ssd")), ("float32", 1e-4, ("selective",))],
)
def test_dual_error_over_a_long_sequence(dtype: str, limit: float, kinds: Any) -> None:
    forms = ("chunked", "associative", "fft", "ssd-chunked")
    options = {"seq_len": (16384,), "d_model": 4, "check_only": True, "against": ()}
    result = bench(dtype=dtype, impl=forms, kind=kinds, **options)
    rows = [r for r in result.records if r["dual_max_error"] is not None]
    assert len(rows) >= 2 * len(kinds)
    assert max(r["dual_max_error"] for r in rows) <= limit
    assert {r["status"] for r in rows} == {"ok"}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_grows_has_no_speed(kind: Any, dtype: str) -> None:
    result = bench(kind=(kind,), dist="raw", dtype=dtype, seq_len=(512,), against=())
    rows = [r for r in result.records if r["status"] not in ("unavailable", "unsupported")]
    assert {r["status"] for r in rows} == {"nonfinite"}
    assert all(r["time_ms"] is None and 0 < r["first_divergent_step"] < 512 for r in rows)
    assert "the recurrence grows" in rows[0]["note"]


def checked(kind: Any, run: Any, gradients: bool = True, dtype: str = "float32") -> Checked:
    truth = Truth(draw(SsmBenchSpec(**{**SMALL, "dtype": dtype}), kind, 130, CPU))
    return check(truth, run, boundary=64, takes_state=True, gradients=gradients)


def right(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
    return p.scan("chunked", 64 if p.kind != "selective" else None, h0)


def forgets_a_boundary(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
    """Loses what crosses from step 63 to 64."""
    if p.steps <= 64:
        return right(p, h0)
    y, _ = right(p.cut(slice(0, 64)), h0)
    rest, last = right(p.cut(slice(64, None)), None)
    return torch.cat([y, rest], 1), last


def ignores_its_state(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
    return right(p, None)


def returns_an_old_state(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
    return right(p, h0)[0], right(p.cut(slice(0, max(1, p.steps - 1))), h0)[1]


class _Detached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 1.01 * grad


def wrong_gradient(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
    y, last = right(p, h0)
    return _Detached.apply(y), last  # type: ignore[no-untyped-call]


def rounds_inside(p: Problem, h0: Tensor | None) -> tuple[Tensor, Tensor]:
    y, last = right(p, h0)
    return y.bfloat16().to(y.dtype), last


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (forgets_a_boundary, "an impulse at step 63 is off"),
        (ignores_its_state, "cut at step 65 and carried on, the output is off"),
        (returns_an_old_state, "the last state is off"),
        (wrong_gradient, "the gradient of"),
        (rounds_inside, "rms error"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_form_is_caught_by_the_probe_meant_for_it(kind: Any, run: Any, reason: str) -> None:
    assert checked(kind, right).status == "ok"
    found = checked(kind, run)
    assert found.status == "inaccurate"
    assert reason in found.note


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_held_to_its_rounding(dtype: str) -> None:
    result = bench(dtype=dtype, pass_=("both",), against=(), check_only=True)
    statuses = {r["status"] for r in result.records if r["implementation"] in ("loop", "chunked")}
    assert statuses == {"ok"}


def test_beside_the_scans() -> None:
    result = bench(impl=("chunked",), against=("attention", "rnn", "lstm", "gru"), pass_=("fwd",))
    beside = {r["implementation"]: r for r in result.records if r["mode"] == "scan"}
    for name in ("attention", "rnn", "lstm", "gru"):
        assert beside[name]["status"] == "ok"
        assert beside[name]["time_ms"] > 0
    assert beside["attention"]["state_bytes"] == 2 * 130 * 8 * 4
    assert beside["lstm"]["state_bytes"] == 2 * 8 * 4
    assert sum("waits for the step before" in line for line in result.findings) == 3


def measured(steps: int, time_ms: float, name: str) -> Measured:
    row = next(r for r in selectivity.selectivity_rows(SsmBenchSpec()))
    values = {f: getattr(row, f) for f in row.__slots__}
    values |= {"implementation": name, "time_ms": time_ms, "seq_len": steps}
    return Measured(type(row)(**values), None, Timing([time_ms] * 30))


def test_crossover_of_known_powers() -> None:
    """t against t^2 / 1000: equal at 1000 steps, wherever it is measured."""

    def points(*lengths: int) -> list[tuple[int, Measured, Measured]]:
        return [
            (t, measured(t, float(t), "scan"), measured(t, t * t / 1000, "attention"))
            for t in lengths
        ]

    assert crossover(points(500, 2000)) == "scan overtakes attention at 1000 steps (1000 to 1000)."
    assert crossover(points(100, 250, 5000)).startswith("scan overtakes attention at 1000 steps")
    assert "near 1000 if both go on as measured" in crossover(points(100, 500))
    assert crossover(points(2000, 4000)) == "scan is faster than attention from 2000 on."
    assert crossover(points(500)) == "attention is faster at 500 steps: measure longer ones."


def test_selective_copying() -> None:
    fixed, chosen = (r.rel_rms_error for r in selectivity.selectivity_rows(SsmBenchSpec()))
    assert chosen is not None and chosen <= 1e-6
    # No fixed filter leaves less than sqrt(1 - 1/T) on average: 256 trials come within 2 %.
    assert fixed is not None and fixed == pytest.approx(selectivity.floor(), rel=0.02)


def test_a_step_costs_the_same_and_attention_more() -> None:
    options = {"mode": "step", "position": (1, 64, 4096), "budget_s": 0.4, "kind": KINDS}
    result = bench(**options)
    rows = [r for r in result.records if r["kind"] != "attention"]
    for kind in KINDS:
        held = {r["state_bytes"] for r in rows if r["kind"] == kind}
        assert len(held) == 1
        times = [r["time_ms"] for r in rows if r["kind"] == kind and r["status"] == "ok"]
        assert max(times) < 3 * min(times)
    decode = {r["position"]: r for r in result.records if r["kind"] == "attention"}
    assert decode[4096]["state_bytes"] == 2 * 4097 * 8 * 4
    assert any("p99" in r["note"] for r in rows)


def test_the_state_of_a_step_is_truly_rolled() -> None:
    spec = SsmBenchSpec(**SMALL)
    rolled = by_step._rolled(spec, "selective", CPU, 0, 5, None)
    problem = draw(spec, "selective", 5, CPU)
    assert rolled is not None
    torch.testing.assert_close(rolled, problem.recurrence()[1])
    further = by_step._rolled(spec, "selective", CPU, 5, 9, rolled)
    assert further is not None and not torch.equal(further, rolled)


def test_a_flat_and_a_rising_line() -> None:
    def step(kind: str, position: int, time_ms: float, held: int) -> by_step.Step:
        return by_step.Step(kind, kind, position, held, held, timing=Timing([time_ms] * 20))

    steps = [step("ssd", p, 0.5, 64) for p in (1024, 4096)]
    steps += [step("attention", p, p / 1e3, p) for p in (1024, 4096)]
    flat, rising = by_step.conclude(SsmBenchSpec(), steps)
    assert flat.startswith("ssd: a step costs the same however long the past: 1x the time at 4k")
    assert rising.startswith("attention: the cost of a step goes as t^1.00: 4x the time")


def test_a_stream_is_the_sum_of_its_steps() -> None:
    cost = by_stream.Cost("attention", "decode", 0.5, 2.0, 100, 8, "ok", "")
    assert cost.between(3, 7) == pytest.approx(sum(0.5 + 2.0 * t for t in range(3, 7)))
    assert cost.held(10) == 180
    result = bench(mode="stream", hours=3, rate=5, kind=("ssd",), budget_s=0.2)
    hours = [r for r in result.records if r["kind"] == "ssd"]
    assert len({r["time_ms"] for r in hours}) == 1
    assert [r["position"] for r in hours] == [18000, 36000, 54000]
    decode = [r["time_ms"] for r in result.records if r["kind"] == "attention"]
    assert decode[0] <= decode[1] <= decode[2]
    kept = [r["state_bytes"] for r in result.records if r["kind"] == "attention"]
    assert kept == [2 * 8 * 4 * (t + 1) for t in (18000, 36000, 54000)]


def test_memory_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from seqdiag.diagnostics.ssm_bench import candidates

    monkeypatch.setattr(candidates, "available_bytes", lambda _: 70_000)
    rows = {r["implementation"]: r for r in bench(kind=("lti",), against=()).records}
    assert rows["associative"]["status"] == "oom"
    assert "are free" in rows["associative"]["note"]
    assert rows["chunked"]["status"] == "ok"
    monkeypatch.setattr(candidates, "available_bytes", lambda _: 100)
    assert {r["status"] for r in bench(kind=("lti",), against=()).records} == {"oom"}


def test_a_form_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from seqdiag.ops.scan import linear

    def fails(*_: Tensor) -> Tensor:
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(linear, "associative", fails)
    rows = {r["implementation"]: r for r in bench(kind=("linear-rnn",), against=()).records}
    assert rows["associative"]["status"] == "error"
    assert rows["associative"]["note"] == "not on this machine"
    assert rows["loop"]["status"] == "ok"


def test_interpreted_kernels_are_checked_and_never_timed(kernel_device: torch.device) -> None:
    if kernel_device.type == "cuda":
        pytest.skip("kernels are compiled here")
    options = {"seq_len": (20,), "d_model": 4, "interpret": True, "pass_": ("fwd", "bwd")}
    result = bench(kind=("selective", "ssd"), against=(), **options)
    rows = [r for r in result.records if str(r["implementation"]).endswith("-interpret")]
    found = {(r["implementation"], r["pass"]): r["status"] for r in rows}
    assert found.pop(("scan-triton-prefix-interpret", "bwd")) == "unsupported"
    assert set(found.values()) == {"ok"}
    assert all(r["time_ms"] is None and r["first_call_ms"] is None for r in rows)
    assert {r["device"] for r in rows} == {"cpu (interpreter)"}
    long = bench(impl=("scan-triton-interpret",), seq_len=(8192,), against=(), interpret=True)
    assert {r["status"] for r in long.records} == {"skipped"}


def test_columns_and_formats(run: Run, tmp_path: Path) -> None:
    sizes = ["--d-model", 8, "--heads", 2, "--seq-len", 64, "--budget", "50ms"]
    ran = run("ssm-bench", *sizes, "--csv", "-o", tmp_path / "a.json")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == COLUMNS
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["spec"]["pass"] == ["fwd"]
    again = run("ssm-bench", "--config", tmp_path / "a.json", "--csv")
    assert again.code == 0
    identity = [(r["implementation"], r["kind"], r["seq_len"]) for r in ran.rows()]
    assert [(r["implementation"], r["kind"], r["seq_len"]) for r in again.rows()] == identity
    gate = run("ssm-bench", *sizes, "--check-only", "--fail-if", "dual_max_error > 1e-3", "-q")
    assert gate.code == 0
    listed = run("ssm-bench", "--list", "--csv")
    assert {"loop", "mambapy", "scan-triton"} <= {r["name"] for r in listed.rows()}


def test_fft_of_a_selective_scan_says_why(run: Run) -> None:
    ran = run("ssm-bench", "--kind", "selective", "--impl", "fft", "--against", "none", "--csv")
    assert ran.code == 0
    assert {r["status"] for r in ran.rows()} == {"unsupported"}
    assert "fixed over time" in ran.rows()[0]["note"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunk", 4096], "--chunk: 4096 is larger than --seq-len 1024"),
        (["--heads", 3], "--heads: 3 does not divide --d-model 128"),
        (["--d-state", 0], "--d-state: '0' is out of range"),
        (["--seq-len", 0], "--seq-len: '0' is out of range"),
        (["--impl", "lop"], "--impl: unknown name 'lop'"),
        (["--kind", "foo"], "--kind: unknown name 'foo'"),
        (["--pass", "forward"], "--pass: unknown name 'forward'"),
        (["--against", "fish"], "--against: unknown name 'fish'"),
        (["--budget", "soon"], "--budget: 'soon' is not a time"),
        (["--budget", "0"], "--budget: 0 s is not above 0"),
        (["--dtype", "int8"], "--dtype: 'int8' is not one of"),
        (["--mode", "walk"], "--mode: 'walk' is not one of"),
        (["--impl", "scan-triton-interpret"], "--impl: scan-triton-interpret needs --interpret"),
        (["--mode", "step", "--impl", "loop"], "--impl is of --mode scan, not step"),
        (["--mode", "stream", "--chunk", 8], "--chunk is of --mode scan, not stream"),
        (["--inspect", "sm_1"], "--inspect: 'sm_1' is not a target"),
        (
            ["--inspect", "all", "--kind", "lti"],
            "--inspect: nothing that was asked for has kernels",
        ),
        (["--inspect", "all", "--d-state", 200], "--inspect: the kernels take up to 128 states"),
        (["--inspect", "all", "--dtype", "float64"], "--dtype: the kernels compute in float32"),
    ],
)
def test_bad_input(run: Run, arguments: list[object], message: str) -> None:
    ran = run("ssm-bench", *arguments)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {message}")
    assert ran.out == ""


def test_hint_for_heads_divides() -> None:
    with pytest.raises(UsageError) as caught:
        SsmBenchSpec(d_model=12, heads=5).check()
    assert caught.value.hint == "--heads 4"


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    bench(kind=("lti",), impl=("loop",), against=(), threads=1, check_only=True)
    assert torch.get_num_threads() == before


def test_drift_is_of_the_whole_sequence() -> None:
    found = checked("lti", lambda p, h0: right(p, h0), gradients=False)
    assert found.drift is not None
    assert all(0 <= e < 1e-5 and math.isfinite(e) for e in found.drift)
