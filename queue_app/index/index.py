"""The index: one short method per script, and so a long list of them. It proposes; the rows decide.

Ids travel as the 16 bytes of their UUID. All batches are cut into calls of at most
``BATCH`` entries, so that no script holds the server for long.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import batched
from typing import Any, NamedTuple

from queue_app.core.events import Event, Run, counted
from queue_app.core.lanes import queued_at_of
from queue_app.core.limit_values import EVERYTHING, Limits, Scope, gate_of
from queue_app.core.priorities import Band
from queue_app.core.promotion import PROMOTED, Risen, Thresholds
from queue_app.core.records import Entry, PackedLane, Proposal, TaskRef
from queue_app.exceptions import IndexNotReady, UnknownProfile
from queue_app.index import events, packed, scripts
from queue_app.index.client import connect, in_one_write, longest_wait, translated
from queue_app.index.keys import Keys
from queue_app.index.lazy import redis
from queue_app.index.leases import BATCH, Leases
from queue_app.index.notifier import Poster
from queue_app.index.placement import Standing
from queue_app.index.profile import Profile
from queue_app.index.publishing import publish_arguments, split
from queue_app.index.requests import RequestStream
from queue_app.index.stats import IndexStats, QueueDepth, take_census

MAX_CLAIM = 500
#: So many hints are posted before other threads of the process have their turn.
POSTED = 2500


class Generation(NamedTuple):
    """Which generation the index carries: ``state`` is ready, rebuilding or missing."""

    number: int
    state: str


class Index(Leases):
    """The Redis side of the queue."""

    def __init__(self, alias: str, prefix: str) -> None:
        self.alias = alias
        self.keys = Keys(prefix)
        self._client: redis.Redis = connect(alias)
        self._scripts: dict[str, redis.commands.core.Script] = {}
        self._poster = Poster(self._client, self.keys.prefix, self._script("push"), self._script("publish"))

    def _call(self, name: str, *args: Any) -> Any:
        with translated(name, self.alias):
            if self._poster.owes_hints:  # what this process has posted comes first, so that it sees its own writes
                return self._poster.ask(self._script(name), args)
            return self._script(name)(keys=[self.keys.prefix], args=args)

    def _ask_once(self, name: str, *args: Any) -> Any:
        """As ``_call``, for a short question: without what the client adds to each call, as much as the call itself."""
        if not self._poster.owes_hints:
            try:
                script = self._script(name)
                return in_one_write(self._client, ("EVALSHA", script.sha, 1, self.keys.prefix, *args))[0]
            except (redis.exceptions.NoScriptError, redis.ConnectionError):
                pass  # the client's way loads the script, and connects anew
        return self._call(name, *args)

    def _script(self, name: str) -> redis.commands.core.Script:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._client.register_script(scripts.source(name))
        return script

    # -- work ---------------------------------------------------------------

    def push(self, tasks: Iterable[TaskRef]) -> int:
        """Put queued tasks at their places; return how many were missing or misplaced."""
        return self.push_entries(task.entry for task in tasks)

    def push_entries(self, entries: Iterable[Entry]) -> int:
        """Put queued tasks at their places, given as lane, score and id; as ``push``."""
        changed = 0
        for batch in batched(entries, BATCH):
            changed += self._call("push", *packed.pack(batch))
        return changed

    def push_lanes(self, lanes: Iterable[PackedLane]) -> int:
        """Put queued tasks at their places, given as the database packs them; as ``push``."""
        return packed.push_lanes(self._call, lanes)

    def post_entries(self, entries: Sequence[Entry], told: Sequence[Run] = ()) -> None:
        """Tell events and put tasks at their places without waiting for the answer; an error shows at the next one."""
        with translated("push", self.alias):
            self._poster.post(entries, told)

    def post_and_locate(self, entry: Entry, told: Sequence[Run] = ()) -> int | None:
        """As ``post_entries``, of one task, and ``position`` in the same round trip."""
        lane, _score, task_id = entry
        with translated("push", self.alias):
            return _place(self._poster.ask(self._script("position"), (lane, task_id.bytes), (entry,), told))

    def announce_entries(self, entries: Sequence[Entry], told: Sequence[Run]) -> None:
        """Tell events and put tasks at their places, many of both; the server works while the next are written."""
        with translated("push", self.alias):
            for part in split(told, POSTED):
                self._poster.post((), part)
            for batch in batched(entries, POSTED):
                self._poster.post(batch)

    def publish(self, told: Sequence[Run]) -> int:
        """Append events to the stream and wait for it; return how many the server took."""
        return sum(int(self._call("publish", *publish_arguments(part))) for part in split(told, BATCH))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the counts of the cluster (``core.tally``)."""
        self.publish([counted(counts)])

    def flush(self) -> None:
        """Wait until all that was posted has been answered."""
        with translated("push", self.alias):
            self._poster.flush()

    def claim(self, profile: Profile, worker_id: uuid.UUID, want: int, *, register_idle: bool = True) -> Proposal:
        """Lease tasks for up to ``want`` slots of a worker; they are its own once the rows accept them.

        Raises ``IndexNotReady`` until a rebuild has finished, ``UnknownProfile`` when the
        worker must register again.
        """
        reply = self._call("claim", profile.id, str(worker_id), min(want, MAX_CLAIM), int(register_idle))
        state = reply[0]
        if state == b"rebuilding":
            raise IndexNotReady("The index is being rebuilt from the rows.")
        if state == b"unknown_profile":
            raise UnknownProfile(f"The index does not know profile {profile.id}.")
        wait = int(reply[3]) / 1000 if reply[3] != b"" else None
        pairs = zip(reply[4::2], reply[5::2], strict=True)
        tasks = tuple((uuid.UUID(bytes=task_id), queue.decode()) for task_id, queue in pairs)
        return Proposal(int(reply[1]), int(reply[2]), tasks, wait)

    def remove(self, tasks: Iterable[TaskRef]) -> int:
        """Take waiting tasks out of their lanes; return how many were there."""
        return self.remove_entries((task.lane, task.id) for task in tasks)

    def remove_entries(self, entries: Iterable[tuple[str, uuid.UUID]]) -> int:
        """Take waiting tasks, given as lane and id, out of their lanes; return how many were there."""
        removed = 0
        for batch in batched(entries, BATCH):
            removed += self._call("remove", *(part for lane, task_id in batch for part in (lane, task_id.bytes)))
        return removed

    def promote(self, tasks: Iterable[TaskRef]) -> list[Risen]:
        """Let those of the tasks that wait rise as their age allows; return which did, and between which bands."""
        risen: list[Risen] = []
        for batch in batched((task.entry for task in tasks), BATCH):
            found = batched(self._call("promote", *packed.pack(batch)), 3)
            risen += [Risen(uuid.UUID(bytes=task_id), Band(left), Band(to)) for task_id, left, to in found]
        return risen

    # -- events ---------------------------------------------------------------

    def read_events(self, after_id: str, *, count: int, block_ms: int | None = None) -> list[Event]:
        """Return events that follow ``after_id``, oldest first; wait ``block_ms`` for the first of them."""
        with translated("events", self.alias):
            self._poster.flush()
            return events.read_events(self._client, self.keys.events, after_id, count=count, block_ms=block_ms)

    def last_event_id(self) -> str:
        """Return the id of the newest event."""
        with translated("events", self.alias):
            self._poster.flush()
            return events.last_event_id(self._client, self.keys.events)

    @property
    def requests(self) -> RequestStream:
        """The stream of tasks that other services ask for."""
        return RequestStream(self._call)

    # -- workers ------------------------------------------------------------

    def register(self, profile: Profile, worker_id: uuid.UUID) -> None:
        """Make a worker known; the heads of its profile are built before this returns.

        They are built every time: whoever made the profile known may have died before.
        """
        args: list[Any] = [profile.id, str(worker_id)]
        for names in (profile.queues, profile.task_types, profile.capabilities):
            args += (len(names), *names)
        self._call("register", *args, profile.slots or "")
        for queue in self.queues():
            self._scan("adopt", profile.id, queue)

    def retire(self, profile_id: str, worker_id: uuid.UUID) -> None:
        """Forget a worker."""
        self._call("retire", profile_id, str(worker_id))

    def registered(self) -> list[tuple[str, uuid.UUID]]:
        """Return (profile, id) of every worker that is known here."""
        return [
            (profile.decode(), uuid.UUID(worker.decode())) for profile, worker in batched(self._call("registered"), 2)
        ]

    def unserved_types(self, profile: Profile) -> set[str]:
        """Return the task types that wait in the profile's queues but are not among its types."""
        found: set[str] = set()
        for queue in self.queues():
            if not profile.queues or queue in profile.queues:
                found.update(name.decode() for page in self._scan("unserved_types", profile.id, queue) for name in page)
        return found

    def wait_for_wake(self, worker_id: uuid.UUID, timeout: float) -> bool:
        """Block until the worker is called or told something, or ``timeout`` seconds; return whether it was."""
        keys = [self.keys.tell(str(worker_id)), self.keys.wake(str(worker_id))]
        with translated("wait", self.alias):
            try:
                return self._client.blpop(keys, timeout=min(timeout, longest_wait(self._client))) is not None
            except redis.TimeoutError:  # the network was slow
                return False

    def tell(self, worker_ids: Iterable[uuid.UUID]) -> None:
        """Tell workers to look up what concerns them: a task was cancelled, or the index is new."""
        with translated("tell", self.alias), self._client.pipeline(transaction=False) as pipe:
            for worker_id in worker_ids:
                pipe.rpush(self.keys.tell(str(worker_id)), "1")
                pipe.expire(self.keys.tell(str(worker_id)), 60)
            pipe.execute()

    def tick(self) -> int:
        """Wake one idle worker of every profile that has work; return how many."""
        return int(self._call("tick"))

    # -- limits, generations, leadership -------------------------------------

    def set_limits(self, queue: str, **limits: Any) -> bool:
        """Copy the limits of ``queue`` (or of everything: ``""``); return whether anything changed."""
        return self.copy_limits(gate_of(Scope.QUEUE, queue) if queue else EVERYTHING, Limits(**limits))

    def copy_limits(self, gate: str, limits: Limits | None) -> bool:
        """Copy the limits of a gate, ``None`` when no row has any; return whether anything changed."""
        fields = limits.fields().items() if limits else ()
        return bool(
            self._call("set_limits", gate, int(limits is not None), *(part for item in fields for part in item))
        )

    def limited(self) -> set[str]:
        """Return the gates of which the index knows limits, but for everything."""
        with translated("limits", self.alias), self._client.pipeline(transaction=False) as pipe:
            pipe.smembers(self.keys.limits)
            pipe.smembers(self.keys.limited)
            gates, queues = pipe.execute()
        named = {_text(gate) for gate in gates}
        return {gate for gate in named if gate[0] != "u"} | {gate_of(Scope.QUEUE, _text(queue)) for queue in queues}

    def set_thresholds(self, thresholds: Thresholds) -> bool:
        """Copy the thresholds of promotion; return whether anything changed."""
        waits = [thresholds.get(band) for band in PROMOTED]
        return bool(self._call("set_thresholds", *("" if wait is None else wait for wait in waits)))

    def generation(self) -> Generation:
        """Return the generation that the index carries."""
        number, state = self._call("generation")
        return Generation(int(number), state.decode())

    def begin_generation(self, number: int, token: str = "", copy_limits: Callable[[], object] | None = None) -> bool:
        """Refuse claims from now on, and forget everything but limits.

        Limits are copied in between: what is pushed from the wipe on finds its lanes by them.
        Returns false when a later generation began meanwhile, or when ``token`` no longer
        holds the lock of rebuilds.
        """
        if not self._call("begin_generation", number, token):
            return False
        if copy_limits is not None:
            copy_limits()
        if not self._call("wipe", number):
            return False
        with translated("wipe", self.alias):
            for batch in batched(self._client.scan_iter(match=self.keys.everything, count=1000), BATCH):
                doomed = [key for key in batch if not self.keys.survives_rebuild(key)]
                if doomed and not self._call("wipe", number, *doomed):
                    return False
        # A worker that registered during the wipe may have lost half of its profile: let it register again.
        return bool(self._call("wipe", number, self.keys.profiles))

    def finish_generation(self, number: int) -> bool:
        """Allow claims, if the index is still this generation; return whether it is."""
        return bool(self._call("finish_generation", number))

    def count_calls(self, name: str, calls: int, seconds: int) -> int:
        """Add to a count that is gone after so many seconds; return it. One round trip.

        Between the two commands of one write nothing of ours can end.
        """
        key = self.keys.throttle(name)
        with translated("count", self.alias):
            return int(in_one_write(self._client, ("INCRBY", key, calls), ("EXPIRE", key, seconds))[0])

    def hold(self, lock: str, token: str, seconds: float) -> bool:
        """Take or renew a lock for so long; 0 seconds gives it up. Return whether ``token`` holds it."""
        return bool(self._call("hold", lock, token, int(seconds * 1000)))

    # -- questions ------------------------------------------------------------

    def queues(self) -> list[str]:
        """Return the queues that have, or had, tasks in the index."""
        with translated("queues", self.alias):
            return sorted(_text(name) for name in self._client.smembers(self.keys.queues))

    def position(self, task: TaskRef) -> int | None:
        """Return how many tasks run before this one, itself counted; ``None`` when it does not wait here."""
        with translated("position", self.alias):
            return _place(self._ask_once("position", task.lane, task.id.bytes))

    def explain(self, task: TaskRef) -> Standing:
        """Tell where a task stands, and which gates its start would pass."""
        return Standing.from_reply(self._call("explain", task.lane, task.id.bytes))

    def depth(self, queue: str) -> QueueDepth:
        """Count what waits in a queue, by effective band."""
        counts = dict.fromkeys(Band, 0)
        oldest: dict[Band, float] = {}
        active = 0
        for page in self._scan("depth", queue):
            active = int(page[0])
            for band, (count, first) in zip(Band, batched(page[1:], 2), strict=True):
                counts[band] += int(count)
                if first:
                    oldest[band] = min(float(first), oldest.get(band, float("inf")))
        return QueueDepth(queue, active, counts, {band: queued_at_of(value) for band, value in oldest.items()})

    def misplaced(self, lanes: Iterable[PackedLane]) -> list[uuid.UUID]:
        """Return those of the queued tasks that are missing or stand at a wrong place; repairs nothing."""
        return packed.misplaced(self._call, lanes)

    def lane_sizes(self, queue: str | None = None) -> Iterator[tuple[str, int]]:
        """Yield each lane, of one queue or of all, that holds tasks, and how many; one may come twice."""
        for name in self.queues() if queue is None else [queue]:
            for page in self._scan("lane_sizes", name):
                yield from ((lane.decode(), int(size)) for lane, size in batched(page, 2))

    def entries(self, lane: str, cursor: int = 0) -> tuple[int, list[uuid.UUID]]:
        """Return the cursor of the next page of a lane (0: there is none), and the tasks on this one."""
        following, *ids = self._call("entries", lane, cursor)
        return int(following), [uuid.UUID(bytes=task_id) for task_id in ids]

    def stats(self) -> IndexStats:
        """Count all queues, and return what was counted since Redis was emptied."""
        self.flush()
        return take_census(self._call)

    def counters(self) -> dict[str, int]:
        """Return what the scripts counted since Redis was emptied, by name."""
        with translated("counters", self.alias):
            self._poster.flush()
            return {_text(name): int(count) for name, count in self._client.hgetall(self.keys.counters).items()}

    def _scan(self, name: str, *args: Any) -> list[Sequence[Any]]:
        """Call a script that takes and returns a cursor until it is through; return its pages."""
        pages: list[Sequence[Any]] = []
        cursor: Any = 0
        while True:
            reply = self._call(name, *args, cursor)
            cursor, page = (reply[0], reply[1:]) if isinstance(reply, list) else (reply, ())
            pages.append(page)
            if int(cursor) == 0:
                return pages

    def now(self) -> int:
        """Return the time of the index's server in µs, the clock of its leases."""
        with translated("time", self.alias):
            seconds, microseconds = self._client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def ping(self) -> None:
        """Raise ``IndexUnavailable`` unless Redis answers."""
        with translated("ping", self.alias):
            self._client.ping()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _place(reply: Any) -> int | None:
    return None if reply is None else int(reply)
