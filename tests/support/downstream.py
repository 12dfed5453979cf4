"""A model of a service with a knee, in simulated time, and tasks that use it under limits.

Up to its capacity every call takes ``SECONDS``; with n calls at once beyond that it takes ``(n / capacity) ** 2`` times
as long, so that throughput falls. Calls wait for a free slot of their limit.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from queue_app.adaptive.algorithm import AdaptiveState, Bounds, Measurement, Sample, begin, step

SECONDS = 0.2
CAPACITY = 16
BEST = CAPACITY / SECONDS  # calls per second
STEP = 3.0


@dataclass
class Limit:
    """One limit, adaptive or fixed, and what became of its calls."""

    is_adaptive: bool = True
    most: int = 100
    least: int = 2
    load: float | None = None  # calls that arrive in a second; None: some always wait
    begins: float = 0.0
    running: int = 0
    waiting: int = 0
    next_call: float = 0.0
    calls: list[tuple[float, float]] = field(default_factory=list)  # (ended, began)
    values: list[tuple[float, int]] = field(default_factory=list)
    state: AdaptiveState | None = None

    @property
    def bounds(self) -> Bounds:
        return Bounds(least=self.least, most=self.most)

    @property
    def value(self) -> int:
        return self.state.value(self.bounds) if self.state else self.most

    def step(self, now: float) -> None:
        """Do what the scheduler does every few seconds."""
        if self.state is not None:
            recent = [call for call in self.calls[-2000:] if call[1] >= self.state.changed_at and call[0] > now - 60]
            times = sorted(ended - began for ended, began in recent[-200:])
            sample = Sample(len(times), *(times[len(times) * n // 4] for n in (1, 2, 3))) if times else None
            seen = Measurement(now=now, running=self.running, samples={"call": sample} if sample else {})
            self.state = step(self.state, self.bounds, seen)
        self.values.append((now, self.value))

    def between(self, begin: float, end: float) -> list[int]:
        """Return its values in a time."""
        return [value for at, value in self.values if begin <= at < end]


def run(
    *limits: Limit,
    seconds: float,
    capacity: Callable[[float], float] = lambda _: CAPACITY,
    noise: float = 0.0,
    seed: int = 1,
) -> None:
    """Let the calls of all limits use one downstream; ``noise`` is the sigma of the logarithm of single run times."""
    chance, ends, now, next_step = random.Random(seed), [], 0.0, STEP
    for limit in limits:
        if limit.is_adaptive:
            limit.state = begin(limit.bounds, limit.begins)
    while now < seconds:
        for place, limit in enumerate(limits):
            while limit.load and limit.next_call <= now:
                limit.waiting += 1
                limit.next_call += chance.expovariate(limit.load)
            while now >= limit.begins and limit.running < limit.value and (limit.waiting or not limit.load):
                limit.waiting -= bool(limit.load)
                limit.running += 1
                slower = max(1.0, sum(each.running for each in limits) / capacity(now)) ** 2
                lasts = SECONDS * slower * math.exp(chance.gauss(0, noise))
                heapq.heappush(ends, (now + lasts, place, now))
        now = min([next_step, *(end for end, _, _ in ends[:1]), *(each.next_call for each in limits if each.load)])
        while ends and ends[0][0] <= now:
            ended, place, began = heapq.heappop(ends)
            limits[place].running -= 1
            limits[place].calls.append((ended, began))
        if now >= next_step:
            next_step += STEP
            for limit in limits:
                limit.step(now)


def throughput(begin: float, end: float, *limits: Limit) -> float:
    """Return the calls that ended per second."""
    return sum(begin <= ended < end for limit in limits for ended, _ in limit.calls) / (end - begin)


def p95(begin: float, end: float, *limits: Limit) -> float:
    """Return the 95th percentile of the run times of calls that ended in a time."""
    times = sorted(ended - began for limit in limits for ended, began in limit.calls if begin <= ended < end)
    return times[len(times) * 95 // 100]
