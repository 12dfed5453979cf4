"""How a worker claims: for its free slots, and ahead of them where tasks are quick."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from django.db import Error as DatabaseError

from queue_app import registry
from queue_app.exceptions import IndexUnavailable
from queue_app.index import MAX_CLAIM, Profile
from queue_app.registry import AnyTask
from queue_app.workers import transport
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.in_flight import InFlight
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools.base import Pool
from queue_app.workers.transport import claim

logger = logging.getLogger("taskqueue")

#: A burst waits for what a limit lets start so long after it was given its last task.
BURST_SECONDS = 10.0


class Claimer:
    """Fills the pool from the queue, and gives back what would wait too long in here."""

    def __init__(self, options: WorkerOptions, worker_id: uuid.UUID, in_flight: InFlight, pool: Pool) -> None:
        self.should_claim = True  # whether the next claim may find something
        self.prefetch = Prefetch(options.look_ahead_ms, options.concurrency)
        self._options = options
        self._worker_id = worker_id
        self._in_flight = in_flight
        self._pool = pool
        self._unacknowledged = False  # whether a claim may have been granted without an answer
        self._refill_at: float | None = None  # when (monotonic) a limit lets something start again
        self._last_granted = self._last_progress = time.monotonic()

    def observe(self, task_type: str, seconds: float) -> None:
        """Learn from an attempt that ended after so many seconds."""
        self.prefetch.observe(task_type, seconds)
        self._last_progress = time.monotonic()

    def room(self) -> int:
        """Return for how many slots may be claimed: free ones, and ahead where tasks are quick and take one each."""
        ahead = self.prefetch.allowance() if self._in_flight.slots == len(self._in_flight) else 0
        room = min(MAX_CLAIM, self._free() + ahead)
        most = self._options.max_tasks
        return room if most is None else min(room, most - self._in_flight.claimed)

    def _free(self) -> int:
        return self._options.concurrency - self._in_flight.slots

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
        """Be should_claim when it is time: nobody calls for what a limit lets start."""
        if self.refill_in == 0:
            self.should_claim, self._refill_at = True, None

    def claim(self, profile: Profile) -> None:
        """Claim what there is room for, if there may be something; hand it to the pool."""
        free, want = self._free(), self.room()
        if want <= 0 or not self.should_claim:
            return
        self.should_claim = False  # before the claim: a wake-up call that follows it must not be lost
        try:
            tasks = claim(profile, self._worker_id, want, self._note_refill)
        except (DatabaseError, IndexUnavailable):
            self._unacknowledged = True
            raise
        if not tasks:
            return
        self._last_granted = now = time.monotonic()
        if sum(task.weight for task in tasks) == want:
            self.should_claim = True
        if not self._pool.unstarted:  # else what waits has waited since then already
            self._last_progress = now
        held = [ClaimedAttempt(task, now) for task in tasks]
        self._in_flight.take(held)
        ahead = _beyond(held, free)
        is_heavy = any(task.weight > 1 for task in tasks)  # then what waits in here could take slots that are taken
        surplus = [item for item in ahead if is_heavy or not self.prefetch.is_quick(item.task.task_type)]
        if surplus:  # slow or unknown: somebody else may have a free slot
            refused = {item.task.id for item in surplus}
            held = [item for item in held if item.task.id not in refused]
            for item in surplus:
                self.prefetch.distrust(item.task.task_type)
        self._pool.submit(held)
        self._in_flight.put_back(surplus)
        self._in_flight.give_back()

    def give_back_stalled(self) -> None:
        """Give back what waits in here while every slot is busy with something unexpectedly long."""
        if self._pool.unstarted and time.monotonic() - self._last_progress > self.prefetch.patience:
            for held, seconds in self._pool.running():
                self.prefetch.observe(held.task.task_type, seconds)
            self._in_flight.put_back(self._pool.take_unstarted())
            self._in_flight.give_back()

    def return_unacknowledged(self) -> None:
        """Give back what a claim was granted whose answer never arrived: the connection broke in between."""
        if self._unacknowledged:
            self._in_flight.give_back_unacknowledged(self._worker_id)
            self._unacknowledged = False


def _beyond(held: list[ClaimedAttempt], free: int) -> list[ClaimedAttempt]:
    """Return what does not fit in so many free slots."""
    for position, item in enumerate(held):
        free -= item.task.weight
        if free < 0:
            return held[position:]
    return []


class TaskDiscovery:
    """Keeps the worker's profile, and widens it by types that wait and that the code turns out to have."""

    def __init__(
        self, options: WorkerOptions, worker_id: uuid.UUID, can_run: Callable[[AnyTask], bool] = lambda _task: True
    ) -> None:
        self.requested = False  # whether to look for unknown task types that wait
        self._options = options
        self._can_run = can_run
        self.refused: list[str] = []  # known types that the pool of this worker cannot run
        self._worker_id = worker_id
        self._unlearnable: set[str] = set()  # types whose modules break when imported
        self.profile = self._make_profile()

    def discover(self) -> bool:
        """Look for waiting types that are not known here yet, if curious; return whether some were learnt."""
        if not self.requested:
            return False
        self.requested = False
        learnt = [name for name in sorted(transport.unserved_types(self.profile)) if self._import(name)]
        if learnt:
            before, self.profile = self.profile, self._make_profile()
            transport.change_profile(self._worker_id, before, self.profile)
            logger.info("worker %s learnt %s", self._options.name, ", ".join(learnt))
        return bool(learnt)

    def _import(self, task_type: str) -> bool:
        if task_type in self._unlearnable or task_type in self.refused:
            return False
        try:
            return registry.learn(task_type)
        except Exception:
            logger.exception("the module of %s cannot be imported", task_type)
            self._unlearnable.add(task_type)
            return False

    def _make_profile(self) -> Profile:
        types = registry.known_types()
        self.refused = [name for name in types if not self._can_run(registry.get(name))]
        served = [name for name in types if name not in self.refused]
        return Profile.of(self._options.queues, served, self._options.capabilities, self._options.concurrency)


