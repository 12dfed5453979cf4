"""Short words for tests of the whole engine: enqueue, claim, finish, and compare index and rows."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import batched
from typing import Any

from django.db import connection, connections, transaction

from queue_app import conf
from queue_app.core.limits import BAND_WIDTH, SEPARATOR, Limits, Scope, gate_of
from queue_app.core.priorities import ARRIVAL_BAND, PROMOTED, Band, effective_band
from queue_app.core.records import ClaimedTask, Entry, NewTask, Outcome, TaskFailure, TaskRef
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, get_index, redis_index, rows_index
from queue_app.index.notifier import pack
from queue_app.models import IndexGeneration, PriorityPolicy, Queue, Task
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.lifecycle.claim import claim
from queue_app.services.notify.index import breaker
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.way import follow
from queue_app.services.worker.registration import WorkerIdentity, register
from queue_app.sql import snapshot, workers
from tests.support import index_state
from tests.support.index_state import client_of
from tests.support.scene import Hand
from tests.support.swaps import swapped
from tests.support.waiting import PATIENCE, until


def new(kind: str = "a", **options: Any) -> NewTask:
    """Return a task that is yet to be enqueued."""
    return NewTask(task_type=kind, **options)


def put(kind: str = "a", **options: Any) -> uuid.UUID:
    """Enqueue one task and return its id."""
    task_id = enqueue(new(kind, **options)).id
    get_index().flush()  # a single push is posted, and not waited for
    return task_id


def put_many(count: int, kind: str = "a", **options: Any) -> list[uuid.UUID]:
    """Enqueue several tasks at once and return their ids."""
    return [stored.id for stored in enqueue_many(new(kind, **options) for _ in range(count))]


def take(hand: Hand, want: int = 1) -> list[ClaimedTask]:
    """Claim for a worker."""
    return claim(hand.profile, hand.id, want)


def take_ids(hand: Hand, want: int = 1) -> list[uuid.UUID]:
    """Claim for a worker and return the ids."""
    return [task.id for task in take(hand, want)]


def enlist(hand: Hand, *, process: str = "elsewhere", pid: int = 1, concurrency: int = 2) -> Hand:
    """Give a worker a row, as its process does."""
    identity = WorkerIdentity(id=hand.id, name="w", host="h", pid=pid, process_identity=process, version="1")
    register(identity, hand.profile, concurrency=concurrency, heartbeat_seconds=10)
    return hand


def silent(*hands: Hand) -> dict[uuid.UUID, str]:
    """Return the last heartbeats of workers, for ``reap``: as if a scheduler had heard no other for their budget."""
    beats = {worker: beat for worker, _, beat in (each.split(" ", 2) for each in workers.heartbeats())}
    return {hand.id: beats[str(hand.id)] for hand in hands if str(hand.id) in beats}


def done(task: ClaimedTask, result: str | None = None) -> Outcome:
    """Return the outcome of an attempt that completed."""
    now = datetime.now(UTC)
    return Outcome(task, now, now, result)


def failed(task: ClaimedTask, message: str = "no", *, retriable: bool = True) -> Outcome:
    """Return the outcome of an attempt that failed."""
    now = datetime.now(UTC)
    return Outcome(task, now, now, None, TaskFailure("builtins.ValueError", message, "Traceback ...", retriable))


def row(task_id: uuid.UUID) -> Task:
    """Return the row of a task."""
    return Task.objects.get(pk=task_id)


def status(task_id: uuid.UUID) -> Status:
    """Return the status of a task by its row."""
    return Status(Task.objects.values_list("status", flat=True).get(pk=task_id))


def lane_in_index(state: index_state.IndexState, ref: TaskRef) -> str:
    """Return the lane of a task: the user makes one of its own only where the queue keeps its users apart."""
    by_user = state.limits.get(ref.queue, {}).get("by_user") == "1"
    return ref.lane if by_user else replace(ref, user="").lane


def assert_index_agrees() -> index_state.IndexState:
    """Assert that the index holds exactly what the rows say: places, leases and limits.

    An aged task may stand anywhere from its own place to the one that promotion gives it.
    """
    state = index_state.check(get_index())
    if get_index().way == conf.ROWS:
        assert get_index().misplaced(()) == [], "each lane in which a task waits is known"
        return state
    standing_at = state.addresses
    lanes: dict[str, dict[uuid.UUID, float]] = defaultdict(dict)
    thresholds, now = PriorityPolicy.thresholds(), datetime.now(UTC)
    by_arrival = Queue.by_arrival()
    queued = list(Task.objects.filter(status="queued").values_list("id", flat=True))
    for ref in snapshot.refs(queued):
        own = Band(ref.priority)
        highest = effective_band(own, ref.queued_at, now, thresholds)
        places = [ref.score - rise * BAND_WIDTH for rise in range(own - highest + 1)]
        if ref.queue in by_arrival:
            places = [ref.score % BAND_WIDTH + ARRIVAL_BAND * BAND_WIDTH]
        lane = lane_in_index(state, ref)
        standing = standing_at.get(lane, {}).get(ref.id)
        lanes[lane][ref.id] = standing if standing in places else places[0]
    for band, seconds in thresholds.items():
        if band in PROMOTED:
            assert state.overall.get(f"promote_{band}") == (None if seconds is None else str(seconds))
    assert standing_at == dict(lanes), "what waits, and where"
    leases: dict[str, set[uuid.UUID]] = defaultdict(set)
    for task_id, lane, _ in snapshot.executing():
        leases[lane.split(SEPARATOR)[0]].add(task_id)
    assert {queue: set(page) for queue, page in state.queue_leases.items()} == dict(leases), "a slot for what runs"
    limits_of_rows = snapshot.limits()
    for gate in limits_of_rows.keys() | {gate_of(Scope.QUEUE, queue) for queue in state.limits}:
        limits = limits_of_rows.get(gate, Limits())
        kind, name = gate[0], gate[2:]
        found = (
            state.overall
            if kind == "a"
            else state.limits.get(name, {})
            if kind == "q"
            else state.gate_limits.get(gate, {})
        )
        known = {
            field: value
            for field, value in found.items()
            if field not in ("since", "gated", "rows_ahead") and not field.startswith("promote")
        }
        assert known == {field: text for field, text in limits.fields().items() if not field.startswith("share:")}, gate
    return state


@contextmanager
def rolled_back() -> Iterator[None]:
    """Roll the block's transaction back at its end, or its savepoint when it is inside another."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


