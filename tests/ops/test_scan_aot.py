"""The shipped scan kernels, compiled ahead of time: no spills, within the card's memory."""

from __future__ import annotations

import pytest

from seqdiag.diagnostics.ssm_bench import SsmBenchSpec, inspecting

pytest.importorskip("triton")

SIZES = [
    {"d_model": 64, "d_state": 16, "heads": 1},  # Mamba as published
    {"d_model": 64, "d_state": 128, "heads": 1},  # Mamba-2 as published
]


def spills(rows: list[inspecting.InspectRow]) -> list[str]:
    return [f"{r.kernel} {r.target} N{r.d_state}: {r.note}" for r in rows if r.note]


def test_published_sizes_do_not_spill() -> None:
    rows = []
    for form, size in (("scan-triton", SIZES[0]), ("ssd-triton", SIZES[1])):
        spec = SsmBenchSpec(impl=(form,), dtype="bfloat16", **size)  # type: ignore[arg-type]
        rows += list(inspecting.rows(spec, ("sm_80", "sm_90")))
    assert len(rows) == 2 * (4 + 4)
    assert spills(rows) == []
    assert all(r.status == "ok" and r.registers for r in rows)
    # The state stays in registers: no shuffle, no barrier in the loop over time.
    forward = [r for r in rows if r.kernel == "selective forward"]
    assert all((r.loop_shuffles, r.loop_barriers) == (0, 0) for r in forward)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("d_state", [1, 3, 8, 16, 32, 64, 96, 128])
def test_no_shipped_shape_spills(dtype: str, d_state: int) -> None:
    forms = ("scan-triton", "ssd-triton")
    spec = SsmBenchSpec(impl=forms, dtype=dtype, d_model=64, d_state=d_state, heads=1)
    assert spills(list(inspecting.rows(spec, ("sm_80", "sm_90")))) == []


@pytest.mark.grid
def test_every_target_compiles() -> None:
    spec = SsmBenchSpec(kind=("selective", "ssd"), dtype="float16", d_model=64, heads=1)
    rows = list(inspecting.rows(spec, inspecting.targets_of("all")))
    assert {r.status for r in rows} == {"ok"}
