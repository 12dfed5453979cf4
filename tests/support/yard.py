"""A yard in which the watchdog looks, workers work, and the test turns the clock: nothing else repairs anything."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import ResponseError

from queue_app.core.records import ClaimedTask, Outcome, WorkerReport
from queue_app.core.states import Status
from queue_app.diagnose.watchdog import CHECK_SECONDS, Watchdog
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import Profile, get_index
from queue_app.models import Task
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.worker import registration as service
from queue_app.services.worker.registration import WorkerIdentity
from queue_app.sql import workers as worker_rows
from tests.support.engine import redis_client

#: A worker claims this long after its last claim even if nobody called it (``workers.background``).
WAIT_SECONDS = 10.0


class YardWorker:
    """A worker that claims when the index calls it, and reports how many slots stayed free."""

    def __init__(self, yard: Yard, kinds: str = "a", *, slots: int = 2, **options: Any) -> None:
        self.id, self.slots, self.holds = uuid.uuid4(), slots, False
        self.profile = Profile.of(options.get("queues", ()), kinds.split(), options.get("offers", ()), slots)
        self.held: list[ClaimedTask] = []
        self.free = 0
        self._yard, self._claimed_at = yard, float("-inf")
        identity = WorkerIdentity(id=self.id, name="w", host="h", pid=1, process_identity="elsewhere", version="1")
        service.register(
            identity, self.profile, concurrency=slots, heartbeat_seconds=10, token_id=options.get("token_id")
        )

    def work(self) -> None:
        """Claim if called, run what was claimed to its end unless it is to be held, and report."""
        if not self.holds:
            self.finish()
        if self._was_called() or self._yard.now - self._claimed_at >= WAIT_SECONDS:
            while self._claim() and not self.holds:
                self.finish()
        worker_rows.heartbeat(self.id, WorkerReport(free_slots=self.free))

    def _was_called(self) -> bool:
        index = get_index()
        keys = (index.keys.wake(str(self.id)), index.keys.tell(str(self.id)))
        with suppress(ResponseError):  # the server refuses writes
            return bool(redis_client().delete(*keys))
        return False

    def _claim(self) -> bool:
        self._claimed_at = self._yard.now
        want = self.slots - sum(task.weight for task in self.held)
        if want <= 0:
            self.free = 0
            return False
        try:
            found = self._try_claim(want)
        except (IndexNotReady, IndexUnavailable):
            found = []
        self.held += found
        self.free = want - sum(task.weight for task in found)
        return bool(found)

    def _try_claim(self, want: int) -> list[ClaimedTask]:
        try:
            return claim(self.profile, self.id, want)
        except UnknownProfile:
            service.register_in_index(self.profile, self.id)
            return claim(self.profile, self.id, want)

    def finish(self) -> None:
        """Complete what it holds."""
        if self.held:
            now = datetime.now(UTC)
            finish([Outcome(task, now, now) for task in self.held])
            self.held = []


class Yard:
    """The watchdog, workers, and a clock that only ``wait`` turns."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.watchdog = Watchdog(lambda: self.now)
        self.workers: list[YardWorker] = []
        self.jobs: Sequence[Any] = ()
        self.each_look: Callable[[], object] = lambda: None

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic() + self._ahead

    def of_next_leader(self) -> Yard:
        """Return the same yard at the same time, with the watchdog of another process."""
        yard = Yard()
        yard._ahead, yard.workers = self._ahead, self.workers
        return yard

    def hire(self, kinds: str = "a", **options: Any) -> YardWorker:
        """Add a worker, which looks for work at once."""
        worker = YardWorker(self, kinds, **options)
        self.workers.append(worker)
        worker.work()
        return worker

    def look(self) -> None:
        """Let the workers work and the watchdog look."""
        for worker in self.workers:
            worker.work()
        self.each_look()
        self.watchdog.run_once(self.jobs)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a look every ``CHECK_SECONDS``."""
        until = self.now + seconds
        while self.now < until:
            self._ahead += CHECK_SECONDS
            self.look()

    def until(self, condition: Callable[[], bool], most: float = 30.0) -> float:
        """Let time pass until the condition holds; return the seconds, at most ``most``."""
        began = self.now
        while not condition():
            assert self.now - began <= most, "it does not come to pass"
            self._ahead += CHECK_SECONDS
            self.look()
        return self.now - began

    @property
    def kinds(self) -> list[str]:
        """The kinds of the stalls that the watchdog knows."""
        return [stall.kind for stall in self.watchdog.stalls.values()]


def all_done() -> bool:
    """Whether every task has completed."""
    return not Task.objects.exclude(status=Status.COMPLETED).exists()
