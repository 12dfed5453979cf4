"""How a worker claims: for its free slots, and ahead of them where tasks are quick."""

from __future__ import annotations

import time
import uuid

from django.db import Error as DatabaseError

from queue_app.index import MAX_CLAIM, Profile
from queue_app.services.claim import claim
from workers.executor import Held
from workers.hands import Hands
from workers.look_ahead import LookAhead
from workers.options import WorkerOptions
from workers.pools.threads import ThreadPool


class Claimer:
    """Fills the pool from the queue, and gives back what would wait too long in here."""

    def __init__(self, options: WorkerOptions, worker_id: uuid.UUID, hands: Hands, pool: ThreadPool) -> None:
        self.hungry = True  # whether the next claim may find something
        self.look_ahead = LookAhead(options.look_ahead_ms, options.concurrency)
        self._options = options
        self._worker_id = worker_id
        self._hands = hands
        self._pool = pool
        self._strays = False  # whether a claim may have been granted without an answer
        self._last_progress = time.monotonic()

    def observe(self, task_type: str, seconds: float) -> None:
        """Learn from an attempt that ended after so many seconds."""
        self.look_ahead.observe(task_type, seconds)
        self._last_progress = time.monotonic()

    def room(self) -> int:
        """Return how many tasks may be claimed: for free slots, and ahead where tasks are quick."""
        room = min(MAX_CLAIM, self._free() + self.look_ahead.allowance())
        most = self._options.max_tasks
        return room if most is None else min(room, most - self._hands.claimed)

    def _free(self) -> int:
        return self._options.concurrency - len(self._hands)

    def claim(self, profile: Profile) -> None:
        """Claim what there is room for, if there may be something; hand it to the pool."""
        free, want = self._free(), self.room()
        if want <= 0 or not self.hungry:
            return
        self.hungry = False  # before the claim: a wake-up call that follows it must not be lost
        try:
            tasks = claim(profile, self._worker_id, want)
        except DatabaseError:
            self._strays = True
            raise
        if not tasks:
            return
        now = time.monotonic()
        if len(tasks) == want:
            self.hungry = True
        if not self._pool.unstarted:  # else what waits has waited since then already
            self._last_progress = now
        held = [Held(task, now) for task in tasks]
        self._hands.take(held)
        ahead = held[max(free, 0) :]
        surplus = [item for item in ahead if not self.look_ahead.is_quick(item.task.task_type)]
        if surplus:  # slow or unknown: somebody else may have a free slot
            refused = {item.task.id for item in surplus}
            held = [item for item in held if item.task.id not in refused]
            for item in surplus:
                self.look_ahead.distrust(item.task.task_type)
        self._pool.submit(held)
        self._hands.put_back(surplus)
        self._hands.give_back()

    def relieve(self) -> None:
        """Give back what waits in here while every slot is busy with something unexpectedly long."""
        if self._pool.unstarted and time.monotonic() - self._last_progress > self.look_ahead.patience:
            for held, seconds in self._pool.running():
                self.look_ahead.observe(held.task.task_type, seconds)
            self._hands.put_back(self._pool.take_unstarted())
            self._hands.give_back()

    def return_strays(self) -> None:
        """Give back what a claim was granted whose answer never arrived: the connection broke in between."""
        if self._strays:
            self._hands.give_back_strays(self._worker_id)
            self._strays = False
