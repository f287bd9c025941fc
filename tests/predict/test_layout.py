"""Sizes against closed forms written down apart from the code."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.predict.kv_cache.crossover import first_reach
from seqdiag.predict.kv_cache.engines import ENGINES, Ideal
from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    Dtypes,
    Kept,
    Latent,
    Layer,
    Layout,
    Part,
    RecurrentState,
    dtypes_for,
)

sizes = st.integers(min_value=1, max_value=64)
tokens = st.integers(min_value=1, max_value=300)
windows = st.none() | st.integers(min_value=1, max_value=100)
BF16 = Dtypes("bfloat16", "bfloat16", "float32")


@given(sizes, sizes, sizes, windows, tokens, sizes)
def test_attention(heads: int, d: int, dv: int, window: int | None, t: int, batch: int) -> None:
    need = Ideal().allocate([Attention(heads, d, dv, window)], t, batch, BF16)
    held = t if window is None or t < window else window
    assert need.kv_bytes == need.kv_read_bytes == batch * held * heads * (d + dv) * 2
    assert need.state_bytes == 0


@given(sizes, sizes, tokens)
def test_latent(rank: int, rope: int, t: int) -> None:
    assert Ideal().allocate([Latent(rank, rope)], t, 1, BF16).kv_bytes == t * (rank + rope) * 2


@given(sizes, sizes, sizes, tokens)
def test_state_does_not_grow(channels: int, columns: int, n: int, t: int) -> None:
    parts = [ConvState(channels, columns), RecurrentState((channels, n))]
    need = Ideal().allocate(parts, t, 1, BF16)
    assert need.kv_bytes == 0
    assert need.state_bytes == channels * columns * 2 + channels * n * 4


layers = st.lists(
    st.one_of(
        st.builds(Attention, sizes, sizes, sizes, windows),
        st.builds(RecurrentState, st.tuples(sizes, sizes)),
        st.builds(Latent, sizes, sizes),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(layers, layers)
def test_crossover_is_the_first_context_that_reaches(a: list[Part], b: list[Part]) -> None:
    def total(parts: list[Part], t: int) -> int:
        return Ideal().allocate(parts, t, 1, BF16).total_bytes

    points = {p for part in a + b if (p := part.saturates_at()) is not None}
    found = first_reach(lambda t: total(a, t), lambda t: total(b, t), points)
    searched = range(1, 5000)
    slow = next((t for t in searched if total(a, t) >= total(b, t)), None)
    if found is None or found >= searched.stop:
        assert slow is None
    else:
        assert found == slow


def test_dtypes() -> None:
    layout = Layout("m", (Layer(()),), "bfloat16")
    assert dtypes_for(layout, None, None) == Dtypes("bfloat16", "bfloat16", "float32")
    assert dtypes_for(layout, "float32", None) == Dtypes("float32", "float32", "float32")
    quantised = dtypes_for(layout, "float8", None)
    assert quantised == Dtypes("float8", "bfloat16", "float32"), "only keys and values shrink"
    own = Layout("m", (Layer(()),), "float16", state_dtype="model")
    assert dtypes_for(own, None, None).state == "float16"
    assert dtypes_for(own, "float32", None).state == "float32"
    assert dtypes_for(own, "float8", None).state == "float16"
    assert dtypes_for(own, None, "bfloat16").state == "bfloat16"


def test_layer_kinds() -> None:
    layer = Layer((Attention(1, 1, 1, 8), ConvState(1, 1), RecurrentState((1, 1))))
    assert layer.kind == "sliding+conv+recurrent"
    assert Layer((Attention(1, 1, 1),)).kind == "attention"
    assert Layer(()).kind == "none"
    assert "ideal" in ENGINES


@settings(deadline=None)
@given(
    st.sampled_from([("kivi-2", 2), ("kivi-4", 4)]),
    st.integers(1, 9),
    st.sampled_from([(32, 128), (64, 64), (16, 48)]),
    st.integers(0, 2000),
)
def test_kivi(name: tuple[str, int], heads: int, sizes: tuple[int, int], t: int) -> None:
    """arXiv 2402.02750, algorithm 1: packed groups, and what waits in 16 bits."""
    (dtype, bits), (group, residual), dim = name, sizes, 64
    dtypes = Dtypes(dtype, "float16", "float32", dtype, group, residual)
    keys_packed = t // residual * residual
    values_packed = max(t - residual, 0)

    def size(packed: int) -> float:
        groups = heads * packed * dim / group
        return heads * packed * dim * bits / 8 + groups * 4 + 2 * heads * (t - packed) * dim

    key, value = Attention(heads, dim, dim).tensors(t)
    assert key.bytes(dtypes) == size(keys_packed)
    assert value.bytes(dtypes) == size(values_packed)


def test_kivi_of_a_batch_is_a_multiple() -> None:
    dtypes = Dtypes("kivi-2", "float16", "float32", "kivi-2")
    one, many = Kept((8, 300, 128), "key"), Kept((5, 8, 300, 128), "key")
    assert many.bytes(dtypes) == 5 * one.bytes(dtypes)
