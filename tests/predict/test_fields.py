"""Receptive fields from structure, against published numbers and against a convolution by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.predict.receptive_field import (
    Blocks,
    Chain,
    Conv,
    Everything,
    Parallel,
    Past,
    Structure,
    StructureError,
    Transposed,
    causal_padding,
    predict_field,
    skipped_inputs,
    window,
)
from seqdiag.predict.receptive_field.field import chain_size
from seqdiag.predict.receptive_field.positions import Positions, positions


def strided(kernels: list[int], strides: list[int], padding: int = 0) -> Chain:
    return Chain(tuple(Conv(k, s, left=padding) for k, s in zip(kernels, strides, strict=True)))


def dilated(kernel: int, dilations: list[int]) -> Chain:
    return Chain(tuple(Conv(kernel, dilation=d, left=(kernel - 1) * d) for d in dilations))


def seanet(ratios: list[int], last: int, down: bool = False) -> Chain:
    """The encoder of EnCodec and Mimi: for each ratio a residual and a stride."""
    layers: list[Structure] = [Conv(7)]
    for ratio in ratios:
        layers += [Parallel((Conv(), Conv(3))), Conv(2 * ratio, ratio)]
    layers.append(Conv(last))
    return Chain((*layers, Conv(4, 2))) if down else Chain(tuple(layers))


@pytest.mark.parametrize(
    ("structure", "steps", "stride"),
    [
        # wav2vec 2.0 and HuBERT (Baevski 2020, section 2): 400 samples, 25 ms every 20 ms.
        (strided([10, 3, 3, 3, 3, 2, 2], [5, 2, 2, 2, 2, 2, 2]), 400, 320),
        (strided([3, 3], [1, 2]), 5, 2),  # Whisper
        (seanet([2, 4, 5, 8], 7), 2718, 320),  # EnCodec at 24 kHz
        (seanet([4, 5, 6, 8], 3), 4280, 960),  # Mimi
        (seanet([4, 5, 6, 8], 3, down=True), 7160, 1920),
        (dilated(2, [2**i for i in range(10)]), 1024, 1),  # WaveNet (van den Oord 2016)
        (dilated(2, [2**i for i in range(10)] * 3), 3070, 1),
        (dilated(2, [2**i for i in range(4) for _ in range(2)]), 31, 1),  # TCN (Bai 2018)
        (dilated(7, [2**i for i in range(8) for _ in range(2)]), 3061, 1),
        (dilated(8, [d for d in (1, 2, 4, 8) for _ in range(2)] * 3), 631, 1),  # keras-tcn #8
        (dilated(2, [2**i for i in range(6) for _ in range(2)]), 127, 1),  # keras-tcn #146
        (Chain((window(4096),) * 32), 131_041, 1),  # Mistral 7B
        # torchvision's vgg16.features, as in google-research/receptive_field
        (strided(([3, 3, 2] * 2 + [3, 3, 3, 2] * 3), ([1, 1, 2] * 2 + [1, 1, 1, 2] * 3)), 212, 32),
    ],
)
def test_published_fields(structure: Structure, steps: int, stride: int) -> None:
    field = predict_field(structure)
    assert (field.steps, field.stride) == (steps, stride)


def test_span_and_count_differ_where_dilations_leave_holes() -> None:
    field = predict_field(dilated(2, [1, 4, 16]))
    assert (field.steps, field.count) == (22, 8)


def test_frames_of_wav2vec2() -> None:
    encoder = strided([10, 3, 3, 3, 3, 2, 2], [5, 2, 2, 2, 2, 2, 2])
    assert encoder.length(3200) == 9
    read = encoder.reads(positions([3]), 3200)
    assert (read.first, read.last) == (960, 1359)
    field = predict_field(encoder)
    assert (field.offset, field.centre, field.lookahead, field.latency) == (0, 199.5, 80, 399)


def test_transposed_convolutions_have_phases() -> None:
    four = Chain((Conv(4, 2, left=1, right=1), Transposed(4, 2, crop=1)))
    assert [predict_field(four, o).steps for o in range(4)] == [6, 6, 6, 6]
    five = Chain((Conv(4, 2, left=1, right=1), Transposed(5, 2, crop=2)))
    assert [predict_field(five, o).steps for o in range(4)] == [8, 6, 8, 6]


def test_paths_side_by_side() -> None:
    branches = Parallel((Conv(7, left=3, right=3), Conv(3, left=1, right=1)))
    assert predict_field(branches).steps == 7
    crooked = Parallel((Conv(3, left=2), Conv(3, right=2)))
    assert predict_field(crooked).steps == 5
    with pytest.raises(StructureError, match="strides 1, 2 are not aligned"):
        predict_field(Parallel((Conv(3, 2), Conv(3))))


def test_what_has_no_end() -> None:
    recurrent = predict_field(Chain((Conv(3, left=2), Past())))
    assert (recurrent.steps, recurrent.lookahead, recurrent.unbounded) == (None, 0, "recurrent")
    ahead = predict_field(Chain((Conv(3, left=1, right=1), Past("attention"))))
    assert (ahead.steps, ahead.lookahead) == (None, 1)
    everything = predict_field(Chain((Conv(3, left=2), Everything("normalisation over time"))))
    assert (everything.steps, everything.lookahead) == (None, None)


def test_chunked_attention() -> None:
    chunk = Blocks(8)
    assert [predict_field(chunk, o).steps for o in (0, 7, 8, 13)] == [1, 8, 1, 6]
    assert Blocks(8, causal=False).reads(positions([3]), 20).last == 7


def test_strides_that_skip() -> None:
    assert skipped_inputs(strided([2, 2], [3, 1])) == (3, [2])
    assert skipped_inputs(strided([3], [3])) == (3, [])
    assert skipped_inputs(Conv(5)) == (1, [])


convs = st.builds(
    Conv,
    kernel=st.integers(1, 5),
    stride_=st.integers(1, 3),
    dilation=st.integers(1, 4),
    left=st.integers(0, 5),
    right=st.integers(0, 3),
)


@given(st.lists(convs, min_size=1, max_size=5), st.integers(0, 7))
@settings(deadline=None, max_examples=150)
def test_chains_agree_with_the_closed_form(layers: list[Conv], output: int) -> None:
    size, stride, padding = chain_size(layers)
    field = predict_field(Chain(tuple(layers)), output)
    assert (field.steps, field.stride, field.offset) == (size, stride, -padding)
    read = Chain(tuple(layers)).reads(positions([output]), None)
    assert read.first == output * stride - padding


@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6), st.integers(0, 4),
    st.sampled_from(["zeros", "reflect", "replicate", "circular"]), st.integers(7, 14),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_reads_agree_with_a_convolution_by_hand(
    kernel: int, stride: int, dilation: int, left: int, right: int, mode: str, length: int
) -> None:
    conv = Conv(kernel, stride, dilation, left, right, mode)  # type: ignore[arg-type]
    indices: list[int | None] = []
    for place in range(-left, length + right):
        if mode == "zeros":
            indices.append(place if 0 <= place < length else None)
        elif mode == "replicate":
            indices.append(min(max(place, 0), length - 1))
        elif mode == "circular":
            indices.append(place % length)
        else:
            mirrored = -place if place < 0 else place
            indices.append(mirrored if mirrored < length else 2 * (length - 1) - mirrored)
    reach = (kernel - 1) * dilation
    expected = [
        {i for i in indices[start : start + reach + 1 : dilation] if i is not None}
        for start in range(0, len(indices) - reach, stride)
    ]
    if not expected:
        with pytest.raises(StructureError):
            conv.length(length)
        return
    assert conv.length(length) == len(expected)
    for output, inputs in enumerate(expected):
        assert set(conv.reads(positions([output]), length)) == inputs


@given(st.sets(st.integers(-200, 200)), st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
@settings(deadline=None, max_examples=100)
def test_positions_are_sets(items: set[int], length: int, step: int, count: int) -> None:
    held = positions(items)
    assert set(held) == items
    assert set(held.within(length)) == {i for i in items if 0 <= i < length}
    assert set(held.scaled(step)) == {i * step for i in items}
    assert set(held.smeared(count, step)) == {i + j * step for i in items for j in range(count)}
    assert set(held.union(Positions(3, 5))) == items | {3, 5}


def test_causal_padding_ends_at_the_last_of_the_stride() -> None:
    for kernel, dilation, stride in [(4, 1, 2), (16, 1, 8), (3, 2, 1), (2, 1, 5)]:
        conv = Conv(kernel, stride, dilation, left=causal_padding(kernel, dilation, stride))
        if kernel >= stride:
            assert predict_field(conv).lookahead == 0
    assert predict_field(Conv(4, 2, left=2)).stride == Fraction(2)
