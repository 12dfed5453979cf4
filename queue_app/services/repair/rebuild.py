"""Rebuild the index from the rows, when it is missing or belongs to an older generation.

1. Wait until every living worker has named the tasks that it runs since PostgreSQL last started, or has been silent for
   its heartbeat budget and is declared dead: the rows may have forgotten grants (``services.lifecycle.claim``).
   Wait for claims under way, then raise the generation in PostgreSQL: from now on the rows refuse everything that the
   old index proposed.
2. Begin the generation in the index, which now refuses claims. Copy the limits, then delete all else.
3. Write the first queued rows of each queue and band, leave the rows if claims read them, and write the leases of
   executing rows.
4. Allow claims, unless another rebuild has begun meanwhile, or PostgreSQL has started again since step 1.
5. Write the other queued rows, in the order that the load below keeps.

Where the index is in PostgreSQL, one transaction fills its tables instead of steps 2 to 5.

So limits hold from the first claim on. A crash at any step leaves an index that refuses claims, from step 4 on once the
lock has lapsed, and the next rebuild starts over. Pushes continue during a rebuild: they are idempotent.
"""

import atexit
import logging
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from django.db import connections

from queue_app import conf, signals
from queue_app.core import rooms
from queue_app.core.limits import score
from queue_app.core.priorities import ARRIVAL_BAND, Band
from queue_app.core.records import PackedLane
from queue_app.exceptions import IndexOfAnotherDatabase, IndexUnavailable, in_one_line
from queue_app.index import Index, get_index
from queue_app.models import PriorityPolicy, Queue
from queue_app.services.owner import check_owner, is_foreign
from queue_app.services.repair.reap import MIN_GAP_SECONDS, declare_dead
from queue_app.services.way import CHOSEN, follow
from queue_app.sql import snapshot, workers
from queue_app.sql.claim import unanswered
from queue_app.sql.database import alias, clock
from queue_app.sql.doctor import database_identity
from queue_app.sql.snapshot import BEGINNING, END, Part, ReadPosition, Way

# The lock of rebuilds: one process rebuilds at a time, and soon after it has died another one begins.
#
# A thread renews the lock, because any step may take longer than the lock lasts: PostgreSQL reads from a cold disk, or
# the server holds millions of other keys. Without it, two processes would take the lock from each other at each step,
# and no rebuild would ever end.
#
# A rebuild runs in a thread that ends with its process. A process that exits releases the lock, so that another one can
# rebuild at once.

#: Time after which the lock of a dead rebuilder lapses.
LOCK_SECONDS = 5.0
#: The lock is renewed this often while it lasts.
RENEWALS: Final = 5
#: A step that takes longer hangs: its lock lapses, and another process may begin.
STEP_SECONDS = 60.0

NAME: Final = "rebuild"

#: Tokens of locks that this process could not release because Redis was away: its next rebuild holds that lock already.
unreleased: Final[list[str]] = []


class RebuildLock:
    """The lock while a process holds it."""

    def __init__(self, index: Index, token: str) -> None:
        self.token = token
        self._index = index
        self.pid = os.getpid()
        self._step_began_at = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="taskqueue-rebuild-lock", daemon=True)

    def end_step(self) -> None:
        """Note that the rebuild makes progress."""
        self._step_began_at = time.monotonic()

    def hold(self) -> None:
        """Renew the lock until it is released."""
        self._thread.start()
        _held.add(self)

    def release(self) -> None:
        """Release the lock. Raises ``IndexUnavailable``."""
        _held.discard(self)
        self._is_over.set()
        self._thread.join()  # or it might take the lock again after its release
        self._index.lock(NAME, self.token, 0)

    def _renew(self) -> None:
        while not self._is_over.wait(LOCK_SECONDS / RENEWALS):
            if time.monotonic() - self._step_began_at > STEP_SECONDS:
                return
            with suppress(IndexUnavailable):
                if not self._index.lock(NAME, self.token, LOCK_SECONDS):
                    return  # another process has it


#: The locks that this process holds, or its parent held when it was forked.
_held: Final[set[RebuildLock]] = set()


