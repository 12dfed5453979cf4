"""The bound that promotion gives, on a simulated queue whose higher bands never run empty.

No servers and no waiting: events on a virtual clock, from a seed. The bound is the one of
docs/explanation/promotion.md. Its twin without promotion breaks it.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from queue_app.core.priorities import Band, effective_band, rises

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = Band
THRESHOLDS = {NORMAL: 1200.0, LOW: 600.0, BACKGROUND: 600.0}
PERIOD = 60.0  # between two promotions
SLOTS = 4
LONGEST = 1.9  # longest run time of a task, in seconds; the average is 1
HOURS = 2.0
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)
REACHES_HIGH = {band: [0.0, *(rise.after for rise in rises(band, THRESHOLDS))][-1] for band in Band}

#: Tasks per second: high alone exceeds the four slots.
LOADS = {CRITICAL: 0.2, HIGH: 4.1, NORMAL: 0.02, LOW: 0.02, BACKGROUND: 0.02}
SHORT = {CRITICAL: 4.4, HIGH: 1.0, NORMAL: 0.02, LOW: 0.02, BACKGROUND: 0.02}


@dataclass(slots=True)
class Simulated:
    """One task: when it was queued, reached high and started, and the tasks ahead of it in high."""

    id: int
    own: Band
    queued: float
    band: Band
    high_at: float | None = None
    ahead: int = 0  # tasks that were queued before it and still waited when it reached high
    started: float | None = None


@dataclass(slots=True)
class Simulation:
    """A queue with slots; every ``PERIOD`` seconds waiting tasks are promoted, unless promotion is off."""

    seed: int
    loads: dict[Band, float]
    promotion: bool = True
    tasks: list[Simulated] = field(default_factory=list)

    def run(self) -> "Simulation":
        rng = random.Random(self.seed)
        end = HOURS * 3600
        arrivals: list[tuple[float, Band]] = []
        for band, rate in self.loads.items():
            at = rng.expovariate(rate)
            while at < end:
                arrivals.append((at, band))
                at += rng.expovariate(rate)
        arrivals.sort()
        ticks = [n * PERIOD for n in range(1, int(end / PERIOD))]
        order = itertools.count()
        events = [(at, next(order), band) for at, band in arrivals] + [(at, next(order), "tick") for at in ticks]
        heapq.heapify(events)
        waiting: dict[int, Simulated] = {}
        lane: list[tuple[Band, float, int]] = []
        idle = SLOTS
        while events and events[0][0] < end:
            now, _, event = heapq.heappop(events)
            if event == "end":
                idle += 1
            elif event == "tick":
                self._rise(now, waiting, lane)
            else:
                task = Simulated(len(self.tasks), event, now, event)
                self.tasks.append(task)
                waiting[task.id] = task
                heapq.heappush(lane, (task.band, task.queued, task.id))
            while idle and lane:
                band, _, task_id = heapq.heappop(lane)
                task = waiting.get(task_id)
                if task is not None and task.band is band:  # else it has started or risen
                    del waiting[task_id]
                    task.started = now
                    idle -= 1
                    heapq.heappush(events, (now + rng.uniform(0.1, LONGEST), next(order), "end"))
        return self

    def _rise(self, now: float, waiting: dict[int, Simulated], lane: list[tuple[Band, float, int]]) -> None:
        at = ORIGIN + timedelta(seconds=now)
        risen = []
        for task in waiting.values():
            if task.own <= HIGH or task.high_at is not None:
                continue
            band = effective_band(task.own, ORIGIN + timedelta(seconds=task.queued), at, THRESHOLDS)
            if band is HIGH:
                task.high_at = now  # it would reach high now, even if promotion is off
                risen.append(task)
            if self.promotion and band is not task.band:
                task.band = band
                heapq.heappush(lane, (band, task.queued, task.id))
        for task in risen:
            task.ahead = sum(other.id < task.id for other in waiting.values())

    def waits(self, own: Band) -> list[tuple[float, float]]:
        """Return (wait so far, bound) of each task of a band that came to high."""
        end = HOURS * 3600
        critical = [task.queued for task in self.tasks if task.own is CRITICAL]
        found = []
        for task in self.tasks:
            if task.own is own and task.high_at is not None:
                until = task.started if task.started is not None else end
                overtaken = sum(task.high_at < at <= until for at in critical)
                bound = REACHES_HIGH[own] + PERIOD + LONGEST + (task.ahead + overtaken) * LONGEST / SLOTS
                found.append((until - task.queued, bound))
        return found


def test_no_task_waits_longer_than_the_bound():
    simulation = Simulation(1, LOADS).run()
    for own in (NORMAL, LOW, BACKGROUND):
        waits = simulation.waits(own)
        assert len(waits) > 50
        assert all(wait <= bound for wait, bound in waits)
        assert max(wait / bound for wait, bound in waits) > 0.5, "the bound says something"
    waiting = [task for task in simulation.tasks if task.started is None and task.own is HIGH]
    assert len(waiting) > 300, "high never ran empty"


def test_the_broken_twin_without_promotion_exceeds_it():
    simulation = Simulation(0, LOADS, promotion=False).run()
    for own in (NORMAL, LOW, BACKGROUND):
        late = [wait > bound for wait, bound in simulation.waits(own)]
        assert sum(late) > len(late) / 2
    started = [task for task in simulation.tasks if task.own is BACKGROUND and task.started is not None]
    assert len(started) < 5, "they starve"


def test_critical_can_starve_everything():
    """No task rises to critical, so more critical tasks than the slots can run leave no slot for others."""
    simulation = Simulation(0, SHORT).run()
    late = [task for task in simulation.tasks if task.queued > 1800 and task.own is not CRITICAL]
    assert late
    assert not any(task.started for task in late)
