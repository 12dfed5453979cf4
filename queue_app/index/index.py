"""The index: one short method per script. It proposes; the row decides.

Ids travel as the 16 bytes of their UUID. Batches are cut into calls of at most ``BATCH`` entries, so that no script
blocks the server for long.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import batched, chain
from typing import Any, ClassVar, Concatenate, Final

from queue_app import conf
from queue_app.core import rooms
from queue_app.core.events import Event, Run, counted
from queue_app.core.ids import of_bytes
from queue_app.core.priorities import Band, Risen
from queue_app.core.probe import Probe
from queue_app.core.records import Entry, Lease, PackedLane, Proposal, TaskRef
from queue_app.exceptions import IndexDamaged, IndexNotReady, UnknownProfile
from queue_app.index.calls import in_one_write, readable, translated
from queue_app.index.client import redis, text, unavailable
from queue_app.index.keys import KINDS, Placement
from queue_app.index.leases import BATCH, SCANNED, Leases, is_id
from queue_app.index.limits import LimitCopies
from queue_app.index.notifier import lane_arguments, pack, publish_arguments, split
from queue_app.index.patience import check
from queue_app.index.stats import IndexStats, QueueDepth, depths_of, stats_of
from queue_app.index.streams import RequestStream, read_events
from queue_app.index.workers import Generation, Profile, Workers

#: Maximum slots per claim.
MAX_CLAIM = 500
#: Maximum notifications that are sent before other threads of the process get their turn.
NOTIFY_BATCH = 2500


class Index(Leases, Workers, LimitCopies):
    """The Redis side of the queue."""

    #: Where claims find tasks.
    way: ClassVar = conf.REDIS

    # -- tasks ----------------------------------------------------------------

    def push(self, tasks: Iterable[TaskRef]) -> int:
        """Put queued tasks at their places; return how many were missing or misplaced."""
        entries = (task.entry for task in tasks)
        return self._total("push", map(pack, batched(entries, BATCH)))

    def push_lanes(self, lanes: Iterable[PackedLane]) -> int:
        """Put queued tasks at their places, packed by the database; return how many were missing or misplaced."""
        return self._total("push", lane_arguments(lanes))

    def misplaced(self, lanes: Iterable[PackedLane]) -> list[uuid.UUID]:
        """Return the queued tasks that are missing or misplaced; repair nothing."""
        found = (self._call("misplaced", *arguments) for arguments in lane_arguments(lanes))
        return [uuid.UUID(bytes=task_id) for reply in found for task_id in reply]

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
        """Lease tasks for up to ``want`` slots of a worker; they are its own once the rows accept them.

        ``reserve`` says whether the worker may drain for a task that needs more slots than ``want``. The slots of the
        leases in ``exchange`` count as free: what grants the new tasks must end those of these leases before.
        Raises ``IndexNotReady`` until a rebuild has finished, ``UnknownProfile`` when the worker must register again.
        """
        given = chain.from_iterable((lease.id.bytes, lease.leased_at) for lease in exchange)
        flags, asked_at = (int(register_idle), int(reserve)), time.monotonic()
        reply = self._call("claim", profile.id, str(worker_id), min(want, MAX_CLAIM), *flags, *given)
        state = reply[0]
        if state == b"rebuilding":
            raise IndexNotReady("The index is being rebuilt from the rows.")
        if state == b"unknown_profile":
            raise UnknownProfile(f"The index does not know profile {profile.id}.")
        wait = int(reply[3]) / 1000 if reply[3] != b"" else None
        proposed = list(zip(reply[5::2], reply[6::2], strict=True))
        pairs = [pair for pair in proposed if is_id(pair[0])]
        with readable("claim"):
            number, stamp = int(reply[1]), int(reply[2])
        if len(pairs) < len(proposed):  # they are leased: the readable ones are proposed, the others go
            self._drop_leases([(queue.decode(), task_id, stamp) for task_id, queue in proposed if not is_id(task_id)])
        tasks = tuple((of_bytes(task_id), queue.decode()) for task_id, queue in pairs)
        paced = frozenset(uuid.UUID(bytes=task_id) for task_id in reply[4] if is_id(task_id))
        return Proposal(number, stamp, tasks, wait, state == b"loading", paced, asked_at)

    def remove(self, tasks: Iterable[TaskRef]) -> int:
        """Remove waiting tasks from their lanes; return how many were there."""
        return self.remove_entries((task.lane, task.id) for task in tasks)

    def remove_entries(self, entries: Iterable[tuple[str, uuid.UUID]]) -> int:
        """Remove waiting tasks (address, id) from their lanes; return how many were there."""
        pairs = ((lane, task_id.bytes) for lane, task_id in entries)
        return self._total("remove", (list(chain.from_iterable(batch)) for batch in batched(pairs, BATCH)))

    def promote(self, tasks: Iterable[TaskRef]) -> list[Risen]:
        """Lift waiting tasks as their age allows; return the tasks that moved, and between which bands."""
        risen: list[Risen] = []
        for batch in batched((task.entry for task in tasks), BATCH):
            found = batched(self._call("promote", *pack(batch)), 3)
            risen += [Risen(uuid.UUID(bytes=task_id), Band(left), Band(to)) for task_id, left, to in found]
        return risen

    # -- notifications and events -----------------------------------------------

    def notify(self, entries: Sequence[Entry], events: Sequence[Run] = ()) -> None:
        """Publish events and push entries without waiting for the reply; the next call raises an error of this one.

        Many are sent in parts: the server works while the next part is written.
        """
        try:
            if max(len(entries), len(events)) <= NOTIFY_BATCH:
                self._notifier.notify(entries, events)
                return
            for part in split(events, NOTIFY_BATCH):
                self._notifier.notify((), part)
            for batch in batched(entries, NOTIFY_BATCH):
                self._notifier.notify(batch)
        except redis.RedisError as error:
            raise unavailable("push", self.alias, error) from error

    def notify_and_locate(self, entry: Entry, events: Sequence[Run] = ()) -> int | None:
        """Publish events, push one entry and return its ``position``, in one round trip."""
        script, arguments = self._scripts["position"], (entry.lane, entry.id.bytes)
        try:
            position: int | None = self._notifier.call(script, arguments, (entry,), events)
        except redis.RedisError as error:
            raise unavailable("push", self.alias, error) from error
        return position

    def flush(self) -> None:
        """Wait for the replies to all notifications."""
        with translated("push", self.alias):
            self._notifier.flush()

    def publish(self, events: Iterable[Run]) -> int:
        """Append events to the stream and wait for the reply; return how many entries the server took."""
        return self._total("publish", map(publish_arguments, split(events, BATCH)))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the counters of the cluster (``core.counters``)."""
        self.publish([counted(counts)])

    def restart_counters(self) -> None:
        """Delete the counters of the cluster: others have counted since, and metrics must not seem to jump."""
        with translated("count", self.alias):
            self._client.delete(self.keys.counters)

    def read_events(self, after_id: str, *, count: int, block_ms: int | None = None) -> list[Event]:
        """Return events that follow ``after_id``, oldest first; wait up to ``block_ms`` for the first."""
        with translated("events", self.alias):
            self._notifier.flush()
            return read_events(self._client, self.keys.events, after_id, count=count, block_ms=block_ms)

    def last_event_id(self) -> str:
        with translated("events", self.alias):
            self._notifier.flush()
            newest: Any = self._client.xrevrange(self.keys.events, count=1)
        return text(newest[0][0]) if newest else "0-0"

    @property
    def requests(self) -> RequestStream:
        """The stream through which other services ask for tasks."""
        return RequestStream(self._call)

    # -- generations, locks -----------------------------------------------------

    def generation(self) -> Generation:
        number, state, owner = self._call("generation")
        return Generation(int(number), text(state), text(owner))

    def begin_generation(
        self, number: int, token: str = "", prepare: Callable[[], object] | None = None, database: str = ""
    ) -> bool:
        """Refuse claims from now on, and forget everything but limits; bind the index to the database.

        Lets ``prepare`` copy the limits before the wipe: tasks that are pushed from then on find their lanes by them.
        It also names the tasks that are left to the rebuild (``load_until``). Returns false
        when a later generation began meanwhile, when ``token`` no longer holds the lock of rebuilds, or when the index
        belongs to another database.
        """
        if not self._call("begin_generation", number, token, database):
            return False
        if prepare is not None:
            try:
                prepare()
            except IndexDamaged:  # a copy has the wrong type
                if not self._wipe(number, wrong_type_only=True):
                    return False
                prepare()
        if not self._call("wipe", number, "reshaped"):
            return False
        return self._wipe(number) and bool(self._call("wipe", number, "wiping"))

    def _wipe(self, number: int, *, wrong_type_only: bool = False) -> bool:
        """Delete what a rebuild does not keep, and keys of the wrong type; return false if a later one has begun."""
        with translated("wipe", self.alias):
            for batch in batched(self._client.scan_iter(match=self.keys.everything, count=1000), BATCH):
                kept = {key for key in batch if (kind := self.keys.kind_of(key)) and KINDS[kind].is_kept}
                doomed = self.wrong_types(batch if wrong_type_only else kept)
                if not wrong_type_only:
                    doomed += [key for key in batch if key not in kept]
                if doomed and not self._call("wipe", number, "", *doomed):
                    return False
        return True

    def disown(self) -> None:
        """Let the index belong to no database."""
        with translated("disown", self.alias):
            self._client.hdel(self.keys.generation, "database")

    def load_until(self, number: int, scores: Mapping[tuple[str, Band], float | None]) -> bool:
        """Leave tasks behind these scores to the rebuild (``None``: no longer), by queue and band.

        Returns whether the rebuild may continue: whether the index is still this generation.
        """
        found = ((queue, int(band), "" if at is None else f"{at:.3f}") for (queue, band), at in scores.items())
        return all(self._call("load_until", number, *chain.from_iterable(batch)) for batch in batched(found, BATCH))

    def open_generation(self, number: int) -> bool:
        """Allow claims while tasks are still being loaded, if the index is still this generation."""
        return bool(self._call("open_generation", number))

    def finish_generation(self, number: int) -> bool:
        """Allow claims for good if the index is still this generation; return whether it is."""
        return bool(self._call("finish_generation", number))

    def lock(self, name: str, token: str, seconds: float) -> bool:
        """Take or renew a lock, or release it with 0 seconds; return whether ``token`` holds it."""
        return bool(self._call("lock", name, token, int(seconds * 1000)))

    def count_calls(self, name: str, calls: int, seconds: int) -> int:
        """Add to a counter that expires after ``seconds``; return it, in one round trip."""
        key = self.keys.throttle(name)
        with translated("count", self.alias):
            return int(in_one_write(self._client, ("INCRBY", key, calls), ("EXPIRE", key, seconds))[0])

    # -- questions --------------------------------------------------------------

    def position(self, task: TaskRef) -> int | None:
        """Return the position of a task in its queue, from 1; ``None`` when it does not wait here."""
        with translated("position", self.alias):
            position: int | None = self._call("position", task.lane, task.id.bytes)
        return position

    def future_position(self, entry: Entry) -> int:
        """Return the position that a task will have once it is pushed."""
        with translated("position", self.alias):
            position: int = self._call("position", entry.lane, entry.id.bytes, f"{entry.score:.3f}")
        return position

    def explain(self, task: TaskRef) -> Placement:
        """Return where a task stands, and the gates that it must pass to start."""
        with readable("explain"):
            return Placement.from_reply(self._call("explain", task.lane, task.id.bytes))

    def stats(self) -> IndexStats:
        """Count all queues, and return the counters since Redis was emptied."""
        self.flush()
        with readable("stats"):
            pages = list(self._walk("stats", self.queues())) or [self._call("stats", 0)[2:]]
            with translated("stats", self.alias):
                counters = dict(self._client.hscan_iter(self.keys.counters, count=SCANNED))
            return stats_of(pages, counters)

    def depth(self, queue: str) -> QueueDepth:
        with readable("stats"):
            return depths_of(self._walk("stats", [queue]))[0]

    def lane_sizes(self, queue: str | None = None) -> Iterator[tuple[str, int]]:
        """Yield each lane, of one queue or of all, with the number of its tasks; a lane may come twice."""
        for page in self._walk("lane_sizes", self.queues() if queue is None else [queue]):
            for name, found in batched(page, 2):
                sizes = dict(batched(found, 2))
                lanes = self._names(self.keys.lanes(text(name)), sizes)
                yield from ((lane, int(sizes[lane.encode()])) for lane in lanes)

    def entries(self, lane: str, cursor: int = 0) -> tuple[int, list[tuple[str, uuid.UUID]]]:
        """Return the cursor of the next page of a lane (0: none), and the tasks on this page: address and id."""
        following, *parts = self._call("entries", lane, cursor)
        pairs = list(batched(parts, 2))
        if junk := [pair for pair in pairs if not is_id(pair[1])]:
            self._call("remove", *chain.from_iterable(junk))
            self._count_unreadable(len(junk))
        return int(following), [(text(found), uuid.UUID(bytes=task_id)) for found, task_id in pairs if is_id(task_id)]

    def now(self) -> int:
        """Return the time by the index's own clock in µs, which never goes back and exceeds the stamp of any lease."""
        return int(self._call("now"))

    def ping(self) -> None:
        with translated("ping", self.alias):
            self._client.ping()


