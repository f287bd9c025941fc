"""Every scan against the float64 loop, forward and gradients, on awkward shapes and decays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scans import outputs_and_gradients, randn, selective_inputs
from torch import Tensor

from seqdiag.ops.scan import (
    INVARIANT,
    LINEAR,
    SSD,
    invariant_scan,
    linear_scan,
    selective_scan,
    ssd_scan,
)
from seqdiag.ops.scan.steps import invariant_step, linear_step, selective_step, ssd_step

CPU_FORMS = ["reference", "loop", "chunked", "associative", "fft"]
STEPS = [1, 2, 7, 63, 64, 65, 130, 300]


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert torch.isfinite(torch.view_as_real(a) if a.is_complex() else a).all()
        scale = b.abs().max().clamp(min=1e-12)
        assert ((a - b).abs().max() / scale).item() <= tolerance


def textbook(i: dict[str, Tensor]) -> Tensor:
    """Returns y as the paper writes it, channel by channel."""
    delta = torch.nn.functional.softplus(i["delta"] + i["delta_bias"])
    y = torch.zeros_like(i["u"])
    for b in range(y.shape[0]):
        for d in range(y.shape[2]):
            h = i["h0"][b, d].clone()
            for t in range(y.shape[1]):
                step = delta[b, t, d]
                h = torch.exp(step * i["A"][d]) * h + step * i["B"][b, t] * i["u"][b, t, d]
                y[b, t, d] = i["C"][b, t] @ h + i["D"][d] * i["u"][b, t, d]
    return y * torch.nn.functional.silu(i["z"])


def test_reference_is_the_paper() -> None:
    inputs = selective_inputs(17)
    y, _ = selective_scan(**inputs, delta_softplus=True, impl="reference")
    torch.testing.assert_close(y, textbook(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", ["loop", "chunked", "associative"])
@pytest.mark.parametrize("steps", STEPS)
def test_selective_steps(steps: int, impl: str) -> None:
    inputs = selective_inputs(steps)
    ours = outputs_and_gradients(selective_scan, inputs, delta_softplus=True, impl=impl)
    theirs = outputs_and_gradients(selective_scan, inputs, delta_softplus=True, impl="reference")
    assert_same(ours, theirs)


@pytest.mark.parametrize("impl", ["chunked", "associative"])
@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 300), (16, 8), (96, 7), (16, 1000)])
def test_selective_sizes(n: int, width: int, impl: str) -> None:
    inputs = selective_inputs(150, n=n, width=width, batch=1)
    ours = outputs_and_gradients(selective_scan, inputs, delta_softplus=True, impl=impl)
    theirs = outputs_and_gradients(selective_scan, inputs, delta_softplus=True, impl="reference")
    assert_same(ours, theirs)


def test_chunks_side_by_side_without_gradients() -> None:
    """Few numbers a step: many chunks advance together, also where the length is odd."""
    for steps in (64, 128, 1000, 4096, 4097, 5000):
        inputs = selective_inputs(steps, n=4, width=3, batch=1)
        with torch.no_grad():
            y, last = selective_scan(**inputs, delta_softplus=True)
            expected = selective_scan(**inputs, delta_softplus=True, impl="reference")
        assert_same([y, last], list(expected))


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("impl", ["loop", "chunked", "associative"])
def test_float32_holds_at_any_decay(impl: str, scale: float) -> None:
    """A to -16 and softplus of up to +20 times the scale: relative error at most 5e-7."""
    inputs = selective_inputs(700, n=16, width=6, dtype=torch.float32)
    inputs["delta"] = (inputs["delta"] * 8).clamp(max=20)
    exact = {name: x.double() for name, x in inputs.items()}
    delta = torch.nn.functional.softplus(exact["delta"] + exact["delta_bias"]) * scale
    exact["delta"], inputs["delta"] = delta.float().double(), delta.float()
    for one in (exact, inputs):
        del one["delta_bias"], one["z"]
    with torch.no_grad():
        y, last = selective_scan(**inputs, impl=impl)
        expected, expected_last = selective_scan(**exact, impl="loop")
    assert_same([y.double(), last.double()], [expected, expected_last], 5e-7)


@pytest.mark.parametrize("impl", ["chunked", "loop"])
def test_no_decay_does_not_drift(impl: str) -> None:
    inputs = selective_inputs(3000, n=2, width=2, batch=1, dtype=torch.float32)
    inputs["A"] = torch.full_like(inputs["A"], -1e-6)
    inputs["delta"] = torch.nn.functional.softplus(inputs["delta"])
    for name in ("z", "delta_bias"):
        del inputs[name]
    with torch.no_grad():
        y, _ = selective_scan(**inputs, impl=impl)
        exact = {name: x.double() for name, x in inputs.items()}
        expected, _ = selective_scan(**exact, impl="loop")
    assert_same([y.double()], [expected], 2e-5)


def test_time_invariant_forms_are_one_function() -> None:
    inputs = selective_inputs(133)
    for name in ("delta", "B", "C"):
        inputs[name] = inputs[name][:, :1].expand(-1, 133, -1)
    full = {**inputs, **{name: inputs[name].contiguous() for name in ("delta", "B", "C")}}
    results = [
        selective_scan(**(inputs if impl == "fft" else full), delta_softplus=True, impl=impl)
        for impl in CPU_FORMS
    ]
    for y, last in results[1:]:
        assert_same([y, last], list(results[0]), 1e-10)
    with pytest.raises(ValueError, match="fixed over time"):
        selective_scan(**full, delta_softplus=True, impl="fft")


def test_carried_state_splits_anywhere() -> None:
    inputs = selective_inputs(101)
    h0 = inputs.pop("h0")
    timed = ("u", "delta", "B", "C", "z")
    y, last = selective_scan(**inputs, h0=h0)
    first = {n: x[:, :37] if n in timed else x for n, x in inputs.items()}
    second = {n: x[:, 37:] if n in timed else x for n, x in inputs.items()}
    y1, middle = selective_scan(**first, h0=h0)
    y2, end = selective_scan(**second, h0=middle)
    assert_same([torch.cat([y1, y2], 1), end], [y, last], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("impl", ["loop", "chunked", "associative", "fft"])
def test_linear(impl: str, steps: int, dtype: torch.dtype) -> None:
    shape = (1, 1, 3, 2) if impl == "fft" else (2, steps, 3, 2)
    inputs = {
        "a": randn(*shape, seed=1, dtype=dtype) * 0.5,
        "b": randn(2, steps, 3, 2, seed=2, dtype=dtype),
        "h0": randn(2, 3, 2, seed=3, dtype=dtype),
    }
    ours = outputs_and_gradients(linear_scan, inputs, impl=impl)
    theirs = outputs_and_gradients(linear_scan, inputs, impl="reference")
    assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("steps", [*STEPS, 31, 32, 33, 1000])
def test_invariant(steps: int, dtype: torch.dtype) -> None:
    inputs = {"u": randn(2, steps, 3, seed=1), "h0": randn(2, 3, 4, seed=5, dtype=dtype)}
    inputs |= {name: randn(3, 4, seed=i, dtype=dtype) for i, name in enumerate("abc")}
    inputs["a"] = inputs["a"] / inputs["a"].abs().clamp(min=1)  # some do not decay
    theirs = outputs_and_gradients(invariant_scan, inputs, impl="reference")
    for impl in INVARIANT:
        assert_same(outputs_and_gradients(invariant_scan, inputs, impl=impl), theirs)
        with torch.no_grad():
            assert_same(list(invariant_scan(**inputs, impl=impl)), theirs[:2])


def ssd_inputs(
    steps: int, groups: int = 2, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    return {
        "x": randn(2, steps, 4, 3, seed=1, dtype=dtype),
        "dt": torch.nn.functional.softplus(randn(2, steps, 4, seed=2, dtype=dtype)),
        "A": -torch.tensor([0.1, 1.0, 4.0, 16.0], dtype=dtype),
        "B": randn(2, steps, groups, 5, seed=3, dtype=dtype),
        "C": randn(2, steps, groups, 5, seed=4, dtype=dtype),
        "D": randn(4, seed=5, dtype=dtype),
        "h0": randn(2, 4, 3, 5, seed=6, dtype=dtype),
    }


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("steps", STEPS)
def test_ssd(steps: int, groups: int) -> None:
    inputs = ssd_inputs(steps, groups)
    theirs = outputs_and_gradients(ssd_scan, inputs, impl="reference")
    for impl in ("loop", "chunked"):
        assert_same(outputs_and_gradients(ssd_scan, inputs, impl=impl), theirs)


def test_ssd_is_the_selective_scan_with_a_scalar_decay() -> None:
    """Mamba-2 with P = 1 and A the same over the state is Mamba, channel by channel."""
    i = ssd_inputs(50, groups=1)
    y, last = ssd_scan(i["x"][..., :1], i["dt"], i["A"], i["B"], i["C"], h0=i["h0"][:, :, :1])
    A = i["A"][:, None].expand(4, 5)
    expected, expected_last = selective_scan(
        i["x"][..., 0], i["dt"], A, i["B"][:, :, 0], i["C"][:, :, 0], h0=i["h0"][:, :, 0]
    )
    assert_same([y[..., 0], last[:, :, 0]], [expected, expected_last], 1e-11)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_ssd_float32(scale: float) -> None:
    inputs = ssd_inputs(600, dtype=torch.float32)
    inputs["dt"] = inputs["dt"] * scale
    with torch.no_grad():
        y, last = ssd_scan(**inputs)
        exact = {name: x.double() for name, x in inputs.items()}
        expected = ssd_scan(**exact, impl="loop")
    assert_same([y.double(), last.double()], list(expected), 1e-6)


@pytest.mark.parametrize("decay", [-1e3, -1e30])
def test_an_exact_reset_forgets_and_stays_finite(decay: float) -> None:
    """A log decay beyond the range of exp leaves no trace of the past and no nan."""
    for dtype in (torch.float32, torch.float64):
        i = ssd_inputs(70, dtype=dtype)
        i["A"] = torch.full((4,), -1.0, dtype=dtype)
        i["dt"] = torch.full((2, 70, 4), 1e-3, dtype=dtype)
        i["dt"][:, 40] = -decay
        scaled = {**i, "x": i["x"].clone()}
        scaled["x"][:, 40] *= 1e-30  # what the reset step itself writes is dt x
        results = outputs_and_gradients(ssd_scan, scaled)
        assert all(torch.isfinite(r).all() for r in results)
        changed = {**scaled, "x": scaled["x"].clone(), "h0": scaled["h0"] + 5}
        changed["x"][:, :40] += 3
        torch.testing.assert_close(ssd_scan(**changed)[0][:, 40:], results[0][:, 40:])
        s = selective_inputs(70, dtype=dtype)
        s["A"] = torch.full_like(s["A"], -1.0)
        s["delta"] = torch.full_like(s["delta"], 1e-3)
        s["delta"][:, 40] = -decay
        s["u"][:, 40] *= 1e-30
        del s["delta_bias"]
        results = outputs_and_gradients(selective_scan, s)
        assert all(torch.isfinite(r).all() for r in results)


@pytest.mark.parametrize("impl", CPU_FORMS)
def test_nothing_is_refused_clearly(impl: str) -> None:
    inputs = selective_inputs(4)
    inputs["u"] = inputs["u"][:0]
    with pytest.raises(ValueError, match="selective_scan of nothing"):
        selective_scan(**inputs, impl=impl)
    with pytest.raises(ValueError, match="linear_scan of nothing"):
        linear_scan(torch.ones(1, 0), torch.ones(1, 0))
    assert set(LINEAR) >= {"reference", "loop"}
    assert set(SSD) >= {"reference", "loop"}


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    selective_scan(**selective_inputs(9))
    assert torch.get_num_threads() == before


def stepped(step: Any, inputs: dict[str, Tensor], timed: tuple[str, ...]) -> list[Tensor]:
    """Returns y and the last state, one step of the recurrence at a time."""
    h, outputs = inputs["h0"], []
    for t in range(inputs[timed[0]].shape[1]):
        y, h = step(*(x[:, t] if n in timed else x for n, x in inputs.items() if n != "h0"), h)
        outputs.append(y)
    return [torch.stack(outputs, 1), h]


def test_steps_are_the_scans() -> None:
    selective = selective_inputs(19)
    for name in ("D", "z", "delta_bias"):
        del selective[name]
    timed = ("u", "delta", "B", "C")
    ours = list(selective_scan(**selective, impl="reference"))
    assert_same(stepped(selective_step, selective, timed), ours, 1e-12)
    ssd = ssd_inputs(19)
    del ssd["D"]
    ours = list(ssd_scan(**ssd, impl="reference"))
    assert_same(stepped(ssd_step, ssd, ("x", "dt", "B", "C")), ours, 1e-12)
    for dtype in (torch.float64, torch.complex128):
        lti = {"u": randn(2, 19, 3), **{n: randn(3, 4, seed=1, dtype=dtype) * 0.5 for n in "abc"}}
        lti["h0"] = randn(2, 3, 4, dtype=dtype)
        ours = list(invariant_scan(**lti, impl="reference"))
        assert_same(stepped(invariant_step, lti, ("u",)), ours, 1e-12)
    linear = {"a": randn(2, 19, 3) * 0.5, "b": randn(2, 19, 3, seed=1), "h0": randn(2, 3)}
    h = linear_scan(**linear, impl="reference")
    assert_same(stepped(linear_step, linear, ("a", "b"))[:1], [h], 1e-12)


def test_mambapy_is_the_same_function() -> None:
    pytest.importorskip("mambapy")
    inputs = selective_inputs(37)
    ours = outputs_and_gradients(selective_scan, inputs, delta_softplus=True)
    theirs = outputs_and_gradients(selective_scan, inputs, delta_softplus=True, impl="mambapy")
    assert_same(ours, theirs, 1e-10)


@pytest.mark.parametrize("impl", ["loop", "chunked", "associative"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_state_in_float32(dtype: torch.dtype, impl: str) -> None:
    inputs = {n: x.to(dtype) for n, x in selective_inputs(200).items()}
    exact = {n: x.double() for n, x in inputs.items()}
    y, last = selective_scan(**inputs, delta_softplus=True, impl=impl)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    expected, expected_last = selective_scan(**exact, delta_softplus=True, impl="reference")
    assert_same([last.double()], [expected_last], 1e-6)
    assert_same([y.double()], [expected], torch.finfo(dtype).eps)


def test_chunks_of_any_length() -> None:
    inputs, ssd = selective_inputs(70), ssd_inputs(70)
    for chunk in (1, 7, 32, 64, 70, 200):
        assert_same(
            list(selective_scan(**inputs, delta_softplus=True, chunk=chunk)),
            list(selective_scan(**inputs, delta_softplus=True, impl="reference")),
        )
        assert_same(list(ssd_scan(**ssd, chunk=chunk)), list(ssd_scan(**ssd, impl="reference")))
        a, b = randn(1, 70, 3) * 0.5, randn(1, 70, 3, seed=1)
        assert_same([linear_scan(a, b, chunk=chunk)], [linear_scan(a, b, impl="loop")])
    with pytest.raises(ValueError, match="loop: has no chunks"):
        selective_scan(**inputs, impl="loop", chunk=8)
