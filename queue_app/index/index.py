"""The index: one short method per script. It proposes; the row decides.

Ids travel as the 16 bytes of their UUID. Batches are cut into calls of at most ``BATCH`` entries, so that no script
blocks the server for long.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import batched, chain
from typing import Any, NamedTuple, cast

from queue_app import conf
from queue_app.core.events import Event, Run, counted
from queue_app.core.limit_values import Limits, Scope, gate_of
from queue_app.core.priorities import Band
from queue_app.core.promotion import PROMOTED, Risen, Thresholds
from queue_app.core.records import Entry, PackedLane, Proposal, TaskRef
from queue_app.exceptions import IndexDamaged, IndexNotReady, UnknownProfile
from queue_app.index import events as stream
from queue_app.index import packed
from queue_app.index.client import in_one_write, longest_wait, text, translated, unavailable
from queue_app.index.keys import KINDS
from queue_app.index.lazy import redis
from queue_app.index.leases import BATCH, Leases, is_id, readable
from queue_app.index.placement import Placement
from queue_app.index.profile import Profile
from queue_app.index.requests import RequestStream
from queue_app.index.stats import IndexStats, QueueDepth, count_all, count_queue

#: Maximum slots per claim.
MAX_CLAIM = 500
#: Maximum notifications that are sent before other threads of the process get their turn.
NOTIFY_BATCH = 2500
#: Seconds until a notification that its worker did not read is deleted.
NOTIFICATION_SECONDS = 60


class Generation(NamedTuple):
    """The generation that the index carries; ``state`` is ready, rebuilding or missing."""

    number: int
    state: str
    owner: str = ""  # identity of the database to which the index belongs; empty: of none, or not asked for


class Index(Leases):
    """The Redis side of the queue."""

    # -- tasks ----------------------------------------------------------------

    def push(self, tasks: Iterable[TaskRef]) -> int:
        """Put queued tasks at their places; return how many were missing or misplaced."""
        entries = (task.entry for task in tasks)
        return self._total("push", map(packed.pack, batched(entries, BATCH)))

    def push_lanes(self, lanes: Iterable[PackedLane]) -> int:
        """Put queued tasks at their places, packed by the database; return how many were missing or misplaced."""
        return self._total("push", packed.calls(lanes))

    def misplaced(self, lanes: Iterable[PackedLane]) -> list[uuid.UUID]:
        """Return the queued tasks that are missing or misplaced; repair nothing."""
        found = (self._call("misplaced", *arguments) for arguments in packed.calls(lanes))
        return [uuid.UUID(bytes=task_id) for reply in found for task_id in reply]

    def claim(
        self,
        profile: Profile,
        worker_id: uuid.UUID,
        want: int,
        *,
        register_idle: bool = True,
        reserve: bool = True,
    ) -> Proposal:
        """Lease tasks for up to ``want`` slots of a worker; they are its own once the rows accept them.

        ``reserve`` says whether the worker may drain for a task that needs more slots than ``want``.
        Raises ``IndexNotReady`` until a rebuild has finished, ``UnknownProfile`` when the worker must register again.
        """
        reply = self._call("claim", profile.id, str(worker_id), min(want, MAX_CLAIM), int(register_idle), int(reserve))
        state = reply[0]
        if state == b"rebuilding":
            raise IndexNotReady("The index is being rebuilt from the rows.")
        if state == b"unknown_profile":
            raise UnknownProfile(f"The index does not know profile {profile.id}.")
        wait = int(reply[3]) / 1000 if reply[3] != b"" else None
        pairs = list(zip(reply[4::2], reply[5::2], strict=True))
        with readable("claim"):
            number, stamp = int(reply[1]), int(reply[2])
        try:
            tasks = tuple((uuid.UUID(bytes=task_id), queue.decode()) for task_id, queue in pairs)
        except ValueError:  # they are leased: the readable ones are proposed, the others go
            tasks = tuple((uuid.UUID(bytes=task_id), queue.decode()) for task_id, queue in pairs if is_id(task_id))
            self._drop_leases([(queue.decode(), task_id, stamp) for task_id, queue in pairs if not is_id(task_id)])
        return Proposal(number, stamp, tasks, wait)

    def remove(self, tasks: Iterable[TaskRef]) -> int:
        """Remove waiting tasks from their lanes; return how many were there."""
        return self.remove_entries((task.lane, task.id) for task in tasks)

    def remove_entries(self, entries: Iterable[tuple[str, uuid.UUID]]) -> int:
        """Remove waiting tasks (lane, id) from their lanes; return how many were there."""
        pairs = ((lane, task_id.bytes) for lane, task_id in entries)
        return self._total("remove", (list(chain.from_iterable(batch)) for batch in batched(pairs, BATCH)))

    def promote(self, tasks: Iterable[TaskRef]) -> list[Risen]:
        """Lift waiting tasks as their age allows; return the tasks that moved, and between which bands."""
        risen: list[Risen] = []
        for batch in batched((task.entry for task in tasks), BATCH):
            found = batched(self._call("promote", *packed.pack(batch)), 3)
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
            for part in stream.split(events, NOTIFY_BATCH):
                self._notifier.notify((), part)
            for batch in batched(entries, NOTIFY_BATCH):
                self._notifier.notify(batch)
        except redis.RedisError as error:
            raise unavailable("push", self.alias, error) from error

    def notify_and_locate(self, entry: Entry, events: Sequence[Run] = ()) -> int | None:
        """Publish events, push one entry and return its ``position``, in one round trip."""
        script, arguments = self._script("position"), (entry.lane, entry.id.bytes)
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
        return self._total("publish", map(stream.publish_arguments, stream.split(events, BATCH)))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the counters of the cluster (``core.counters``)."""
        self.publish([counted(counts)])

    def read_events(self, after_id: str, *, count: int, block_ms: int | None = None) -> list[Event]:
        """Return events that follow ``after_id``, oldest first; wait up to ``block_ms`` for the first."""
        with translated("events", self.alias):
            self._notifier.flush()
            return stream.read_events(self._client, self.keys.events, after_id, count=count, block_ms=block_ms)

    def last_event_id(self) -> str:
        """Return the id of the newest event."""
        with translated("events", self.alias):
            self._notifier.flush()
            newest: Any = self._client.xrevrange(self.keys.events, count=1)
        return text(newest[0][0]) if newest else "0-0"

    @property
    def requests(self) -> RequestStream:
        """The stream through which other services ask for tasks."""
        return RequestStream(self._call)

    # -- workers --------------------------------------------------------------

    def register(self, profile: Profile, worker_id: uuid.UUID) -> None:
        """Register a worker and build the heads of its profile.

        Builds them every time: the worker that first registered the profile may have died before.
        """
        args: list[Any] = [profile.id, str(worker_id)]
        for names in (profile.queues, profile.task_types, profile.capabilities):
            args += (len(names), *names)
        self._call("register", *args, profile.slots or "")
        for queue in self.queues():
            self._scan("build_heads", profile.id, queue)

    def unregister(self, profile_id: str, worker_id: uuid.UUID) -> None:
        """Forget a worker."""
        self._call("unregister", profile_id, str(worker_id))

    def registered(self) -> list[tuple[str, uuid.UUID]]:
        """Return (profile, id) of every registered worker."""
        pairs: dict[tuple[str, bytes], uuid.UUID] = {}
        for profile, worker in batched(self._call("registered"), 2):
            try:
                pairs[profile.decode(), worker] = uuid.UUID(worker.decode())
            except ValueError:
                self._drop("SREM", self.keys.profile(text(profile), "workers"), [worker])
        return [(profile, worker_id) for (profile, _), worker_id in pairs.items()]

    def profiles(self) -> tuple[Generation, dict[str, bool]]:
        """Return the generation, the registered profiles, and whether all parts of each are there."""
        with translated("profiles", self.alias):
            names = cast("list[bytes]", list(self._client.smembers(self.keys.profiles)))
            with self._client.pipeline(transaction=False) as pipe:
                pipe.hmget(self.keys.generation, "number", "state")
                for name in names:
                    for part in ("queues", "types", "capabilities", "workers"):
                        pipe.smembers(self.keys.profile(text(name), part))
                    pipe.get(self.keys.profile(text(name), "slots"))
                (number, state), *found = pipe.execute()
        parts = zip(names, batched(found, 5), strict=True)
        with readable("profiles"):
            generation = Generation(int(number or 0), text(state or b"missing"))
        return generation, {text(name): _is_intact(name, each) for name, each in parts}

    def audit(self, profile: str, queue: str, cursor: int) -> tuple[int, str]:
        """Look for lanes that a profile can run and no claim would find; return (next cursor, what is wrong)."""
        following, found = self._call("audit", profile, queue, cursor)
        return int(following), text(found)

    def unserved_types(self, profile: Profile) -> set[str]:
        """Return the task types that wait in the profile's queues but are not among its types."""
        found: set[str] = set()
        for queue in self.queues():
            if not profile.queues or queue in profile.queues:
                found.update(name.decode() for page in self._scan("unserved_types", profile.id, queue) for name in page)
        return found

    def wait_for_wake(self, worker_id: uuid.UUID, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a wake-up call or a notification; return whether one came."""
        keys = [self.keys.tell(str(worker_id)), self.keys.wake(str(worker_id))]
        with translated("wait", self.alias):
            try:
                return self._client.blpop(keys, timeout=min(timeout, longest_wait(self._client))) is not None
            except redis.TimeoutError:  # the network was slow
                return False

    def notify_workers(self, worker_ids: Iterable[uuid.UUID]) -> None:
        """Let workers read their rows now: one of their tasks was cancelled, or the index is new."""
        commands: list[Sequence[Any]] = []
        for key in (self.keys.tell(str(worker_id)) for worker_id in worker_ids):
            commands += (("RPUSH", key, "1"), ("EXPIRE", key, NOTIFICATION_SECONDS))
        if commands:
            with translated("tell", self.alias):
                in_one_write(self._client, *commands)

    def wake_idle(self) -> int:
        """Wake one idle worker of every profile that has work; return how many."""
        return int(self._call("wake_idle"))

    # -- limits, generations, locks ---------------------------------------------

    def set_limits(self, gate: str, limits: Limits | None) -> bool:
        """Copy the limits of a gate, ``None`` when no row has any; return whether anything changed."""
        fields = limits.fields().items() if limits else ()
        return bool(
            self._call("set_limits", gate, int(limits is not None), *(part for item in fields for part in item))
        )

    def limited(self) -> set[str]:
        """Return the gates with limits, except everything."""
        with translated("limits", self.alias):
            gates, queues = in_one_write(self._client, ("SMEMBERS", self.keys.limits), ("SMEMBERS", self.keys.limited))
        named, limited = self._names(self.keys.limits, gates), self._names(self.keys.limited, queues)
        return {gate for gate in named if not gate.startswith("u")} | {gate_of(Scope.QUEUE, queue) for queue in limited}

    def set_thresholds(self, thresholds: Thresholds) -> bool:
        """Copy the thresholds of promotion; return whether anything changed."""
        waits = [thresholds.get(band) for band in PROMOTED]
        return bool(self._call("set_thresholds", *("" if wait is None else wait for wait in waits)))

    def set_clock(self, at: datetime) -> bool:
        """Record the present time by PostgreSQL's clock; return whether the two clocks have come to differ."""
        return bool(self._call("set_clock", round(at.timestamp() * 1e6)))

    def generation(self) -> Generation:
        """Return the generation that the index carries."""
        number, state, owner = self._call("generation")
        return Generation(int(number), text(state), text(owner))

    def begin_generation(
        self, number: int, token: str = "", copy_limits: Callable[[], object] | None = None, database: str = ""
    ) -> bool:
        """Refuse claims from now on, and forget everything but limits; bind the index to the database.

        Copies the limits before the wipe: tasks that are pushed from then on find their lanes by them. Returns false
        when a later generation began meanwhile, when ``token`` no longer holds the lock of rebuilds, or when the index
        belongs to another database.
        """
        if not self._call("begin_generation", number, token, database):
            return False
        if copy_limits is not None:
            try:
                copy_limits()
            except IndexDamaged:  # a copy has the wrong type
                if not self._wipe(number, wrong_type_only=True):
                    return False
                copy_limits()
        if not self._call("wipe", number):
            return False
        if not self._wipe(number):
            return False
        # A worker that registered during the wipe may have lost half of its profile: it must register again.
        return bool(self._call("wipe", number, self.keys.profiles))

    def _wipe(self, number: int, *, wrong_type_only: bool = False) -> bool:
        """Delete what a rebuild does not keep, and keys of the wrong type; return false if a later one has begun."""
        with translated("wipe", self.alias):
            for batch in batched(self._client.scan_iter(match=self.keys.everything, count=1000), BATCH):
                kept = {key for key in batch if (kind := self.keys.kind_of(key)) and KINDS[kind].is_kept}
                doomed = self.wrong_types(batch if wrong_type_only else kept)
                if not wrong_type_only:
                    doomed += [key for key in batch if key not in kept]
                if doomed and not self._call("wipe", number, *doomed):
                    return False
        return True

    def disown(self) -> None:
        """Let the index belong to no database."""
        with translated("disown", self.alias):
            self._client.hdel(self.keys.generation, "database")

    def finish_generation(self, number: int) -> bool:
        """Allow claims if the index is still this generation; return whether it is."""
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

    def queues(self) -> list[str]:
        """Return the queues that have, or had, tasks in the index."""
        with translated("queues", self.alias):
            names = cast("set[bytes]", self._client.smembers(self.keys.queues))
        return sorted(self._names(self.keys.queues, names))

    def position(self, task: TaskRef) -> int | None:
        """Return the position of a task in its queue, from 1; ``None`` when it does not wait here."""
        with translated("position", self.alias):
            position: int | None = self._call_fast("position", task.lane, task.id.bytes)
        return position

    def explain(self, task: TaskRef) -> Placement:
        """Return where a task stands, and the gates that it must pass to start."""
        with readable("explain"):
            return Placement.from_reply(self._call("explain", task.lane, task.id.bytes))

    def stats(self) -> IndexStats:
        """Count all queues, and return what was counted since Redis was emptied."""
        self.flush()
        with readable("stats"):
            return count_all(self._call)

    def depth(self, queue: str) -> QueueDepth:
        """Count one queue."""
        with readable("stats"):
            return count_queue(self._call, queue)

    def lane_sizes(self, queue: str | None = None) -> Iterator[tuple[str, int]]:
        """Yield each lane, of one queue or of all, with the number of its tasks; a lane may come twice."""
        for name in self.queues() if queue is None else [queue]:
            for page in self._scan("lane_sizes", name):
                sizes = dict(batched(page, 2))
                yield from ((lane, int(sizes[lane.encode()])) for lane in self._names(self.keys.lanes(name), sizes))

    def entries(self, lane: str, cursor: int = 0) -> tuple[int, list[uuid.UUID]]:
        """Return the cursor of the next page of a lane (0: none), and the tasks on this page."""
        following, *ids = self._call("entries", lane, cursor)
        if junk := [task_id for task_id in ids if not is_id(task_id)]:
            self._call("remove", *chain.from_iterable((lane, task_id) for task_id in junk))
            self._count_unreadable(len(junk))
        return int(following), [uuid.UUID(bytes=task_id) for task_id in ids if is_id(task_id)]

    def now(self) -> int:
        """Return the time by the index's own clock in µs, which never goes back and exceeds the stamp of any lease."""
        return int(self._call("now"))

    def ping(self) -> None:
        """Raise ``IndexUnavailable`` unless Redis answers."""
        with translated("ping", self.alias):
            self._client.ping()


def _is_intact(name: bytes, parts: Sequence[Any]) -> bool:
    """Whether the parts of a profile give its id, and it has a worker."""
    *sets, workers, slots = parts
    try:
        queues, types, capabilities = ([item.decode() for item in each] for each in sets)
        found = Profile.of(queues, types, capabilities, int(slots) if slots else None)
        return bool(workers) and found.id == name.decode()
    except ValueError:
        return False


_build = cache(Index)


def get_index() -> Index:
    """Return the index of this process under the current settings."""
    settings = conf.get()
    return _build(settings.redis_alias, settings.key_prefix)