#: A type that has not run for so many seconds no longer says anything.
FORGET_SECONDS = 60.0
#: Weight of the newest run time in the running mean.
WEIGHT = 0.1
#: The least run time assumed, so that the allowance stays finite.
FLOOR_SECONDS = 0.000_05


class Prefetch:
    """Remembers recent run times by task type."""

    def __init__(self, budget_ms: float, slots: int) -> None:
        self.budget = budget_ms / 1000
        self.slots = slots
        self._means: dict[str, tuple[float, float]] = {}  # type -> (mean seconds, when last run)
        self._unproven: dict[str, float] = {}  # type -> when it was met without having run here

    def observe(self, task_type: str, seconds: float) -> None:
        """Learn from one run; a run slower than the mean counts in full at once."""
        self._unproven.pop(task_type, None)
        mean = self._means.get(task_type, (seconds, 0.0))[0]
        mean = seconds if seconds > 10 * mean else mean + WEIGHT * (seconds - mean)
        self._means[task_type] = (mean, time.monotonic())

    def distrust(self, task_type: str) -> None:
        """Claim nothing ahead until this type has run here, or was not met for a while."""
        self._means.pop(task_type, None)
        self._unproven[task_type] = time.monotonic()

    def allowance(self) -> int:
        """Return how many tasks may be claimed beyond the free slots."""
        if not self.budget or not self._means:
            return 0
        cutoff = time.monotonic() - FORGET_SECONDS
        if any(met >= cutoff for met in self._unproven.values()):
            return 0
        recent = [mean for mean, seen in self._means.values() if seen >= cutoff]
        if not recent:
            self._means.clear()
            return 0
        return min(MAX_CLAIM, int(self.slots * self.budget / max([FLOOR_SECONDS, *recent])))

    def is_quick(self, task_type: str) -> bool:
        """Whether a task of this type may wait in this worker behind others."""
        known = self._means.get(task_type)
        return known is not None and known[0] <= self.budget

    @property
    def patience(self) -> float:
        """Seconds after which tasks that wait for a slot are given back."""
        return max(0.25, 10 * self.budget)
