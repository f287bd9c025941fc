"""Compiling ahead of time: figures come out, and a crash spoils one job only."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqdiag.measure.aot import TARGETS, Compiled, KernelVariant, compile_ahead

pytest.importorskip("triton")

KERNEL = '''
import os
import triton
import triton.language as tl

@triton.jit
def product(a, b, c, K, S, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, BLOCK):
        x = tl.load(a + i[:, None] * S + (k + start)[None, :])
        y = tl.load(b + (k + start)[:, None] * S + j[None, :])
        total += tl.exp2(tl.dot(x, y))
    tl.store(c + i[:, None] * N + j[None, :], total.to(tl.float16))

def __getattr__(name):
    if name == "abort":
        os.abort()
    raise AttributeError(name)
'''  # fmt: skip
TYPES = {"a": "*fp16", "b": "*fp16", "c": "*fp16", "K": "i32", "S": "i32"}


def product(name: str = "product", warps: int = 4) -> KernelVariant:
    constants = {"M": 64, "N": 64, "BLOCK": 64}
    signature = {**TYPES, **dict.fromkeys(constants, "constexpr")}
    return KernelVariant(f"kernel_to_compile:{name}", signature, constants, warps, 2, tuple(TYPES))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel_to_compile.py").write_text(KERNEL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_what_is_read(kernel: None) -> None:
    jobs = [(product(), target) for target in TARGETS]
    jobs[2:2] = [(product("abort"), "sm_90"), (product("missing"), "sm_90")]
    found = list(compile_ahead(jobs))
    assert len(found) == len(jobs)
    aborted, missing = found[2:4]
    assert aborted.error.startswith("the compiler ended with -6")
    assert missing.error.startswith("AttributeError")
    compiled = dict(zip(TARGETS, found[:2] + found[4:], strict=True))
    assert not any(c.error for c in compiled.values())
    kinds = {target: c.loop.mma_kind for target, c in compiled.items() if c.loop}
    assert kinds == {
        "sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "sm_120": "HMMA", "gfx942": "MFMA",
    }  # fmt: skip
    for target, c in compiled.items():
        assert c.loop is not None
        # One iteration multiplies 64 x 64 x 64 and takes 64 x 64 powers of two, by 4 warps.
        assert c.loop.mma_flops == (None if target == "sm_100" else 2 * 64**3)
        lanes = 64 if target == "gfx942" else 32
        assert c.loop.exp * lanes * 4 == 64 * 64
        assert 0 < c.registers <= 256
        assert c.spill_bytes == c.loop.spills == 0
        assert c.shared_bytes >= 8192
        wide = "dwordx4" if target == "gfx942" else "128"
        assert all(opcode.endswith(wide) for opcode in c.loop.copies)


def test_spills_are_seen(kernel: None) -> None:
    (found,) = compile_ahead([(product(warps=1), "sm_80")])
    assert isinstance(found, Compiled)
    assert found.spill_bytes > 0
