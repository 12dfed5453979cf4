"""The index of a project without Redis: lanes in PostgreSQL. The rows propose, and the same rows decide.

An executing row is a slot in use, and a waiting row is an entry. So there are no leases to release or to restore, no
entries to remove, and no tasks to move when they are promoted: a claim reads all of that from the tasks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final, Never

from queue_app import conf
from queue_app.core.events import Run, counted
from queue_app.core.limits import BAND_WIDTH, parse_lane, queued_at_of
from queue_app.core.priorities import Band, Risen, Thresholds
from queue_app.core.records import Entry, Lease, PackedLane, Proposal, TaskRef
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Generation, Index, IndexStats, Profile, WorkerMessage, redis_index, redis_is_away
from queue_app.index.keys import Placement
from queue_app.index.limits import GateLimits
from queue_app.index.stats import QueueDepth
from queue_app.index.streams import RequestStream
from queue_app.rows import claim, counting, gates, lanes, look, wake
from queue_app.rows.tables import ask, translated
from queue_app.services.read.stats import depths_of_rows, nothing
from queue_app.sql import locks
from queue_app.sql.database import clock

#: While Redis is away, the claims of a process find tasks this often (s) that were pushed to Redis.
NAME_SECONDS: Final = lanes.RECENT_SECONDS / 2
NEEDS_REDIS = f"are a stream in Redis, which this project does not use for the queue (INDEX is {conf.ROWS!r})."


class RowsIndex(Index):
    """The index in PostgreSQL; every public method of ``Index`` has its own form here."""

    way: ClassVar = conf.ROWS

    def __init__(self) -> None:
        self.alias = conf.get().database_alias
        self._counts = counting.Counts()
        self._name_at = 0.0  # monotonic

    # -- tasks ----------------------------------------------------------------

    def push(self, tasks: Iterable[TaskRef]) -> int:
        """Name the lanes of queued tasks, and call a worker; return how many lanes changed."""
        return self._push([task.entry for task in tasks])

    def push_lanes(self, lanes: Iterable[PackedLane]) -> int:
        """Nothing to do: a rebuild reads the lanes itself."""
        return 0

    def misplaced(self, _lanes: Iterable[PackedLane] = ()) -> list[uuid.UUID]:
        """Return the first tasks of the lanes that claims would not find."""
        return lanes.misplaced()

    def claim(  # noqa: PLR0913 - the parts of a claim
        self,
        profile: Profile,
        worker_id: uuid.UUID,
        want: int,
        *,
        register_idle: bool = True,
        reserve: bool = True,
        exchange: Sequence[Lease] = (),
    ) -> Proposal:
        """Grant tasks for up to ``want`` slots of a worker.

        A worker is called while it waits, and a slot is free once its row has ended, so ``register_idle`` and
        ``exchange`` say nothing here. Raises ``IndexNotReady`` until a rebuild has finished, and database errors.
        """
        if self._counts.is_due:  # here, because the thread that waits for calls has no connection
            self._counts.write()
        if redis_is_away.is_set() and time.monotonic() >= self._name_at:  # no scheduler may do it
            self._name_at = time.monotonic() + NAME_SECONDS
            lanes.name_recent()
        return claim.claim(profile, worker_id, want, reserve=reserve)

    def remove(self, _tasks: Iterable[TaskRef]) -> int:
        """Nothing to do."""
        return 0

    def remove_entries(self, _entries: Iterable[tuple[str, uuid.UUID]]) -> int:
        """Nothing to do."""
        return 0

    def promote(self, _tasks: Iterable[TaskRef]) -> list[Risen]:
        """Nothing to do: a claim reads ages."""
        return []

    # -- notifications and events -----------------------------------------------

    def notify(self, entries: Sequence[Entry], events: Sequence[Run] = ()) -> None:
        """Count events, name the lanes of queued tasks, and call a worker."""
        self._counts.add(events)
        if entries:
            self._push(entries)
        elif self._counts.is_due:
            self._counts.write()

    def _push(self, entries: Sequence[Entry]) -> int:
        """Name lanes, or push the tasks to Redis if claims have returned to it."""
        changed, is_in_force = lanes.push(entries, *self._counts.take())
        if not is_in_force and _returns():
            redis_index().notify(entries)
        return changed

    def restart_counters(self) -> None:
        """Delete the counters of the cluster."""
        counting.restart()

    def notify_and_locate(self, entry: Entry, events: Sequence[Run] = ()) -> int | None:
        """Notify of one task; return its position."""
        self.notify((entry,), events)
        return self._position(entry)

    def flush(self) -> None:
        """Write what this process has counted."""
        self._counts.write()

    def publish(self, events: Iterable[Run]) -> int:
        """Count events: there is no stream."""
        self._counts.add(events)
        self._counts.write()
        return 0

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the counters of the cluster."""
        self.notify((), [counted(counts)])

    def read_events(self, after_id: str, *, count: int, block_ms: int | None = None) -> Never:
        """Raise ``IndexUnavailable``: there is no stream."""
        raise IndexUnavailable(f"Events {NEEDS_REDIS}")

    def last_event_id(self) -> Never:
        """Raise ``IndexUnavailable``: there is no stream."""
        raise IndexUnavailable(f"Events {NEEDS_REDIS}")

    @property
    def requests(self) -> RequestStream:
        """Raise ``IndexUnavailable``: there is no stream."""
        raise IndexUnavailable(f"Requests of other services {NEEDS_REDIS}")

    # -- generations, locks -----------------------------------------------------

    def generation(self) -> Generation:
        """Return the generation of the tables; ``missing`` after a crash of PostgreSQL has emptied them."""
        return Generation(*look.generation())

    def disown(self) -> None:
        """Nothing to do: the tables belong to this database."""

    def lock(self, name: str, token: str, seconds: float) -> bool:
        """Take or renew a lock, or release it with 0 seconds; return whether ``token`` holds it."""
        with translated("lock"):
            return locks.hold(name, token, seconds)

    def count_calls(self, name: str, calls: int, seconds: int) -> int:
        """Add to a counter that expires after ``seconds``; return it."""
        return counting.count_calls(name, calls, seconds)

    # -- questions --------------------------------------------------------------

    def position(self, task: TaskRef) -> int | None:
        """Return the position of a waiting task in its queue, from 1; ``None`` if it is far behind."""
        return look.position(task.id, task.queue, Band(task.priority), task.queued_at)

    def _position(self, entry: Entry) -> int | None:
        band = Band(int(entry.score // BAND_WIDTH))
        return look.position(entry.id, parse_lane(entry.lane).queue, band, queued_at_of(entry.score))

    def future_position(self, entry: Entry) -> int:
        """Return the position that a task will have once it is stored; far behind, about that."""
        return self._position(entry) or look.COUNTED

    def explain(self, task: TaskRef) -> Placement:
        """Return the gates that a task must pass to start."""
        return gates.placement(self.generation().state, task)

    def stats(self) -> IndexStats:
        """Count all queues, and return the counters."""
        self.flush()
        number, state, _ = self.generation()
        depths = sorted(depths_of_rows().values(), key=lambda depth: depth.queue)
        return IndexStats(number, state, counting.totals(), depths)

    def depth(self, queue: str) -> QueueDepth:
        """Count one queue."""
        return depths_of_rows(queue).get(queue) or nothing(queue)

    def lane_sizes(self, queue: str | None = None) -> Iterator[tuple[str, int]]:
        """Yield each address in which tasks wait, of one queue or of all, with the number of its tasks."""
        return look.lane_sizes(queue)

    def entries(self, _lane: str, _cursor: int = 0) -> tuple[int, list[tuple[str, uuid.UUID]]]:
        """Return no entries: ``lane_sizes`` names addresses."""
        return 0, []

    def now(self) -> int:
        """Return PostgreSQL's time in µs."""
        return round(clock().timestamp() * 1e6)

    def ping(self) -> None:
        """Raise ``IndexUnavailable`` unless PostgreSQL answers."""
        ask("ping", ("SELECT 1", []))

    # -- slots: the executing rows ------------------------------------------------

    def release(self, leases: Iterable[Lease]) -> int:
        """Call a worker for what waits for these slots, unless the worker that had them can claim it."""
        freed = list(leases)
        if not freed:
            return 0
        _, is_in_force = wake.wake([lease.id for lease in freed])
        return 0 if is_in_force or not _returns() else redis_index().release(freed)

    def post_release(self, leases: Iterable[Lease]) -> None:
        """Do as ``release``."""
        self.release(leases)

    def restore_leases(self, leases: Iterable[Lease]) -> int:
        """Nothing to do."""
        return 0

    def missing_leases(self, leases: Iterable[Lease]) -> list[uuid.UUID]:
        """Return none."""
        return []

    def last_proposal(self, worker_id: uuid.UUID) -> list[Lease]:
        """Return none: what was not granted was not taken."""
        return []

    def leased(self, cursor: int) -> tuple[int, list[uuid.UUID]]:
        """Return all executing tasks."""
        return 0, look.executing()

    # -- workers ------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Return the queues in which tasks wait."""
        return look.queues()

    def register(self, profile: Profile, worker_id: uuid.UUID) -> None:
        """Nothing to do: a claim names the profile."""

    def unregister(self, profile_id: str, worker_id: uuid.UUID) -> None:
        """Write what the worker's process has counted; listen no longer for a worker that ends."""
        self.flush()
        wake.forget(worker_id)

    def unserved_types(self, profile: Profile) -> set[str]:
        """Return the task types that wait in the profile's queues but are not among its types."""
        return look.unserved_types(profile.queues, profile.task_types)

    def wait_for_call(self, worker_id: uuid.UUID, timeout: float) -> WorkerMessage | None:
        """Wait up to ``timeout`` seconds for a wake-up call or a notification; return which came, or ``None``."""
        return wake.wait(worker_id, timeout)

    def notify_workers(self, worker_ids: Iterable[uuid.UUID]) -> None:
        """Let workers read their rows now."""
        wake.tell(worker_ids)

    def wake_idle(self) -> int:
        """Wake one idle worker if it can run what waits; return how many were woken."""
        return wake.wake()[0]

    # -- limits: a claim reads the rows -------------------------------------------

    def copy_limits(self, gates_of_rows: Iterable[GateLimits]) -> int:
        """Let claims look again at these gates, if they were closed; return 0, as nothing differs from the rows."""
        if gates.look_again(gates_of_rows):
            wake.wake()
        return 0

    def restart_rates(self, gates: Iterable[str]) -> None:
        """Nothing to do: a rebuild begins with empty rates."""

    def limited(self) -> set[str]:
        """Return none: nothing is copied."""
        return set()

    def set_clock(self, at: datetime) -> bool:
        """Nothing to do: there is one clock."""
        return False

    def set_thresholds(self, thresholds: Thresholds) -> bool:
        """Nothing to do: a claim reads them."""
        return False


def _returns() -> bool:
    """Use Redis from now on, if this project has it; return whether it does."""
    redis_is_away.clear()
    return conf.get().index == conf.REDIS
