"""What the index must hold, and what a claim must propose, found by sorting every waiting task."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from queue_app.core.limits import BAND_WIDTH, score
from queue_app.core.priorities import ARRIVAL_BAND, Band, Thresholds, effective_band
from queue_app.core.records import TaskRef
from queue_app.index import Profile
from tests.support.index_state import band_of


@dataclass
class Model:
    """What the index must hold."""

    now: datetime
    waiting: dict[uuid.UUID, TaskRef] = field(default_factory=dict)
    places: dict[uuid.UUID, float] = field(default_factory=dict)  # of what waits; some may have been put long ago
    thresholds: Thresholds = field(default_factory=dict)
    leases: dict[uuid.UUID, TaskRef] = field(default_factory=dict)
    caps: dict[str, int | None] = field(default_factory=dict)  # "" for everything
    paused: set[str] = field(default_factory=set)
    by_arrival: set[str] = field(default_factory=set)

    def room(self, queue: str) -> float:
        """Return how many tasks of the queue may start; ``""`` for everything."""
        if queue in self.paused:
            return 0
        cap = self.caps.get(queue)
        used = sum(1 for task in self.leases.values() if queue in ("", task.queue))
        return float("inf") if cap is None else max(0, cap - used)

    def runs(self, profile: Profile, task: TaskRef) -> bool:
        """Whether workers of the profile can run the task."""
        return (
            task.task_type in profile.task_types
            and (not profile.queues or task.queue in profile.queues)
            and set(task.capabilities) <= set(profile.capabilities)
        )

    def claim(self, profile: Profile, want: int) -> list[uuid.UUID]:
        """Lease what a claim must propose, in order."""
        able = [task for task in self.waiting.values() if self.runs(profile, task)]
        taken: list[uuid.UUID] = []
        for task in sorted(able, key=self.order):
            if len(taken) < want and self.room("") > 0 and self.room(task.queue) > 0:
                self.leases[task.id] = self.waiting.pop(task.id)
                taken.append(task.id)
        return taken

    def order(self, task: TaskRef) -> tuple[float, uuid.UUID]:
        """Return what tasks are claimed by."""
        return self.places[task.id], task.id

    def own(self, task: TaskRef) -> float:
        """Return where a task stands without promotion."""
        return score(ARRIVAL_BAND, task.queued_at) if task.queue in self.by_arrival else task.score

    def effective(self, task: TaskRef) -> float:
        """Return where a task stands by its age."""
        if task.queue in self.by_arrival:
            return self.own(task)
        own = Band(task.priority)
        return task.score - (own - effective_band(own, task.queued_at, self.now, self.thresholds)) * BAND_WIDTH

    def could_start(self, profile: Profile) -> bool:
        """Whether a worker of the profile would be proposed anything."""
        return self.room("") > 0 and any(
            self.runs(profile, task) and self.room(task.queue) > 0 for task in self.waiting.values()
        )

    def push(self, task: TaskRef) -> bool:
        """Put a task at its place unless it is leased; return whether that changed anything."""
        if task.id in self.leases:
            return False
        if task.id in self.waiting and self.effective(task) != self.own(task) and self.rise(task) is not None:
            self.waiting[task.id] = task
            return False
        before = self.places.get(task.id) if task.id in self.waiting else None
        self.waiting[task.id], self.places[task.id] = task, self.effective(task)
        return before != self.places[task.id]

    def rise(self, task: TaskRef) -> Counter[tuple[Band, Band]] | None:
        """Let a task rise that waits at one of its places; return the steps, ``None`` when it does not."""
        if task.id not in self.waiting:
            return None
        place, target = self.places[task.id], self.effective(task)
        if not target <= place <= self.own(task) or (self.own(task) - place) % BAND_WIDTH:
            return None
        self.places[task.id] = target
        return Counter((Band(band), Band(band - 1)) for band in range(band_of(place), band_of(target), -1))
