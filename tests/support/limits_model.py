"""What a claim must propose under limits, found by asking every gate of every waiting task."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from queue_app.core.limits import EVERYTHING, Limits
from queue_app.core.priorities import Band
from queue_app.core.records import TaskRef
from queue_app.index import Profile

#: How long a reservation lasts without another claim of its worker (µs).
RESERVED = 30_000_000
START = 2_000_000_000_000_000  # years ahead, so that nothing which lasts until an instant has lapsed already


@dataclass
class Bucket:
    """What of a rate is used: so many tokens at the time ``at``, each of which lasts ``each`` (µs)."""

    at: int
    used: float
    each: float
    next_at: float

    def used_now(self, now: int) -> float:
        """Return how many tokens are used now."""
        return max(0.0, self.used - (now - self.at) / self.each)


@dataclass
class TurnOver:
    """A turn-over: the tasks that were offered, the leases of those and of the new tasks, and the caps at its claim."""

    offered: frozenset[uuid.UUID]
    old: set[uuid.UUID]
    new: set[uuid.UUID]
    caps: dict[str, float]
    is_committed: bool = False


@dataclass
class Model:
    """What waits, what runs, and what every gate allows."""

    now: int = START
    waiting: dict[uuid.UUID, TaskRef] = field(default_factory=dict)
    leases: dict[uuid.UUID, TaskRef] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    buckets: dict[tuple[str, int], Bucket] = field(default_factory=dict)
    turns: dict[tuple[str, Band, str], float] = field(default_factory=dict)
    turn_now: dict[tuple[str, Band], float] = field(default_factory=dict)
    reservations: dict[str, tuple[uuid.UUID, int]] = field(default_factory=dict)  # lane -> worker, until (µs)
    holder: dict[uuid.UUID, uuid.UUID] = field(default_factory=dict)  # leased task -> worker
    turn_overs: dict[uuid.UUID, TurnOver] = field(default_factory=dict)  # worker -> the last one
    offered: frozenset[uuid.UUID] = frozenset()  # while a turn-over claims: its slots, and all leases before it
    before: frozenset[uuid.UUID] = frozenset()

    def gates(self, task: TaskRef) -> Iterator[str]:
        """Yield every gate that the task passes."""
        yield from (EVERYTHING, "q:" + task.queue, "t:" + task.task_type)
        if task.concurrency_key:
            yield "k:" + task.concurrency_key
        if task.user and self.limits.get("q:" + task.queue, Limits()).max_concurrent_per_user:
            yield f"u:{task.queue}:{task.user}"

    def policy(self, gate: str) -> tuple[Limits, str]:
        """Return the limits of a gate, and whose they are."""
        if gate[0] == "u":
            cap = self.limits["q:" + gate.split(":")[1]].max_concurrent_per_user
            return Limits(max_concurrent=cap), gate
        own, owner = self.limits.get(gate, Limits()), gate
        family = ":".join(gate.split(":", 2)[:2])
        if gate[0] == "k" and family != gate:
            general = self.limits.get(family, Limits())
            later = max(filter(None, (own.throttled_until, general.throttled_until)), default=None)
            paused = own.paused or general.paused
            if not (own.max_concurrent is not None or own.rate_count or own.min_delay_seconds):
                own, owner = general, family
            own = replace(own, paused=paused, throttled_until=later)
        return own, owner

    def bucket(self, gate: str) -> Bucket:
        """Return what of a gate's rate is used; one that was never used was empty when its limit began."""
        own, owner = self.policy(gate)
        since = self.since[owner]
        found = self.buckets.get((gate, since))
        if found is None:
            each = own.rate_seconds * 1e6 / own.rate_count if own.rate_count else 1.0
            used = float(own.rate_burst or own.rate_count or 0)
            found = Bucket(since, used, each, since + (own.min_delay_seconds or 0) * 1e6)
        return found

    def room(self, gate: str) -> float:
        """Return how many may start that pass the gate."""
        own, _ = self.policy(gate)
        if own.paused or (own.throttled_until and own.throttled_until.timestamp() * 1e6 > self.now):
            return 0
        used = self.used(gate)
        room = math.inf if own.max_concurrent is None else max(0, own.max_concurrent - used)
        if own.rate_count:
            tokens = (own.rate_burst or own.rate_count) - self.bucket(gate).used_now(self.now)
            room = min(room, max(0, math.floor(tokens + 1e-9)))
        if own.min_delay_seconds:
            room = min(room, 1 if self.bucket(gate).next_at <= self.now else 0)
        return room

    def behind(self, gate: str) -> set[uuid.UUID]:
        """Return the leased tasks behind a gate."""
        return {task.id for task in self.leases.values() if gate in self.gates(task)}

    def used(self, gate: str) -> int:
        """Return how many slots of a gate a claim counts: all leases.

        A turn-over counts its own as free. Where there are more than the cap allows, it counts the most that can run:
        of each other turn-over, only the old tasks or only the new ones.
        """
        behind = self.behind(gate)
        offered = behind & self.offered
        if not offered or len(behind & self.before) <= (self.policy(gate)[0].max_concurrent or 0):
            return len(behind - offered)
        behind -= offered
        most = 0
        for each in self.turn_overs.values():
            if not each.old & self.offered:
                most += max(len(behind & each.old), len(behind & each.new))
                behind -= each.old | each.new
        return len(behind) + most

    def executing(self) -> dict[uuid.UUID, TaskRef]:
        """Return the tasks that run by their rows."""
        idle = [each.old if each.is_committed else each.new for each in self.turn_overs.values()]
        return {task_id: task for task_id, task in self.leases.items() if not any(task_id in ids for ids in idle)}

    def end(self, task_id: uuid.UUID) -> TaskRef:
        """End a lease."""
        for each in self.turn_overs.values():
            each.old.discard(task_id)
            each.new.discard(task_id)
        del self.holder[task_id]
        return self.leases.pop(task_id)

    def start(self, task: TaskRef, worker: uuid.UUID) -> None:
        """Lease a task to a worker, and spend a token of each of its gates."""
        del self.waiting[task.id]
        self.leases[task.id], self.holder[task.id] = task, worker
        for gate in self.gates(task):
            own, owner = self.policy(gate)
            if own.rate_count or own.min_delay_seconds:
                before = self.bucket(gate)
                each = own.rate_seconds * 1e6 / own.rate_count if own.rate_count else before.each
                next_at = self.now + own.min_delay_seconds * 1e6 if own.min_delay_seconds else before.next_at
                used = before.used_now(self.now) + bool(own.rate_count)
                self.buckets[gate, self.since[owner]] = Bucket(self.now, used, each, next_at)
        fair = self.limits.get("q:" + task.queue, Limits())
        if fair.fair_by:
            who, band = self.turner(task), Band(task.priority)
            begins = self.turn(task)
            self.turn_now[task.queue, band] = begins
            self.turns[task.queue, band, who] = begins + 1000 / fair.shares.get(who, 1.0)

    def turner(self, task: TaskRef) -> str:
        """Return who takes a turn with the task."""
        return task.concurrency_key if self.limits["q:" + task.queue].fair_by == "key" else task.user

    def turn(self, task: TaskRef) -> float:
        """Return when it has it."""
        band = Band(task.priority)
        now = self.turn_now.get((task.queue, band), 0.0)
        return max(now, self.turns.get((task.queue, band, self.turner(task)), 0.0))

    def runs(self, profile: Profile, task: TaskRef) -> bool:
        """Whether workers of the profile can run the task."""
        return (
            task.task_type in profile.task_types
            and (not profile.queues or task.queue in profile.queues)
            and task.weight <= (profile.slots or 1000)
        )

    def lane(self, task: TaskRef) -> str:
        """Return the task's lane; it names the user only where the queue keeps its users apart."""
        limits = self.limits.get("q:" + task.queue, Limits())
        return task.lane if limits.by_user else replace(task, user="").lane

    def holders(self) -> dict[str, uuid.UUID]:
        """Return the reserved lanes, each with the worker that drains for its first task."""
        return {lane: worker for lane, (worker, until) in self.reservations.items() if until > self.now}

    def end_reservations(self, worker: uuid.UUID) -> None:
        """End what a worker has reserved."""
        self.reservations = {lane: held for lane, held in self.reservations.items() if held[0] != worker}

    def next_of(self, profile: Profile, worker: uuid.UUID, slots: int) -> list[TaskRef]:
        """Return the next task of each queue that has one; heavier ones than ``slots`` only where no other drains.

        A turn-over drains for none.
        """
        holders = self.holders()
        found: dict[str, list[TaskRef]] = {}
        for task in self.waiting.values():
            is_drained = not self.offered and holders.get(self.lane(task), worker) == worker
            is_passed = task.weight > slots and not is_drained
            if self.runs(profile, task) and not is_passed and all(self.room(gate) > 0 for gate in self.gates(task)):
                found.setdefault(task.queue, []).append(task)
        return [self.first_of(tasks, worker) for tasks in found.values()]

    def first_of(self, tasks: list[TaskRef], worker: uuid.UUID) -> TaskRef:
        """Return the task of one queue that the worker claims first."""
        if not self.limits.get("q:" + tasks[0].queue, Limits()).fair_by:
            return min(tasks, key=lambda task: (task.score, task.id))
        firsts: dict[str, TaskRef] = {}
        for task in sorted(tasks, key=lambda task: (task.score, task.id)):
            firsts.setdefault(self.turner(task), task)
        holders = self.holders()
        return min(
            firsts.values(),
            key=lambda task: (
                task.priority,
                holders.get(self.lane(task)) != worker,
                self.turn(task),
                self.turner(task),
            ),
        )