_build = cache(Index)


#: Whether claims read the rows because Redis is away, as far as this process knows (``services.way``).
redis_is_away: Final = threading.Event()


@cache
def rows_index() -> Index:
    """Return the index in the rows."""
    index: Index = rooms.part("RowsIndex")()
    return index


def redis_index() -> Index:
    """Return the index in Redis under the current settings."""
    settings = conf.get()
    return _build(settings.redis_alias, settings.key_prefix)


#: Whether Redis answers, for pages.
_probe: Final[Probe[object]] = Probe(lambda: redis_index().generation())


def get_index() -> Index:
    """Return the index that is in force, as far as this process knows. For a page, see ``patience``."""
    if redis_is_away.is_set() or conf.get().index == conf.ROWS:
        return rows_index()
    index = redis_index()
    check(_probe)
    return index


def stream_index() -> Index:
    """Return the index that has the streams of events and requests: Redis, also while claims read the rows."""
    return rows_index() if conf.get().index == conf.ROWS else redis_index()


def is_open() -> bool:
    """Return whether this process has asked for an index, or needs no time to open it."""
    return _build.cache_info().currsize > 0 or conf.get().index == conf.ROWS


def operation_of[**P, R](
    index: Index, operation: Callable[Concatenate[Index, P], R]
) -> Callable[Concatenate[Index, P], R]:
    """Return the method of this index for a method of ``Index``; another function takes any index."""
    if index.way == conf.REDIS or getattr(Index, operation.__name__, None) is not operation:
        return operation
    found: Callable[Concatenate[Index, P], R] = getattr(type(index), operation.__name__)
    return found