@contextmanager
def rebuild_lock(index: Index) -> Iterator[RebuildLock | None]:
    """Hold the lock of rebuilds for a block; yield ``None`` if another process holds it."""
    token = unreleased.pop() if unreleased else uuid.uuid4().hex
    if not index.lock(NAME, token, LOCK_SECONDS):
        yield None
        return
    lock = RebuildLock(index, token)
    lock.hold()
    try:
        yield lock
    finally:
        try:
            lock.release()
        except IndexUnavailable:
            unreleased.append(token)
            raise


@atexit.register
def release_at_exit() -> None:
    """Release the lock of a rebuild that ends unfinished because its process exits."""
    for lock in list(_held):
        if lock.pid == os.getpid():
            with suppress(IndexUnavailable):
                lock.release()


# Load the queued rows into a new index, part by part: a part holds the tasks of one queue and band.
#
# The longest waiting tasks of each part are loaded first. Then claims are allowed, and the rest is loaded, the most
# urgent band first. The index always holds the front of each part and nothing behind it: a push leaves later tasks to
# the load. So no worker starts a task before another one of its queue and band that has waited longer. A queue by
# arrival is one part in this: all its bands are loaded up to the same time, and a task of a new band is left to the
# load as well.
#
# Each step moves the border of a part before it reads the rows up to there. A task that commits meanwhile is either
# among the rows, or its own push comes after the move and puts it in its place.

#: Rows that are read at a time, of all parts together. With thousands of lanes, larger pages bring more tasks of a lane
#: together.
PAGE = 40_000
#: Minimum number of rows of one part.
LEAST = 20


def leave_to_load(index: Index, number: int) -> list[Part]:
    """Leave all that waits to the load of this generation; return the parts, each of which must be loaded."""
    parts = _parts(Queue.by_arrival(alias()))
    index.load_until(number, dict.fromkeys(parts, -1.0))
    return parts


def _parts(by_arrival: frozenset[str]) -> list[Part]:
    """Return the queues and bands in which tasks may wait, and all bands of the queues by arrival."""
    found = snapshot.parts()
    return [part for part in found if part[0] not in by_arrival] + [
        (queue, band) for queue in sorted({queue for queue, _ in found} & by_arrival) for band in Band
    ]


