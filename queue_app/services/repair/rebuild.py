"""Rebuild the index from the rows, when it is missing or belongs to an older generation.

1. Wait until every living worker has named the tasks that it runs since PostgreSQL last started, or has been silent for
   its heartbeat budget and is declared dead: the rows may have forgotten grants (``services.lifecycle.grants``).
   Wait for claims under way, then raise the generation in PostgreSQL: from now on the rows refuse everything that the
   old index proposed.
2. Begin the generation in the index, which now refuses claims. Copy the limits, then delete all else.
3. Write the leases of executing rows, and the first queued rows of each queue and band.
4. Allow claims, unless another rebuild has begun meanwhile, or PostgreSQL has started again since step 1.
5. Write the other queued rows, in the order of ``services.repair.load``.

So limits hold from the first claim on. A crash at any step leaves an index that refuses claims, from step 4 on once the
lock has lapsed, and the next rebuild starts over. Pushes continue during a rebuild: they are idempotent.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from django.db import connections

from queue_app import conf, signals
from queue_app.exceptions import IndexOfAnotherDatabase
from queue_app.index import Index, get_index
from queue_app.models import PriorityPolicy
from queue_app.services.owner import check_owner, is_foreign
from queue_app.services.repair.load import Loader, leave_to_load
from queue_app.services.repair.reap import MIN_GAP_SECONDS, declare_dead
from queue_app.services.repair.rebuild_lock import RebuildLock, rebuild_lock, unreleased
from queue_app.sql import snapshot, workers
from queue_app.sql.database import alias, clock
from queue_app.sql.grants import unanswered
from queue_app.sql.identity import database_identity
from queue_app.sql.load import Part

logger = logging.getLogger("taskqueue")

#: How long a process waits for a rebuild to allow claims. Then its other work continues: reports of ended tasks, the
#: jobs of the scheduler.
OPEN_SECONDS = 5.0
#: How long to wait for the end of a rebuild that loads tasks while claims are allowed. Most are done by then.
LOAD_SECONDS = 1.0
#: Time between two looks whether the workers have named their grants.
ANSWER_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild wrote: its generation, queued tasks, leases, and how long it took (s)."""

    generation: int
    tasks: int
    leases: int
    seconds: float


def is_needed(generation: int | None = None) -> bool:
    """Whether the index is not ready, or not of the generation of the rows, now or as they had it a moment ago."""
    index = get_index().generation()  # read before the rows, or a rebuild that ends in between would look stale
    if index.state == "ready" or (index.state == "loading" and not unreleased):  # another process is at work
        return index.number != (snapshot.generation() if generation is None else generation) or is_foreign(index.owner)
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
                logger.warning("a rebuild broke off and starts over: %s", " ".join(str(error).split()))
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


def rebuild(*, adopt: bool = False, on_open: Callable[[], object] = lambda: None) -> Rebuilt | None:
    """Rebuild the index; return ``None`` when another process is rebuilding it, or a server was lost meanwhile.

    Calls ``on_open`` when claims are allowed, before the rest is loaded. A process that loses the lock stops before it
    deletes anything. If two rebuilds run at once, the later generation wins. Raises ``IndexOfAnotherDatabase``, unless
    the caller wants to ``adopt`` such an index.
    """
    started = time.monotonic()
    index = get_index()
    if adopt:
        index.disown()
    try:
        check_owner()
    except IndexOfAnotherDatabase:
        if index.generation().number == snapshot.generation():
            snapshot.raise_generation()  # the rows would accept claims from that index
        raise
    with rebuild_lock(index) as lock:
        written = _write(index, lock, on_open) if lock else None
    if written is None:
        return None
    rebuilt = Rebuilt(*written, time.monotonic() - started)
    snapshot.record_ready(rebuilt.generation, rebuilt.tasks, rebuilt.leases)
    signals.index_rebuilt.send(
        None, generation=rebuilt.generation, tasks=rebuilt.tasks, leases=rebuilt.leases, seconds=rebuilt.seconds
    )
    return rebuilt


def _write(index: Index, lock: RebuildLock, on_open: Callable[[], object]) -> tuple[int, int, int] | None:
    """Write a new generation; return it with the number of tasks and leases, ``None`` if the index was lost."""
    await_answers(lock.end_step)
    number = snapshot.raise_generation(above=index.generation().number)

    left: list[Part] = []

    def prepare() -> None:
        copy_limits()
        left.extend(leave_to_load(index, number))

    if not index.begin_generation(number, lock.token, prepare, database_identity()):
        return None
    leases = index.restore_leases(snapshot.executing())
    load = Loader(index, number, left, lock.end_step)
    # PostgreSQL may have crashed since step 1, unnoticed behind a pooler. Then the rows that were read lack grants.
    if not load.begin() or unanswered() or not index.open_generation(number):
        return None
    index.notify_workers(workers.live())  # the new index has no idle workers: each worker must claim once
    on_open()
    if not (load.finish() and index.finish_generation(number)):
        return None
    return number, load.tasks, leases


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


def copy_limits() -> int:
    """Copy all limits and the promotion thresholds from their rows to the index; return how many differed.

    Tells the index the rows' time first: throttles and ages are instants of the rows.
    An edit between reading a row and writing its copy would be overwritten. So after a change the rows
    are read again, until nothing differs.
    """
    get_index().set_clock(clock())
    differed = changed = _copy_limits_once()
    for _ in range(3):
        if not changed:
            break
        changed = _copy_limits_once()
    return differed


def _copy_limits_once() -> int:
    index = get_index()
    found = snapshot.limits()
    changed = int(index.set_thresholds(PriorityPolicy.thresholds(alias())))
    gone = dict.fromkeys(index.limited() - found.keys())
    return changed + index.copy_limits([*found.items(), *gone.items()])
