"""Requeue the tasks of dead workers, and fail tasks that are stuck past their deadline.

A worker is dead when it sends no heartbeat for its whole budget, or at once when it ran on this
machine and its process is gone. A scheduler measures silence by its own monotonic clock, from the last change of
the heartbeat that it saw; so no step of PostgreSQL's clock makes a worker dead. Tasks of a worker that stopped,
or whose row is gone, are requeued too. Crashes are counted apart from failures; a task with too many
becomes a dead letter (``crash_loop``).

While an old snapshot makes the queries of all executing rows slow, they pause (``core.process``). Meanwhile the
reaper reads the rows of tasks that hold a lease: about 500 in each turn, and all of them when a worker died. The
reconciler gives executing rows the leases that they lack.

Crash points: before the commit nothing has happened, and the next tick repeats it. Between the rows
and the index, the reconciler ends the leases and pushes the tasks.
"""

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import ClassVar

from queue_app import conf, signals
from queue_app.core.priorities import BAND_NAMES
from queue_app.core.process import QueryPauses, machine_identity, process_identity
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, get_index
from queue_app.services.advance import advance_returned
from queue_app.services.enqueue.admission import enqueue_callbacks
from queue_app.services.lifecycle.claim import return_to_index, withdraw_last
from queue_app.services.lifecycle.dependencies import settle_later
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.notify.index import notify_index
from queue_app.services.upkeep.jobs import Answers
from queue_app.sql import workers
from queue_app.sql.database import atomic, clock
from queue_app.sql.prepared import Row

BATCH = 500
#: Longest gap between two comparisons of the heartbeats that counts as silence, unless a worker's interval is longer.
#: In a longer gap PostgreSQL may have been away. With a shorter limit a busy scheduler would never count silence.
MIN_GAP_SECONDS = 2.0


def reap(silent: Mapping[uuid.UUID, str] = MappingProxyType({})) -> int:
    """Declare workers dead and end at most ``BATCH`` of their attempts; return the number of attempts.

    ``silent``: workers that were silent for their whole budget, each with the last heartbeat that it sent.
    """
    declare_dead(silent)
    return reap_orphans()


def declare_dead(silent: Mapping[uuid.UUID, str]) -> int:
    """Declare silent workers and those without a process dead; return how many."""
    dead = workers.mark_silent_dead(silent)
    _announce(dead)
    return len(dead) + mark_dead_locally()


class Reaper:
    """Reaps about every second, and remembers how long each worker has been silent."""

    QUESTIONS: ClassVar = ("heartbeats", "neighbours", "orphans")

    def __init__(self, pauses: QueryPauses | None = None) -> None:
        self._pauses = pauses or QueryPauses(conf.get().scheduler.reap_seconds)
        self._cursors = {"orphans": 0, "overdue": 0}  # where to continue among the leases
        self._compared_at = -math.inf  # monotonic
        self._resumed_at = -math.inf  # monotonic; when turns began again after a long gap
        self._silence: dict[str, tuple[str, float]] = {}  # worker -> its last heartbeat, seconds since without another
        self._silent: dict[uuid.UUID, str] | None = None  # as the answers of this turn say

    def run_once(self) -> int:
        """Call ``reap`` with the workers that have been silent for their whole budget."""
        silent = self._silent if self._silent is not None else self._compare(workers.heartbeats())
        self._silent = None
        if "orphans" not in self._pauses:
            return reap(silent)
        died = declare_dead(silent)
        return sum(reap_orphans(ids) for ids in self._leased("orphans", everything=died > 0))

    def is_wanted(self, answers: Answers) -> bool:
        """Whether the answers name something to reap, or must be found without them; compares the heartbeats too."""
        self._silent = self._compare(answers["heartbeats"])
        orphans = answers["orphans"] is not False
        return bool(self._silent) or orphans or any(map(_is_gone, answers["neighbours"]))

    def fail_overdue(self) -> int:
        """Fail overdue tasks, but not soon after a gap in which the workers may have been frozen, too.

        They report by how much they have moved the deadlines.
        """
        if time.monotonic() - self._resumed_at < conf.get().scheduler.overdue_seconds:
            return 0
        if "overdue" not in self._pauses:
            return reap_overdue()
        return sum(reap_overdue(ids) for ids in self._leased("overdue"))

    def _leased(self, query: str, *, everything: bool = False) -> Iterator[list[uuid.UUID]]:
        """Yield the next tasks that hold a lease, or all of them; none while the index is away."""
        more = True
        while more:
            try:
                self._cursors[query], ids = get_index().leased(self._cursors[query])
            except IndexUnavailable:
                return
            if ids:
                yield ids
            more = everything and self._cursors[query] != 0

    def _compare(self, heartbeats: Iterable[str]) -> dict[uuid.UUID, str]:
        """Compare heartbeats with those of the last turn; return the silent workers, each with its last heartbeat."""
        now = time.monotonic()
        gap, self._compared_at = now - self._compared_at, now
        if conf.get().scheduler.overdue_seconds < gap < math.inf:
            self._resumed_at = now
        before, self._silence = self._silence, {}
        budget, silent = conf.get().worker.missed_heartbeats, {}
        for each in heartbeats:
            worker, interval, beat = each.split(" ", 2)
            known, seconds = before.get(worker, ("", 0.0))
            if known != beat:
                seconds = 0.0
            elif gap <= max(float(interval), MIN_GAP_SECONDS):
                seconds += gap
            self._silence[worker] = (beat, seconds)
            if seconds > budget * float(interval):
                silent[uuid.UUID(worker)] = beat
        return dict(islice(silent.items(), BATCH))