@dataclass(slots=True)
class Loader:
    """Loads the queued rows of one generation; ``end_step`` is called after each page.

    The parts that were ``left`` to it count also if no task waits there any more, because pushes leave new tasks out.
    """

    index: Index
    number: int
    left: list[Part]
    end_step: Callable[[], object]
    by_arrival: frozenset[str] = field(default_factory=lambda: Queue.by_arrival(alias()))
    after: dict[Part, ReadPosition] = field(default_factory=dict)  # how far each part is loaded that has more
    tasks: int = 0

    def begin(self) -> bool:
        """Load the first tasks of each part; return whether the index is still this generation."""
        self.after = dict.fromkeys([*self.left, *_parts(self.by_arrival)], BEGINNING)
        return self._step(list(self.after))

    def finish(self) -> bool:
        """Load the rest; return whether the index is still this generation."""
        while self.after:
            band = min(map(self._band, self.after))
            if not self._step([part for part in self.after if self._band(part) == band]):
                return False
        return True

    def _band(self, part: Part) -> Band:
        return ARRIVAL_BAND if part[0] in self.by_arrival else part[1]

    def _together(self, until: dict[Part, ReadPosition]) -> dict[Part, ReadPosition]:
        """Return the ends of a step, those of a queue by arrival at the same time: the earliest."""
        together: defaultdict[str, list[Part]] = defaultdict(list)
        for part in until:
            if part[0] in self.by_arrival:
                together[part[0]].append(part)
        for parts in together.values():
            if not all(until[part].is_last for part in parts):
                end = min(until[part] for part in parts)._replace(is_last=False)
                until |= dict.fromkeys(parts, end)
        return until

    def _step(self, parts: list[Part]) -> bool:
        after = {part: self.after[part] for part in parts}
        until = self._together(snapshot.ends(after, max(LEAST, PAGE // max(1, len(parts))))) if parts else {}
        if not self.index.load_until(self.number, {part: score(part[1], at.queued_at) for part, at in until.items()}):
            return False
        self._push(snapshot.between(after, until))
        self.after |= until
        ended = {part: at for part, at in until.items() if at.is_last}
        if not ended:
            return True
        if not self.index.load_until(self.number, dict.fromkeys(ended)):
            return False
        self._push(snapshot.between(ended, dict.fromkeys(ended, END)))  # what came after the look-up
        for part in ended:
            del self.after[part]
        return True

    def _push(self, lanes: Iterable[PackedLane]) -> None:
        lanes = list(lanes)
        self.tasks += sum(lane.size for lane in lanes)
        self.index.push_lanes(lanes)
        self.end_step()


logger = logging.getLogger("taskqueue")

#: How long a process waits for a rebuild to allow claims. Then its other work continues: reports of ended tasks, the
#: jobs of the scheduler.
OPEN_SECONDS = 5.0
#: How long to wait for the end of a rebuild that loads tasks while claims are allowed. Most are done by then.
LOAD_SECONDS = 1.0
#: Age (s) and number of the tasks that are pushed to Redis when claims leave the rows, at most.
RECENT_SECONDS = 5.0
RECENT_TASKS = 100_000
#: Time between two looks whether the workers have named their grants.
ANSWER_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild wrote: its generation, queued tasks, leases, and how long it took (s)."""

    generation: int
    tasks: int
    leases: int
    seconds: float


def is_needed(known: Way | None = None) -> bool:
    """Whether the index in force is not ready, or not of the generation of the rows, now or as it was ``known``."""
    follow(known)
    index = get_index().generation()  # read before the rows, or a rebuild that ends in between would look stale
    if index.state == "ready" or (index.state == "loading" and not unreleased):  # another process is at work
        return index.number != (known.number if known else snapshot.generation()) or is_foreign(index.owner)
    return True


def rebuild_if_needed() -> Rebuilt | None:
    """Rebuild the index unless it is sound and of the rows' generation; ``None`` when nothing was done."""
    return rebuild() if is_needed() else None


def rebuild_until_open() -> bool:
    """Rebuild the index if needed; return whether that allows claims.

    A thread rebuilds. It continues alone if that takes long, or if many tasks are left to load.
    """
    if not is_needed():
        return False
    opened, is_alone, done = threading.Event(), threading.Event(), Future[Rebuilt | None]()

    def run() -> None:
        try:
            try:
                rebuilt = rebuild(on_open=opened.set)
            finally:
                connections.close_all()  # before the caller continues, which may be about to drop a test database
            done.set_result(rebuilt)
        except Exception as error:  # noqa: BLE001 - raised below
            done.set_exception(error)
            if opened.is_set() or is_alone.is_set():
                logger.warning("a rebuild broke off and starts over: %s", in_one_line(error))
        finally:
            opened.set()

    threading.Thread(target=run, name="taskqueue-rebuild", daemon=True).start()
    if not opened.wait(OPEN_SECONDS):
        is_alone.set()
        return False
    try:
        return done.result(LOAD_SECONDS) is not None
    except TimeoutError:
        return True


def rebuild(
    index: Index | None = None,
    *,
    adopt: bool = False,
    because: str = "",
    on_open: Callable[[], object] = lambda: None,
) -> Rebuilt | None:
    """Rebuild an index, by default the one in force, and let claims use it, ``because`` of what is recorded.

    Returns ``None`` when another process is rebuilding it, or a server was lost meanwhile.
    Calls ``on_open`` when claims are allowed, before the rest is loaded. A process that loses the lock stops before it
    deletes anything. If two rebuilds run at once, the later generation wins. Raises ``IndexOfAnotherDatabase``, unless
    the caller wants to ``adopt`` such an index.
    """
    started = time.monotonic()
    index = index or get_index()
    if adopt:
        index.disown()
    try:
        check_owner(index)
    except IndexOfAnotherDatabase:
        if index.generation().number == snapshot.generation():
            snapshot.raise_generation()  # the rows would accept claims from that index
        raise
    with rebuild_lock(index) as lock:
        written = _write(index, lock, because, on_open) if lock else None
    if written is None:
        return None
    rebuilt = Rebuilt(*written, time.monotonic() - started)
    snapshot.record_ready(rebuilt.generation, rebuilt.tasks, rebuilt.leases)
    signals.index_rebuilt.send(
        None, generation=rebuilt.generation, tasks=rebuilt.tasks, leases=rebuilt.leases, seconds=rebuilt.seconds
    )
    return rebuilt


def _write(index: Index, lock: RebuildLock, because: str, on_open: Callable[[], object]) -> tuple[int, int, int] | None:
    """Write a new generation; return it with the number of tasks and leases, ``None`` if the index was lost."""
    await_answers(lock.end_step)
    if index.way == conf.ROWS:
        return _build_lanes(index, CHOSEN if conf.get().index == conf.ROWS else because, on_open)
    number = snapshot.raise_generation(above=index.generation().number)
    left: list[Part] = []
    began = time.monotonic()

    def prepare() -> None:
        copy_limits(index)
        left.extend(leave_to_load(index, number))

    if not index.begin_generation(number, lock.token, prepare, database_identity()):
        return None
    load = Loader(index, number, left, lock.end_step)
    if not load.begin():
        return None
    if snapshot.way().is_rows:  # before they are left: after a crash in between, the next rebuild restarts the rates
        index.restart_rates(snapshot.limits())
    is_return = snapshot.leave_rows(number)
    leases = index.restore_leases(snapshot.executing())
    if is_return:  # claims from rows have used the rates, and tasks were pushed there
        copy_limits(index)
        index.push_lanes(snapshot.packed_recent(time.monotonic() - began + RECENT_SECONDS, RECENT_TASKS).lanes)
    # PostgreSQL may have crashed since step 1, unnoticed behind a pooler. Then the rows that were read lack grants.
    if unanswered() or not index.open_generation(number):
        return None
    index.notify_workers(workers.live())  # the new index has no idle workers: each worker must claim once
    on_open()
    if not (load.finish() and index.finish_generation(number)):
        return None
    return number, load.tasks, leases


def _build_lanes(index: Index, because: str, on_open: Callable[[], object]) -> tuple[int, int, int] | None:
    number = snapshot.raise_generation(above=index.generation().number, rows_because=because)
    if not rooms.part("build_lanes")(number):
        return None
    index.notify_workers(workers.live())
    on_open()
    return number, sum(size for _, size in index.lane_sizes()), len(snapshot.executing())


def await_answers(end_step: Callable[[], object] = lambda: None, pause: Callable[[float], object] = time.sleep) -> None:
    """Wait until the rows name all grants of the living workers; ``end_step`` is called after each look."""
    silence: dict[tuple[uuid.UUID, str], float] = {}  # worker and its last heartbeat -> seconds without another
    looked_at = time.monotonic()
    while waiting := unanswered():
        now, budget = time.monotonic(), conf.get().worker.missed_heartbeats
        gap = min(now - looked_at, MIN_GAP_SECONDS)  # in a longer one all processes may have been frozen
        looked_at = now
        silence = {(worker, beat): silence.get((worker, beat), -gap) + gap for worker, _, beat in waiting}
        silent = {worker: beat for worker, interval, beat in waiting if silence[worker, beat] > budget * interval}
        if silent:
            declare_dead(silent)
        pause(ANSWER_SECONDS)
        end_step()


def copy_limits(index: Index | None = None) -> int:
    """Copy all limits and the promotion thresholds from their rows to the index; return how many differed.

    Tells the index the rows' time first: throttles and ages are instants of the rows.
    An edit between reading a row and writing its copy would be overwritten. So after a change the rows
    are read again, until nothing differs.
    """
    index = index or get_index()
    index.set_clock(clock())
    differed = changed = _copy_limits_once(index)
    for _ in range(3):
        if not changed:
            break
        changed = _copy_limits_once(index)
    return differed


def _copy_limits_once(index: Index) -> int:
    found = snapshot.limits()
    changed = int(index.set_thresholds(PriorityPolicy.thresholds(alias())))
    gone = dict.fromkeys(index.limited() - found.keys())
    return changed + index.copy_limits([*found.items(), *gone.items()])
