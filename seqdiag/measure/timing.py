"""Timing several functions side by side: interleaved, warmed up, with intervals.

A clock runs one call and says what it took; tests replace it. The rounds alternate their order
(ABBA), so that a machine that slows down slows everyone down.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Call = Callable[[], Any]

ENOUGH = 30
"""Samples after which a function is timed well enough."""
FEW = 10
"""Samples after which a narrow interval is enough too."""
NARROW = 0.02
"""Width of an interval of the median, relative to it, that counts as narrow."""
_STEADY = 5
_WARM_UP_SHARE = 0.2
_DRIFT = 0.05
_SIGNIFICANT = 4.0


class Clock(Protocol):
    """Runs calls and times them."""

    def now_s(self) -> float:
        """Returns the time in seconds, for budgets."""
        ...

    def time_ms(self, call: Call) -> float:
        """Runs a call to its end and returns its milliseconds."""
        ...


class CpuClock:
    """`time.perf_counter_ns` around the call."""

    def now_s(self) -> float:
        return time.perf_counter()

    def time_ms(self, call: Call) -> float:
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e6


class CudaClock:
    """CUDA events around the call; a cold clock wipes the L2 cache before each."""

    def __init__(self, device: torch.device, cold: bool = True) -> None:
        self._device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        size = 2 * l2_bytes if cold else 0
        self._wipe = torch.empty(size, dtype=torch.int8, device=device) if size else None

    def now_s(self) -> float:
        return time.perf_counter()

    def time_ms(self, call: Call) -> float:
        with torch.cuda.device(self._device):
            start, end = (
                torch.Event(self._device, enable_timing=True),
                torch.Event(self._device, enable_timing=True),
            )
            if self._wipe is not None:
                self._wipe.zero_()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize(self._device)
        return float(start.elapsed_time(end))


def clock_for(device: torch.device, cold: bool = True) -> Clock:
    """Returns the clock of a device. On the CPU caches are as the call before left them."""
    return CudaClock(device, cold) if device.type == "cuda" else CpuClock()


@dataclass(slots=True)
class Timing:
    """The samples of one function in milliseconds, in the order taken, or what stopped it."""

    samples_ms: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def repeats(self) -> int:
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def p10_ms(self) -> float:
        return quantile(self.samples_ms, 0.1)

    @property
    def p90_ms(self) -> float:
        return quantile(self.samples_ms, 0.9)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 95 % interval of the median, from order statistics: no distribution assumed.

        Ranks n/2 -+ 0.98 sqrt(n) of the sorted samples (the binomial's normal approximation).
        """
        ordered, n = sorted(self.samples_ms), len(self.samples_ms)
        half = 0.98 * math.sqrt(n)
        low = max(0, math.floor(n / 2 - half))
        high = min(n - 1, math.ceil(n / 2 + half))
        return ordered[low], ordered[high]

    @property
    def drifts(self) -> bool:
        """Whether the time rises or falls over the run, by 5 % or more and beyond chance."""
        n = self.repeats
        if n < FEW:
            return False
        middle, mean = (n - 1) / 2, statistics.fmean(self.samples_ms)
        spread = sum((i - middle) ** 2 for i in range(n))
        slope = sum((i - middle) * (t - mean) for i, t in enumerate(self.samples_ms)) / spread
        rest = sum(
            (t - mean - slope * (i - middle)) ** 2 for i, t in enumerate(self.samples_ms)
        ) / (n - 2)
        beyond_chance = abs(slope) > _SIGNIFICANT * math.sqrt(rest / spread)
        return beyond_chance and abs(slope) * n > _DRIFT * self.median_ms

    @property
    def note(self) -> str:
        """What a reader must know about the samples."""
        notes = []
        if self.repeats < FEW:
            notes.append(f"only {self.repeats} samples: raise --budget")
        if self.drifts:
            notes.append("drifts over the run")
        return "; ".join(notes)


def quantile(samples: list[float], q: float) -> float:
    """Returns the q-quantile by linear interpolation between order statistics."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def time_interleaved(
    calls: Mapping[str, Call], clock: Clock, *, budget_s: float
) -> dict[str, Timing]:
    """Returns the timing of each call; all share `budget_s` seconds, warm-up included.

    Each is warmed up until its last samples agree within 2 % or its share of a fifth of the budget
    is spent. Then rounds over all of them, each until it has 30 samples, or ten with an interval of
    the median below 2 %, or the budget ends; everyone gets one sample at least. A call that raises
    keeps its error and is left out from then on. First calls (compilation) are not timed here.
    """
    timings = {name: Timing() for name in calls}
    end = clock.now_s() + budget_s
    for name, call in calls.items():
        _warm_up(timings[name], call, clock, _WARM_UP_SHARE * budget_s / len(calls))
    order = list(calls)
    while order:
        for name in order:
            _sample(timings[name], calls[name], clock)
        over = clock.now_s() >= end
        order = [name for name in reversed(order) if not over and not _done(timings[name])]
    return timings


def _sample(timing: Timing, call: Call, clock: Clock) -> None:
    if timing.error is not None:
        return
    try:
        timing.samples_ms.append(clock.time_ms(call))
    except Exception as error:
        timing.error = error


def _done(timing: Timing) -> bool:
    if timing.error is not None or timing.repeats >= ENOUGH:
        return True
    if timing.repeats < FEW:
        return False
    low, high = timing.interval_ms
    return high - low < NARROW * timing.median_ms


def _warm_up(timing: Timing, call: Call, clock: Clock, share_s: float) -> None:
    end = clock.now_s() + share_s
    trial = Timing()
    while clock.now_s() < end and not _steady(trial.samples_ms):
        _sample(trial, call, clock)
        if trial.error is not None:
            timing.error = trial.error
            return


def _steady(samples: list[float]) -> bool:
    if len(samples) < 2 * _STEADY:
        return False
    before = statistics.median(samples[-2 * _STEADY : -_STEADY])
    after = statistics.median(samples[-_STEADY:])
    return abs(after - before) < NARROW * after