#: What a rebuild leaves where no tasks are: its keys, and the row of its generation.
_built: tuple[dict[bytes, bytes], dict[str, Any]] | None = None


def built(index: Index) -> None:
    """Rebuild the index; where nothing is yet, copy what that left the first time in this process."""
    if index.way == conf.ROWS:
        assert rebuild() is not None
        return
    global _built  # noqa: PLW0603 - a rebuild takes ten times as long, in most tests before they begin
    client = client_of(index)
    is_empty = not Task.objects.exists() and not any(client.scan_iter(match=index.keys.everything, count=1000))
    if _built and is_empty:
        for key, value in _built[0].items():
            client.restore(key, 0, value)
        IndexGeneration.objects.update(**_built[1])
        return
    assert rebuild() is not None
    if is_empty:
        keys = client.scan_iter(match=index.keys.everything, count=1000)
        _built = {key: client.dump(key) for key in keys}, IndexGeneration.objects.values().get()


@contextmanager
def scripts_through(index: Index, answer: Callable[..., Any]) -> Iterator[None]:
    """Let ``answer(run, name, *arguments)`` answer for every script, those that are posted too; ``run`` runs one."""
    index.flush()
    call = partial(answer, index._call)

    def push(_index: Index, entries: Sequence[Entry], events: object = ()) -> None:
        for batch in batched(entries, 500):
            call("push", *pack(batch))

    with swapped((index, "_call", call), (Index, "notify", push)):
        yield


@contextmanager
def counted_calls(index: Index) -> Iterator[list[str]]:
    """Note the names of the scripts that run."""
    calls: list[str] = []

    def counting(run: Callable[..., Any], name: str, *args: Any) -> Any:
        calls.append(name)
        return run(name, *args)

    with scripts_through(index, counting):
        yield calls


#: Ways in which Redis answers and refuses writes: the command that causes it, and the one that ends it.
REFUSALS = {
    "read only replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "maxmemory": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
}


@contextmanager
def index_refusing(cause: str) -> Iterator[None]:
    """Let the server of the index refuse writes for the block, for one of the causes in ``REFUSALS``."""
    begin, end = REFUSALS[cause]
    client = client_of(get_index())
    client.execute_command(*begin)
    try:
        yield
    finally:
        client.execute_command(*end)
        breaker.reset()


@contextmanager
def index_away(*scripts: str) -> Iterator[list[str]]:
    """Let the scripts (none: all) fail as if Redis were gone; yields the names of those that were tried."""
    tried: list[str] = []

    def failing(run: Callable[..., Any], name: str, *args: Any) -> Any:
        if scripts and name not in scripts:
            return run(name, *args)
        tried.append(name)
        raise IndexUnavailable(f"{name}: gone")

    with scripts_through(get_index(), failing):
        yield tried
    breaker.reset()


def leave_redis(because: str = "Redis at redis://cache/0 failed (claim): Connection refused") -> None:
    """Let claims read the rows, as they do while Redis is away."""
    assert rebuild(rows_index(), because=because) is not None
    assert follow().is_rows


class Side[T]:
    """Something that runs at the same time, on a connection of its own."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._action()
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            self._error = error
        finally:
            connections.close_all()

    @property
    def running(self) -> bool:
        """Whether it is still at it."""
        return self._thread.is_alive()

    def result(self) -> T:
        """Wait for the end; return what it returned or raise what it raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


def at_once[T](actions: list[Callable[[], T]]) -> list[T]:
    """Run all actions at the same time; return their results in order."""
    barrier = threading.Barrier(len(actions))

    def start(action: Callable[[], T]) -> T:
        barrier.wait()
        return action()

    return [side.result() for side in [Side(lambda a=action: start(a)) for action in actions]]


def somebody_waits_for_a_lock() -> bool:
    """Whether any session waits for a lock that another one holds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0] > 0


def held_up[T](action: Callable[[], T]) -> Side[T]:
    """Begin something that has to wait for a lock; return it once it waits."""
    side = Side(action)
    until(somebody_waits_for_a_lock, "it waits for a lock")
    return side


@contextmanager
def open_transaction(action: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Keep a transaction in which something was done open on another connection for the block; yields its commit."""
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            action()
            begun.set()
            assert may_end.wait(PATIENCE)

    side = Side(hold)
    assert begun.wait(PATIENCE)
    try:
        yield may_end.set
    finally:
        may_end.set()
    side.result()


def reconcile_later() -> None:
    """Reconcile as often as it takes for a lease that no row confirms to be abandoned."""
    reconciler = Reconciler()
    for _ in range(2):
        reconciler.run_once()


def redis_client() -> Any:
    """Return the Redis client of the index, to damage it and to read what no call of the index reads."""
    return client_of(redis_index())


def flush(_engine: object = None) -> None:
    """Lose the whole index in one instant, as FLUSHALL does."""
    script = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end"
    redis_client().eval(script, 0, get_index().keys.everything)
