"""Replacing inputs: where it cuts, what counts as a response, how strides are found."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seqdiag.measure.reach import bounds, cuts_of, leaks, shortest_window, stride_of
from seqdiag.measure.replacement import Replacement, tolerance


def probe(function: object, seq_len: int = 37, width: int = 3) -> Replacement:
    x = torch.randn(1, seq_len, width, generator=torch.Generator().manual_seed(0))
    x = x.double().expand(4, -1, -1)
    return Replacement(function, x, 0, tolerance(torch.float64))  # type: ignore[arg-type]


def window(width: int) -> object:
    def run(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, 0, width - 1, 0))
        return padded.unfold(1, width, 1).sum(-1)

    return run


@pytest.mark.parametrize("seq_len", [1, 2, 3, 5, 64, 100, 1000])
def test_cuts_are_inside_and_start_small(seq_len: int) -> None:
    cuts = cuts_of(seq_len)
    assert cuts == sorted(set(cuts))
    assert all(0 < cut < seq_len for cut in cuts)
    if seq_len > 8:
        assert cuts[:4] == [1, 2, 3, 5]
        assert cuts[-1] == seq_len - 1
        assert any(cut % 8 for cut in cuts if cut > 8)


@pytest.mark.parametrize("width", [1, 2, 7, 36, 37, 50])
def test_bounds_by_cuts(width: int) -> None:
    held = probe(window(width))
    for output in (0, 5, 36):
        assert bounds(held, output) == (max(0, output - width + 1), output)
    assert bounds(probe(lambda x: torch.zeros_like(x)), 3) is None


def test_leaks_are_found_at_every_cut_before_them() -> None:
    own = list(range(37))
    assert leaks(probe(window(5)), own) == []
    found = leaks(probe(lambda x: x.roll(-1, 1)), own)
    assert {(leak.output, leak.cut) for leak in found if leak.scale == 1.0} >= {(0, 1), (4, 5)}


def test_leaks_between_the_cuts_of_a_strided_module() -> None:
    def run(x: Tensor) -> Tensor:  # frames of 20 steps, of which the last one is a step too long
        frames = torch.nn.functional.pad(x, (0, 0, 0, 21)).unfold(1, 21, 20)
        return frames.sum(-1)[:, : x.shape[1] // 20]

    own = [20 * n + 19 for n in range(5)]
    assert {leak.output for leak in leaks(probe(run, 100), own)} == {0, 1, 2, 3}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_shortest_window_holds_its_share(mass: list[float], share: float) -> None:
    length, total = shortest_window(mass, share), sum(mass)
    runs = [sum(mass[i : i + length]) for i in range(len(mass) - length + 1)]
    if total > 1e-300:
        assert max(runs) >= share * total * (1 - 1e-9)
        shorter = [sum(mass[i : i + length - 1]) for i in range(len(mass) - length + 2)]
        assert max(shorter) < share * total * (1 + 1e-9)
    else:
        assert length == 0 or total > 0


def test_strides_from_the_ends() -> None:
    assert stride_of([0, 0, 20, 40], [39, 59, 79, 79], 80) == 20
    upsampled = [n // 4 for n in range(256)]
    assert stride_of(upsampled, upsampled, 64) == Fraction(1, 4)
    assert stride_of([0] * 5, [3, 7, 11, 15, 19], 20) == 4
    with pytest.raises(ValueError, match="no two outputs"):
        stride_of([0, 0], [9, 9], 10)
