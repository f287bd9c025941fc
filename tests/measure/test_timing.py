"""Timing with a clock whose time is what the call says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from seqdiag.measure.timing import CpuClock, Timing, quantile, time_interleaved


class FakeClock:
    """A clock whose calls return their own milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.order: list[str] = []

    def now_s(self) -> float:
        return self.now_ms / 1e3

    def time_ms(self, call: Callable[[], float]) -> float:
        took = call()
        self.now_ms += took
        return took


def named(clock: FakeClock, name: str, times: Iterator[float]) -> Callable[[], float]:
    def call() -> float:
        clock.order.append(name)
        return next(times)

    return call


def series(*first: float, then: float) -> Iterator[float]:
    yield from first
    while True:
        yield then


def test_rounds_alternate_and_warm_up_is_not_counted() -> None:
    clock = FakeClock()
    slow_start = series(*([50.0] * 4), then=2.0)
    calls = {
        "a": named(clock, "a", slow_start),
        "b": named(clock, "b", series(then=1.0)),
    }
    timings = time_interleaved(calls, clock, budget_s=10)
    assert {t.median_ms for t in timings.values()} == {1.0, 2.0}
    assert max(timings["a"].samples_ms) == 2.0
    # A constant time has an interval of width zero: ten samples are enough.
    assert [t.repeats for t in timings.values()] == [10, 10]
    assert "".join(clock.order[-20:]) == "abba" * 5


def test_a_noisy_call_gets_thirty_samples() -> None:
    clock = FakeClock()
    noisy = itertools.cycle([1.0, 2.0])
    timing = time_interleaved({"a": named(clock, "a", noisy)}, clock, budget_s=100)["a"]
    assert timing.repeats == 30
    assert timing.interval_ms == (1.0, 2.0)
    assert timing.note == ""


def test_the_budget_ends_it() -> None:
    clock = FakeClock()
    calls = {name: named(clock, name, series(then=4000.0)) for name in "ab"}
    timings = time_interleaved(calls, clock, budget_s=10)
    assert [t.repeats for t in timings.values()] == [1, 1]
    assert timings["a"].note == "only 1 samples: raise --budget"
    assert clock.now_s() <= 10 + 3 * 4


def test_a_call_that_fails_keeps_its_error_and_the_rest_goes_on() -> None:
    clock = FakeClock()

    def fails() -> float:
        raise MemoryError("out of memory")

    timings = time_interleaved(
        {"a": fails, "b": named(clock, "b", series(then=1.0))}, clock, budget_s=10
    )
    assert isinstance(timings["a"].error, MemoryError)
    assert timings["b"].repeats == 10


@pytest.mark.parametrize(("slope", "drifts"), [(0.0, False), (0.01, True), (-0.01, True)])
def test_drift(slope: float, drifts: bool) -> None:
    noise = [0.01 * (-1) ** i for i in range(30)]
    timing = Timing([1 + slope * i + noise[i] for i in range(30)])
    assert timing.drifts is drifts
    assert ("drifts" in timing.note) is drifts


def test_order_statistics() -> None:
    timing = Timing([float(i) for i in range(1, 101)])
    assert timing.median_ms == 50.5
    assert timing.interval_ms == (41.0, 61.0)  # the textbook's ranks for n = 100 are 40 and 61
    assert (timing.p10_ms, timing.p90_ms) == (pytest.approx(10.9), pytest.approx(90.1))
    assert quantile([3.0], 0.9) == 3.0


def test_the_cpu_clock_times_the_whole_call() -> None:
    import time

    assert CpuClock().time_ms(lambda: time.sleep(0.01)) >= 10
