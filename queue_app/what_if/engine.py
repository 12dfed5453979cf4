"""Run a plan: push, claim, release and promote by the real scripts, in simulated time.

A turn gathers the events of a short time (the *resolution*), sends what they mean to the index in one round trip, and
lets the workers claim. A task starts when it was queued or when its slot became free, whichever came last, so the
resolution does not add to waits. Workers with the same abilities claim as one.
"""

import heapq
import math
import struct
from array import array
from collections.abc import Callable
from itertools import batched
from typing import Any, Final

from queue_app.core.ids import uuid7
from queue_app.core.limits import BAND_WIDTH, Limits
from queue_app.core.priorities import Band, rises
from queue_app.exceptions import SimulationRefused
from queue_app.index import MAX_CLAIM, Profile
from queue_app.index.limits import limit_arguments
from queue_app.what_if.index import SimulatedIndex
from queue_app.what_if.plan import NEVER, SECOND, Plan, Starts

#: Up to this number of tasks each event is a turn. A larger load has about ``PER_TURN`` tasks in each turn, as far as
#: that stays below this share of the median run time: a slot may wait for a task that comes later in the turn.
EXACT_TASKS: Final = 50_000
PER_TURN: Final = 20
RESOLUTION_SHARE: Final = 0.1
#: From this number of tasks on, turns may be longer: a million short tasks then take about 0.7 of the time.
MANY_TASKS: Final = 250_000
MANY_SHARE: Final = 0.25
#: Interval of promotions, as of the upkeep job.
PROMOTE: Final = 60 * SECOND
#: Time after the end in which waiting tasks may still start: as long as the plan, at least this.
PATIENCE: Final = 6 * 3600 * SECOND
#: Maximum entries of one call of a script.
BATCH: Final = 500
#: Simulated time lies this far ahead at least: the scripts let keys expire by the real clock.
AHEAD: Final = 86_400 * SECOND
#: The limits have been in force for this long when the simulation begins.
LONG_KNOWN: Final = 40 * 86_400 * SECOND
REPORT_TURNS: Final = 500


class _Crew:
    """The workers of one profile as one worker: the times since which its slots are free."""

    def __init__(self, profile: Profile) -> None:
        self.profile, self.worker = profile, uuid7()
        self.free: list[int] = []
        self.owed = 0  # slots to take away when they become free
        self.slots = 0

    def resize(self, at: int, slots: int) -> None:
        self.slots += slots
        self.owed -= min(slots, 0)
        for _ in range(max(slots, 0)):
            self.give(at)
        while self.owed and self.free:
            heapq.heappop(self.free)
            self.owed -= 1

    def give(self, at: int) -> None:
        if self.owed:
            self.owed -= 1
        else:
            heapq.heappush(self.free, at)