def reap_orphans(among: Sequence[uuid.UUID] | None = None) -> int:
    """End at most ``BATCH`` attempts of workers that are gone, of all or of the tasks ``among``; return how many."""
    settings = conf.get()
    with atomic():
        reaped = workers.reap_orphans(
            BATCH,
            max_crashes=settings.retry.max_crashes,
            dead_letter_seconds=settings.retention.dead_letter_seconds,
            among=among,
        )
        workflows = advance_returned(reaped)
        enqueue_callbacks((each.task, each.status) for each in reaped)
    settle_later(workflows)
    if reaped:
        return_to_index(reaped)
        dead = [each.task for each in reaped if each.status is Status.DEAD_LETTER]
        if dead:
            signals.tasks_crash_looped.send(None, tasks=dead)
        again = [each.task for each in reaped if each.status in {Status.QUEUED, Status.SCHEDULED}]
        if again:
            signals.tasks_orphaned.send(None, tasks=again)
        events.count(Counter(f"retry:worker_died:{BAND_NAMES[task.priority]}" for task in again))
    return len(reaped)


def reap_overdue(among: Sequence[uuid.UUID] | None = None) -> int:
    """Fail tasks of workers that live but are stuck, of all or of the tasks ``among``; return how many.

    The worker enforces deadlines itself; the reaper waits ``SCHEDULER.OVERDUE_SECONDS`` longer. Two clocks must agree,
    so that a step of one of them ends no attempt. While the index is away there is only one: then nothing is overdue.
    """
    try:
        index_now = get_index().now()
    except IndexUnavailable:
        return 0
    tasks = workers.overdue(conf.get().scheduler.overdue_seconds, index_now, BATCH, among)
    return len(finish([_timed_out(task) for task in tasks])) if tasks else 0


def _timed_out(task: ClaimedTask) -> Outcome:
    failure = TaskFailure(
        exception_class="queue_app.exceptions.TaskTimeout",
        message=f"The attempt took longer than {task.timeout:g} s, and its worker did not end it.",
        traceback="",
        reason="timeout",
    )
    return Outcome(task, task.started_at, clock(), failure=failure)


def mark_dead(worker_id: uuid.UUID) -> int:
    """Declare one worker dead whose end the caller saw, and end its attempts; return how many it ended."""
    _announce(workers.mark_dead(worker_id))
    return reap_orphans()


def mark_dead_locally() -> int:
    """Declare workers of this machine dead whose process is gone; return how many.

    Compares boot id, pid namespace, pid and start time, so neither a reused pid nor another container is mistaken for
    the worker. On a platform without ``/proc`` this finds nothing; the heartbeat decides.
    """
    machine = machine_identity()
    if not machine:
        return 0
    gone = [
        worker_id
        for worker_id, pid, identity in workers.on_this_machine(machine, BATCH)
        if process_identity(pid) != identity
    ]
    for worker_id in gone:
        _announce(workers.mark_dead(worker_id))
    return len(gone)


def _is_gone(neighbour: str) -> bool:
    """Whether the process is gone; ``neighbour`` is its "pid identity"."""
    pid, _, identity = neighbour.partition(" ")
    return process_identity(int(pid)) != identity


def _announce(dead: list[Row]) -> None:
    for worker_id, name, profile in dead:
        notify_index(withdraw_last, "withdraw", worker_id)
        notify_index(Index.unregister, "retire", profile, worker_id)
        signals.worker_reaped.send(None, worker_id=worker_id, name=name)
    if dead:
        events.count({"worker:dead": len(dead)})
