"""The shipped tiles compiled ahead of time: what a card would run, without a card."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from seqdiag.diagnostics.attn_bench.by_inspect import useful_flops
from seqdiag.diagnostics.attn_bench.variants import variant
from seqdiag.measure.aot import TARGETS, compile_ahead
from seqdiag.ops.attention.tiles import KERNELS, tile_for
from seqdiag.predict.accelerators import LIMITS, occupancy
from seqdiag.predict.pipes import Loop, bracket, pipe_cycles

pytest.importorskip("triton")

CASES = [
    (kernel, target, head_dim, "bfloat16", True, False)
    for kernel, target, head_dim in itertools.product(KERNELS, ("sm_80", "sm_90"), (64, 128))
]
OTHER_MASKS = [(*case[:4], *mask) for case in CASES for mask in ((False, False), (True, True))]
EVERYWHERE = [
    (kernel, target, head_dim, dtype, True, False)
    for kernel, target in itertools.product(KERNELS, TARGETS)
    for head_dim, dtype in ((64, "float16"), (80, "bfloat16"), (256, "bfloat16"))
]


def compiled(cases: list[Any]) -> list[Any]:
    jobs = []
    for kernel, target, head_dim, dtype, causal, windowed in cases:
        tile = tile_for(kernel, target, head_dim, 2)
        jobs.append((variant(kernel, tile, dtype, head_dim, head_dim, causal, windowed), target))
    return list(compile_ahead(jobs))


def hold_to_the_rules(cases: list[Any]) -> None:
    """Asserts no spills, shared memory within the card, tensor cores fed with 16-byte loads."""
    for case, found in zip(cases, compiled(cases), strict=True):
        kernel, target, head_dim, *_ = case
        tile = tile_for(kernel, target, head_dim, 2)
        assert not found.error, case
        assert found.spill_bytes == 0, case
        assert found.shared_bytes <= LIMITS[target].program_bytes, case
        assert occupancy(target, found.registers, found.warps, found.shared_bytes)[0] >= 1, case
        rows = tile.block_n if kernel == "backward_keys" else tile.block_m
        group = target == "sm_90" and rows >= 64
        assert found.loop.mma_kind == ("HGMMA" if group else "HMMA"), case
        assert found.loop.mma_flops <= 1.05 * useful_flops(kernel, tile, head_dim, head_dim), case
        assert any("128" in name for name in found.loop.copies), case


def test_shipped_tiles_on_sm_80_and_sm_90() -> None:
    hold_to_the_rules(CASES)


@pytest.mark.grid
def test_shipped_tiles_with_other_masks() -> None:
    hold_to_the_rules(OTHER_MASKS)


@pytest.mark.grid
def test_every_shipped_tile_compiles_and_fits() -> None:
    for case, found in zip(EVERYWHERE, compiled(EVERYWHERE), strict=True):
        assert not found.error, case
        assert found.shared_bytes <= LIMITS[case[1]].program_bytes, case
        assert found.loop.mma_kind, case


OFFSETS = """
import importlib, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from seqdiag.diagnostics.attn_bench.variants import variant
from seqdiag.ops.attention.tiles import KERNELS, Tile

for kernel in KERNELS:
    made = variant(kernel, Tile(32, 32, 4, 1), "bfloat16", 16, 16, True, True)
    module, _, name = made.kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    source = ASTSource(function, dict(made.signature), dict(made.constants), {})
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]
    narrow = re.findall(r"arith.muli [^\\n]*%stride[^\\n]* : i32", text)
    assert not narrow, narrow
    assert len(re.findall(r"arith.extsi %stride_[^\\n]* : i32 to i64", text)) >= 8, kernel
"""


def test_offsets_have_64_bits() -> None:
    """A row times its stride passes 2^31 at 100k tokens of a fused projection."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", OFFSETS],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_report(run: Callable[..., Any]) -> None:
    ran = run("attn-bench", "--inspect", "all", "--csv")
    assert ran.code == 0, ran.err
    rows = ran.rows()
    assert [row["target"] for row in rows] == ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942"]
    assert [row["mma_kind"] for row in rows] == ["HMMA", "HGMMA", "UTCHMMA", "HMMA", "MFMA"]
    assert all(row["status"] == "ok" and int(row["registers"]) > 0 for row in rows)
    for row in rows[:2]:
        low, high = float(row["model_tflop_per_s_low"]), float(row["model_tflop_per_s_high"])
        assert 0 < low <= high <= 0.8 * 989.4
    assert rows[2]["model_tflop_per_s_high"] == ""
    assert "not a measurement" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inspect", "sm_70"], "unknown name 'sm_70'"),
        (["--inspect", "all", "--head-dim", "300"], "go up to 256, not 300"),
        (["--inspect", "all", "--dtype", "float64"], "not float64"),
    ],
)
def test_wrong_requests(arguments: list[str], message: str, run: Callable[..., Any]) -> None:
    ran = run("attn-bench", *arguments)
    assert ran.code == 2
    assert message in ran.err


def test_without_triton_it_is_exit_3(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = run("attn-bench", "--inspect", "all")
    assert ran.code == 3
    assert "wheels for Linux only" in ran.err


def test_occupancy_is_the_manuals() -> None:
    """256 threads of 128 registers fill half the registers; 96 KiB leave room for two on sm_90."""
    assert occupancy("sm_90", 128, 8, 0) == (2, "registers")
    assert occupancy("sm_90", 64, 4, 96 * 1024) == (2, "shared memory")
    assert occupancy("sm_120", 64, 4, 100 * 1024) == (0, "shared memory")
    assert occupancy("sm_80", 32, 4, 0)[0] == 16


def test_the_model_brackets_published_rates() -> None:
    """Counts of a 128 x 128 tile at head dimension 128 on sm_90: Triton reached 395 to 487
    TFLOP/s on an H100 (Shah et al. 2024, arXiv 2407.08608, figure 5, and later reports)."""
    loop = Loop(
        warps=8, mma_kind="HGMMA", mma_flops=4 * 128 * 128 * 128, exp=66, fp32=260, alu=230,
        shared_bytes=0, instructions=700,
    )  # fmt: skip
    cycles = pipe_cycles("sm_90", loop)
    assert cycles is not None
    assert cycles["tensor"] == 2048
    low, high = bracket("sm_90", cycles, loop.mma_flops)
    assert low < 487e12 < high
    assert high <= 0.8 * 132 * 1.755e9 * 4096
    assert pipe_cycles("gfx942", loop) is None