class Engine:
    """One run of one plan."""

    def __init__(
        self, index: SimulatedIndex, plan: Plan, *, real_now: int, report: Callable[[float], None] = lambda _: None
    ) -> None:
        self.index, self.plan, self.report = index, plan, report
        load = plan.load
        first = min(plan.begin, min(load.queued_at, default=plan.begin))
        self.shift = max(0, math.ceil((real_now + AHEAD + LONG_KNOWN - first) / AHEAD)) * AHEAD  # whole days
        self.resolution = 0
        if len(load) > EXACT_TASKS:
            middle = sorted(load.runs[:: len(load) // 1000])[500]
            share = MANY_SHARE if len(load) > MANY_TASKS else RESOLUTION_SHARE
            self.resolution = min(round(middle * share), (plan.end - first) * PER_TURN // len(load))
        self.is_heavy = any(kind.weight > 1 for kind in load.kinds)
        self.lanes = self._lanes()
        self.order = sorted(range(len(load)), key=load.queued_at.__getitem__)
        self.started, self.stamps = array("q", [NEVER]) * len(load), array("q", [0]) * len(load)
        self.crew_of: array[int] = array("h", [0]) * len(load)
        self.ends: list[tuple[int, int]] = []
        self.waiting = self.busy = self.offered = self.turns = self.next_arrival = 0
        self.opens_at: int | None = None  # when time alone opens a gate
        self.has_rates = any(
            limits is not None and (limits.rate_count or limits.min_delay_seconds or limits.throttled_until)
            for limits in [*plan.limits.values(), *(change.limits for change in plan.changes)]
        )
        self.crews: list[_Crew] = []
        self.staff: list[tuple[int, int, int]] = []  # (time, crew, slots)
        self.changes = sorted(plan.changes, key=lambda change: change.at)
        self.rising = [(Band(band), tuple(rises(Band(band), plan.thresholds))) for band in Band]
        self.in_band: dict[int, list[int]] = {band.value: [] for band, steps in self.rising if steps}
        self.risen = {(band, step.after): 0 for band, steps in self.rising for step in steps}
        self.promote_at = first + PROMOTE
        self.clock = first

    def _lanes(self) -> list[str]:
        """Return the lane of each kind.

        Tasks that pass the same limited gates, and that the same crews can run, start in the order of their places. So
        they share a lane: the scripts do most of their work by lane. Users and keys count where limits or turns do.
        """
        plan, shared = self.plan, {}  # type: ignore[var-annotated]
        limits = [*plan.limits.items(), *((change.gate, change.limits) for change in plan.changes)]
        limited = [gate for gate, each in limits if each not in (None, Limits())]
        lanes = []
        for kind in plan.load.kinds:
            gates, order = [gate for gate in limited if kind.passes(gate)], plan.limits.get(f"q:{kind.queue}", Limits())
            able = [crew.can_run(kind) for crew in plan.crews]
            user = kind.user if order.by_user else ""  # as ``lua/lib/places.lua``
            key = kind.key if order.fair_by == "key" or any(gate.startswith("k:") for gate in gates) else ""
            lane = kind._replace(user=user).lane
            lanes.append(lane if self.is_heavy else shared.setdefault((*gates, *able, user, key), lane))
        return lanes

    def run(self) -> Starts:
        """Run to the end of the load, or until no task can start."""
        self._open()
        plan, load = self.plan, self.plan.load
        horizon = plan.end + max(plan.end - plan.begin, PATIENCE)
        while True:
            first = self._next_event()
            if first is None or first > horizon:
                break
            before = self.clock
            self.clock = max(self.clock, first + self.resolution)
            used = sum(crew.slots - len(crew.free) for crew in self.crews)
            slots = sum(crew.slots for crew in self.crews)
            self._measure(before, used, slots)
            self._turn(first)
            self.turns += 1
            if self.turns % REPORT_TURNS == 0:
                self.report((2 * self.next_arrival - self.waiting) / max(1, 2 * len(load)))
        drained_at, self.clock = self.clock, max(self.clock, plan.end)
        self._measure(drained_at, 0, sum(crew.slots for crew in self.crews))
        is_done = self.waiting == 0 and self.next_arrival == len(load)
        return Starts(
            self.started, self.busy, self.offered, drained_at if is_done else None, self.resolution, self.turns
        )

    def _measure(self, before: int, used: int, slots: int) -> None:
        lasts = max(0, min(self.clock, self.plan.end) - max(before, self.plan.begin))
        self.busy += used * lasts
        self.offered += slots * lasts

    def _open(self) -> None:
        """Begin a generation, copy the limits and register the workers."""
        index, plan = self.index, self.plan
        index.clock = self.clock + self.shift - LONG_KNOWN  # a rate that is new to the index begins empty
        index.begin_generation(1)
        index.copy_limits(plan.limits.items())
        index.set_thresholds(plan.thresholds)
        index.finish_generation(1)
        index.clock = self.clock + self.shift
        for place, crew in enumerate(plan.crews):
            member = _Crew(Profile.of(crew.queues, crew.task_types, crew.capabilities))
            index.register(member.profile, member.worker)
            self.crews.append(member)
            self.staff += [(at, place, slots) for at, slots in crew.changes]
        heapq.heapify(self.staff)

    def _next_event(self) -> int | None:
        times = [self.ends[0][0]] if self.ends else []
        if self.next_arrival < len(self.order):
            times.append(self.plan.load.queued_at[self.order[self.next_arrival]])
        if self.waiting or times:
            times += [self.staff[0][0]] if self.staff else []
            times += [self.changes[0].at] if self.changes else []
        if self.waiting:
            times += [self.promote_at] if self.in_band else []
            times += [self.opens_at] if self.opens_at is not None else []
        return min(times, default=None)

    # -- a turn ------------------------------------------------------------------

    def _turn(self, first: int) -> None:
        """Apply the events up to the clock, and let the workers claim.

        If all slots were in use, the tasks that waited before the turn claim before those that arrive in it. Otherwise
        an urgent task that arrives late in a turn would take a slot that was free since its beginning.
        """
        self.index.clock = self.clock + self.shift
        is_short = self.resolution > 0 and self.waiting > 0 and not any(crew.free for crew in self.crews)
        commands = [*self._releases(), *self._limits(), *self._promotions()]
        while self.staff and self.staff[0][0] <= self.clock:
            at, place, slots = heapq.heappop(self.staff)
            self.crews[place].resize(at, slots)
        if is_short:
            self._send(commands, first)
            commands = []
        commands += self._pushes()
        if commands or not is_short:
            self._send(commands, first)

    def _send(self, commands: list[tuple[Any, ...]], first: int) -> None:
        """Send the commands, and the claims of all workers with free slots."""
        index = self.index
        claims: list[int] = []
        if self.waiting:
            turn = self.turns % max(1, len(self.crews))
            for place in [*range(turn, len(self.crews)), *range(turn)]:
                if free := len(self.crews[place].free):
                    claims.append(place)
                    commands.append(self._claim(place, min(free, MAX_CLAIM)))
        if self.has_rates:
            commands.append(index.next_refill())
        if not commands:
            return
        replies = index.send(commands)
        if self.has_rates:
            opens = self.index.refill_at(replies.pop())
            opens = None if opens is None else opens - self.shift
            self.opens_at = opens if opens is not None and opens > self.clock else None
        for place, reply in zip(claims, replies[len(replies) - len(claims) :], strict=True):
            while self._start(place, reply, first) == MAX_CLAIM and self.crews[place].free:
                reply = index.send([self._claim(place, min(len(self.crews[place].free), MAX_CLAIM))])[0]  # noqa: PLW2901 - more of the same

    def _claim(self, place: int, want: int) -> tuple[Any, ...]:
        crew = self.crews[place]
        return self.index.command("claim", crew.profile.id, str(crew.worker), want, 0, int(self.is_heavy))

    def _start(self, place: int, reply: list[Any], first: int) -> int:
        """Start the proposed tasks; return how many."""
        if reply[0] != b"ready":
            raise SimulationRefused(f"The simulated index is {reply[0].decode()}: its turns are too many to count.")
        load, crew, stamp = self.plan.load, self.crews[place], int(reply[2])
        ids = reply[5::2]
        # The earliest slot for the task that came first: were it given to a task that comes later in the turn, it would
        # stand idle until then.
        for task in sorted(map(int.from_bytes, ids), key=load.queued_at.__getitem__):
            freed = [heapq.heappop(crew.free) for _ in range(load.kinds[load.kind[task]].weight)]
            at = max(load.queued_at[task], freed[-1], first)
            self.started[task], self.stamps[task], self.crew_of[task] = at, stamp, place
            heapq.heappush(self.ends, (at + load.runs[task] + load.turnaround, task))
        self.waiting -= len(ids)
        return len(ids)

    def _releases(self) -> list[tuple[Any, ...]]:
        load, by_lane = self.plan.load, {}  # type: ignore[var-annotated]
        while self.ends and self.ends[0][0] <= self.clock:
            at, task = heapq.heappop(self.ends)
            kind = load.kind[task]
            by_lane.setdefault(self.lanes[kind], []).append(task)
            for _ in range(load.kinds[kind].weight):
                self.crews[self.crew_of[task]].give(at)
        groups: list[list[Any]] = []
        for lane, tasks in by_lane.items():
            for some in batched(tasks, BATCH):
                pairs = [part for task in some for part in (task.to_bytes(16), self.stamps[task])]
                groups.append([lane, len(some), *pairs])
        return self._together("release", groups, 2)

    def _limits(self) -> list[tuple[Any, ...]]:
        commands = []
        while self.changes and self.changes[0].at <= self.clock:
            _, gate, limits = self.changes.pop(0)
            commands.append(self.index.command("set_limits", *limit_arguments([(gate, limits)])))
        return commands

    def _pushes(self) -> list[tuple[Any, ...]]:
        load, order, at = self.plan.load, self.order, self.next_arrival
        by_lane: dict[str, list[int]] = {}
        while at < len(order) and load.queued_at[order[at]] <= self.clock:
            task = order[at]
            by_lane.setdefault(self.lanes[load.kind[task]], []).append(task)
            band = load.kinds[load.kind[task]].band
            if band in self.in_band:
                self.in_band[band].append(task)
            at += 1
        self.waiting += at - self.next_arrival
        self.next_arrival = at
        return self._placed("push", by_lane)

    def _placed(self, script: str, by_lane: dict[str, list[int]]) -> list[tuple[Any, ...]]:
        """Return the calls of a script that takes lanes, ids and own places."""
        load, ahead = self.plan.load, self.shift / 1000
        groups: list[list[Any]] = []
        for lane, tasks in by_lane.items():
            for some in batched(tasks, BATCH):
                places = [
                    load.kinds[load.kind[task]].band * BAND_WIDTH + load.queued_at[task] / 1000 + ahead for task in some
                ]
                ids = b"".join([task.to_bytes(16) for task in some])
                groups.append([lane, ids, struct.pack(f">{len(some)}d", *places)])
        return self._together(script, groups, 0)

    def _together(self, script: str, groups: list[list[Any]], tasks_from: int) -> list[tuple[Any, ...]]:
        """Return as few calls of a script as possible for groups of arguments, one group for each lane."""
        commands: list[tuple[Any, ...]] = []
        arguments, size = [], 0
        for group in groups:
            arguments += group
            size += (len(group) - tasks_from) // 2 if tasks_from else len(group[1]) // 16
            if size >= BATCH:
                commands.append(self.index.command(script, *arguments))
                arguments, size = [], 0
        return [*commands, self.index.command(script, *arguments)] if arguments else commands

    def _promotions(self) -> list[tuple[Any, ...]]:
        """Lift the tasks whose age has reached a threshold since the last promotion."""
        if self.clock < self.promote_at:
            return []
        self.promote_at = self.clock - self.clock % PROMOTE + PROMOTE
        load, by_lane = self.plan.load, {}  # type: ignore[var-annotated]
        for band, steps in self.rising:
            for step in steps:
                tasks, at = self.in_band[band], self.risen[band, step.after]
                until = self.clock - round(step.after * SECOND)
                while at < len(tasks) and load.queued_at[tasks[at]] <= until:
                    if self.started[tasks[at]] == NEVER:
                        by_lane.setdefault(self.lanes[load.kind[tasks[at]]], {})[tasks[at]] = True
                    at += 1
                self.risen[band, step.after] = at
        return self._placed("promote", {lane: list(tasks) for lane, tasks in by_lane.items()})
