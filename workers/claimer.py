"""How a worker claims: for its free slots, and ahead of them where tasks are quick."""

from __future__ import annotations

import time
import uuid

from django.db import Error as DatabaseError

from queue_app.index import MAX_CLAIM, Profile
from workers.context import Held
from workers.hands import Hands
from workers.look_ahead import LookAhead
from workers.options import WorkerOptions
from workers.pools.base import Pool
from workers.transport import claim

#: A burst waits for what a limit lets start so long after it was given its last task.
BURST_SECONDS = 10.0


class Claimer:
    """Fills the pool from the queue, and gives back what would wait too long in here."""

    def __init__(self, options: WorkerOptions, worker_id: uuid.UUID, hands: Hands, pool: Pool) -> None:
        self.hungry = True  # whether the next claim may find something
        self.look_ahead = LookAhead(options.look_ahead_ms, options.concurrency)
        self._options = options
        self._worker_id = worker_id
        self._hands = hands
        self._pool = pool
        self._strays = False  # whether a claim may have been granted without an answer
        self._refill_at: float | None = None  # when (monotonic) a limit lets something start again
        self._last_granted = self._last_progress = time.monotonic()

    def observe(self, task_type: str, seconds: float) -> None:
        """Learn from an attempt that ended after so many seconds."""
        self.look_ahead.observe(task_type, seconds)
        self._last_progress = time.monotonic()

    def room(self) -> int:
        """Return for how many slots may be claimed: free ones, and ahead where tasks are quick and take one each."""
        ahead = self.look_ahead.allowance() if self._hands.slots == len(self._hands) else 0
        room = min(MAX_CLAIM, self._free() + ahead)
        most = self._options.max_tasks
        return room if most is None else min(room, most - self._hands.claimed)

    def _free(self) -> int:
        return self._options.concurrency - self._hands.slots

    @property
    def refill_in(self) -> float | None:
        """Seconds until a limit lets something start again, when it is this worker that shall look then."""
        return None if self._refill_at is None else max(0.0, self._refill_at - time.monotonic())

    @property
    def refills_soon(self) -> bool:
        """Whether a limit lets something start again, soon enough after the last task for a burst to wait."""
        return self._refill_at is not None and self._refill_at - self._last_granted <= BURST_SECONDS

    def _note_refill(self, seconds: float) -> None:
        self._refill_at = time.monotonic() + seconds

    def look_at_the_clock(self) -> None:
        """Be hungry when it is time: nobody calls for what a limit lets start."""
        if self.refill_in == 0:
            self.hungry, self._refill_at = True, None

    def claim(self, profile: Profile) -> None:
        """Claim what there is room for, if there may be something; hand it to the pool."""
        free, want = self._free(), self.room()
        if want <= 0 or not self.hungry:
            return
        self.hungry = False  # before the claim: a wake-up call that follows it must not be lost
        try:
            tasks = claim(profile, self._worker_id, want, self._note_refill)
        except DatabaseError:
            self._strays = True
            raise
        if not tasks:
            return
        self._last_granted = now = time.monotonic()
        if sum(task.weight for task in tasks) == want:
            self.hungry = True
        if not self._pool.unstarted:  # else what waits has waited since then already
            self._last_progress = now
        held = [Held(task, now) for task in tasks]
        self._hands.take(held)
        ahead = _beyond(held, free)
        is_heavy = any(task.weight > 1 for task in tasks)  # then what waits in here could take slots that are taken
        surplus = [item for item in ahead if is_heavy or not self.look_ahead.is_quick(item.task.task_type)]
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


def _beyond(held: list[Held], free: int) -> list[Held]:
    """Return what does not fit in so many free slots."""
    for position, item in enumerate(held):
        free -= item.task.weight
        if free < 0:
            return held[position:]
    return []
