"""Say why a task is not running: every reason, in order, by whom, since when and until when.

The index tells what a claim would find: the same script code that a claim uses looks at the
same gates. The rows tell the rest: who paused, who holds the slots, which workers live. So
a claim by an idle worker that is able refuses the task exactly when a reason blocks it
(``Explanation.blocking``), and a test holds the two together. What it says is of one
moment: between two looks a slot may come free.

A queued task that the index does not hold is put at its place at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Sum
from django.utils import timezone

from queue_app.core.explanation import Explanation, Reason
from queue_app.core.records import TaskRef
from queue_app.core.states import TERMINAL, Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.placement import GateState, Standing
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker
from queue_app.models.limit import Scope
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.worker import WorkerStatus
from queue_app.services.read.inspect import effective_options, get_task
from queue_app.sql.database import alias

#: So many holders of slots a sentence names; the details hold more.
NAMED: Final = 3

type Paused = Queue | Limit | RuntimeSettings


def explain(task_id: uuid.UUID, visible: TaskQuerySet | None = None) -> Explanation:
    """Return all reasons why a task is not running, the most decisive first; raise ``TaskNotFound``.

    ``visible`` are the tasks that may be named to whoever asks: without it all of them, and
    people and workers too.
    """
    tasks = Task.objects.using(alias()).all() if visible is None else visible
    return explain_task(get_task(tasks, task_id), visible)


def explain_task(task: Task, visible: TaskQuerySet | None = None) -> Explanation:
    """Return why this task, as it was just read, is not running; as ``explain``."""
    status = Status(task.status)
    if status in TERMINAL:
        reasons = [_finished(task)]
    elif status is Status.EXECUTING:
        reasons = [_executing(task, visible)]
    elif status is Status.SCHEDULED:
        reasons = [_waits_until(task), *_paused_by_rows(task, visible)]
    else:
        reasons = _queued(task, visible)
    return Explanation(task.id, status.value, tuple(reasons))


# -- tasks that do not wait in a queue ----------------------------------------------------------------


def _finished(task: Task) -> Reason:
    status = task.status.replace("_", " ")
    text = f"It has ended: {status} {_at(task.finished_at)}."
    return Reason("finished", text, details={"status": task.status, "finished_at": task.finished_at})


def _executing(task: Task, visible: TaskQuerySet | None) -> Reason:
    worker = None
    if visible is None and task.worker_id is not None:
        worker = Worker.objects.using(alias()).filter(pk=task.worker_id).first()
    on = f" on {worker.name}" if worker else ""
    text = f"It is executing{on} since {_at(task.started_at)}, in attempt {task.attempt}."
    if task.cancel_requested_at is not None:
        text += " It was asked to stop."
    details = {"worker_id": task.worker_id, "since": task.started_at, "attempt": task.attempt}
    return Reason("executing", text, details=details)


def _waits_until(task: Task) -> Reason:
    if not task.failures:
        text = f"It is to start no earlier than {_at(task.run_after)}."
        return Reason("waits_until", text, until=task.run_after)
    most = effective_options(task).max_retries
    text = f"It failed, and is tried again {_at(task.run_after)}: retry {task.failures} of {most}."
    return Reason("retry", text, until=task.run_after, details={"retry": task.failures, "of": most})


# -- queued tasks --------------------------------------------------------------------------------------


def _queued(task: Task, visible: TaskQuerySet | None) -> list[Reason]:
    try:
        return [*_of_index(task, visible), *worker_reasons(task, names=visible is None)]
    except IndexUnavailable:
        text = "Redis cannot be reached: nothing starts until it answers. The task is safe in PostgreSQL."
        return [
            Reason("index_unreachable", text),
            *_paused_by_rows(task, visible),
            *worker_reasons(task, names=visible is None),
        ]


def _of_index(task: Task, visible: TaskQuerySet | None) -> Iterator[Reason]:
    index, ref = get_index(), ref_of(task)
    standing = index.explain(ref)
    if standing.state != "ready":
        text = "The index is being built anew from the rows. Nothing starts until that is done, in a moment."
        yield Reason("index_rebuilding", text, details={"state": standing.state})
    elif standing.is_leased:
        text = "It is being given to a worker at this moment, or its worker died before it was: then within 20 s."
        yield Reason("being_claimed", text)
    elif not standing.waits:
        index.push([ref])
        yield Reason("index_missing", "The index did not hold it; it does now.", blocks=False)
        standing = index.explain(ref)
    paused = list(_paused_by_rows(task, visible))
    yield from paused
    known = {reason.details["scope"] for reason in paused}
    for gate in standing.gates:
        if gate.paused and gate.scope not in known:  # the index has not heard of the end of it
            text = f"{_name_of(gate)} was paused, and goes on in a moment."
            yield Reason("paused", text, details={"scope": gate.scope, "name": gate.name})
        yield from _of_gate(gate, visible)
    position = index.position(ref)
    if position is not None:
        yield _place(task, standing, position)


def _place(task: Task, standing: Standing, position: int) -> Reason:
    """Say where it stands by time; where others take turns with it, only the order of its own is certain."""
    details = {"ahead": position - 1, "priority": task.band.label}
    text = f"Position {position:,} in its queue." if position > 1 else "Next to run in its queue."
    if standing.turns:
        details |= {"turns": standing.turns, "ahead_of_own": standing.own_ahead}
        own = f"{standing.own_ahead:,} of its own {standing.turns} come first"
        if standing.own_ahead == 0:
            own = f"it is the next of its {standing.turns}"
        elif standing.own_ahead == 1:
            own = f"one of its own {standing.turns} comes first"
        text = f"About position {position:,} in its queue, by time. There {standing.turns}s take turns: {own}."
    return Reason("position", text, blocks=False, details=details)


def _of_gate(gate: GateState, visible: TaskQuerySet | None) -> Iterator[Reason]:
    """Yield what keeps a gate shut besides a pause; all of it, as one thing alone would."""
    what = _name_of(gate)
    details = {"scope": gate.scope, "name": gate.name}
    if gate.cap is not None and gate.used >= gate.cap:
        text = f"{what} is at its limit: {gate.used} of at most {gate.cap} run."
        held = _holders(gate, visible)
        if held:
            named = [f"{item['task_id']}{' on ' if item['worker'] else ''}{item['worker']}" for item in held[:NAMED]]
            others = gate.used - len(named)
            text += f" The slots are held by {', '.join(named)}{f' and {others} more' if others > 0 else ''}."
        numbers = {"limit": gate.cap, "current": gate.used, "held_by": held}
        yield Reason("limit_reached", text, details=details | numbers)
    now = timezone.now()
    if gate.throttled_until is not None and gate.throttled_until > now:
        text = f"{what} was told to slow down: nothing of it starts before {_at(gate.throttled_until)}."
        yield Reason("throttled", text, until=gate.throttled_until, details=details)
    elif gate.next_at is not None and gate.is_shut:
        every = f" at {gate.burst} and one more each {gate.interval:g} s" if gate.burst and gate.interval else ""
        text = f"{what} has used up its rate{every}: the next may start {_at(gate.next_at)}."
        yield Reason(
            "rate_limited", text, until=gate.next_at, details=details | {"burst": gate.burst, "seconds": gate.interval}
        )


def _holders(gate: GateState, visible: TaskQuerySet | None) -> list[dict[str, str]]:
    """Return some of the tasks that hold the slots of a gate, with their workers; those that may be named."""
    tasks = Task.objects.using(alias()).all() if visible is None else visible
    held = list(tasks.filter(pk__in=gate.holders).order_by("started_at", "id").values_list("id", "worker_id"))
    ids = {worker_id for _, worker_id in held if worker_id} if visible is None else set()
    names = dict(Worker.objects.using(alias()).filter(pk__in=ids).values_list("id", "name"))
    return [{"task_id": str(task_id), "worker": names.get(worker_id, "")} for task_id, worker_id in held]


def _paused_by_rows(task: Task, visible: TaskQuerySet | None) -> Iterator[Reason]:
    """Yield the pauses that the rows hold for the task: who, why, until when."""
    for kind, name, row in _pausable(task):
        if row is None or not row.paused:
            continue
        what = _WHAT[kind].format(name)
        by = f" by {row.paused_by}" if row.paused_by and visible is None else ""
        why = f": {row.paused_reason.rstrip('.')}." if row.paused_reason else "."
        until = f" It resumes by itself {_at(row.resume_at)}." if row.resume_at else ""
        details = {"scope": kind, "name": name, "since": row.paused_at, "reason": row.paused_reason}
        if visible is None:
            details["by"] = row.paused_by
        text = f"{what} is paused{by} since {_at(row.paused_at)}{why}{until}"
        yield Reason("paused", text, until=row.resume_at, details=details)


def _pausable(task: Task) -> Iterator[tuple[str, str, Paused | None]]:
    yield "everything", "", RuntimeSettings.objects.using(alias()).filter(pk=1).first()
    yield "queue", task.queue, Queue.objects.using(alias()).filter(pk=task.queue).first()
    limits = Limit.objects.using(alias())
    yield "type", task.task_type, limits.filter(scope=Scope.TYPE, name=task.task_type).first()
    key = task.concurrency_key
    if key:
        yield "key", key, limits.filter(scope=Scope.KEY, name=key).first()
        family = key.partition(":")[0]
        if family != key:
            yield "key", family, limits.filter(scope=Scope.KEY, name=family).first()


_WHAT = {
    "everything": "Everything",
    "queue": "The queue {}",
    "type": "The task type {}",
    "key": "The key {}",
    "user": "The user {} in this queue",
}


def _name_of(gate: GateState) -> str:
    return _WHAT[gate.scope].format(gate.name)


def ref_of(task: Task) -> TaskRef:
    """Return a queued task as the index knows it."""
    assert task.queued_at is not None  # noqa: S101 - a constraint of the table; tells mypy so
    return TaskRef(
        task.id,
        task.task_type,
        task.queue,
        task.priority,
        tuple(task.capabilities),
        task.queued_at,
        task.user,
        task.concurrency_key,
        task.weight,
    )


def _at(when: datetime | None) -> str:
    return "at a time that is not known" if when is None else f"{timezone.localtime(when):%Y-%m-%d %H:%M:%S %Z}"


MAX_WORKERS: Final = 500


@dataclass(frozen=True, slots=True)
class Lack:
    """What a live worker lacks for a task; nothing, when it is able."""

    worker: Worker
    queue: bool
    task_type: bool
    capabilities: tuple[str, ...]
    slots: bool

    @property
    def count(self) -> int:
        """How many things are missing."""
        return self.queue + self.task_type + len(self.capabilities) + self.slots

    def words(self) -> str:
        """Say what is missing."""
        parts = ["does not serve the queue"] if self.queue else []
        parts += ["does not know the task type"] if self.task_type else []
        parts += [f"lacks {', '.join(self.capabilities)}"] if self.capabilities else []
        parts += [f"has {self.worker.concurrency} slots only"] if self.slots else []
        return " and ".join(parts)


def worker_reasons(task: Task, *, names: bool) -> Iterator[Reason]:
    """Yield why no live worker runs the task: none is able, or those that are have no slot for it.

    With ``names`` it tells which workers those are.
    """
    live = list(Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE)[:MAX_WORKERS])
    lacks = sorted((_lack(worker, task) for worker in live), key=lambda lack: lack.count)
    able = [lack.worker for lack in lacks if not lack.count]
    if not able:
        yield _none_able(task, lacks, names=names)
    elif (free := max(0, _most_free(able))) < task.weight:
        text = f"All slots of the {len(able)} workers that could run it are taken."
        if task.weight > 1:
            text = f"It takes {task.weight} slots of one worker at once; at most {free} are free in one."
        details: dict[str, Any] = {"weight": task.weight, "free": free, "workers": len(able)}
        yield Reason("no_free_slot", text, details=details)


def _lack(worker: Worker, task: Task) -> Lack:
    return Lack(
        worker,
        queue=bool(worker.queues) and task.queue not in worker.queues,
        task_type=task.task_type not in worker.task_types,
        capabilities=tuple(name for name in task.capabilities if name not in worker.capabilities),
        slots=worker.concurrency < task.weight,
    )


def _none_able(task: Task, lacks: Sequence[Lack], *, names: bool) -> Reason:
    """Name the first thing that no worker has, and what comes closest."""
    if not lacks:
        return Reason("no_worker", "No live worker takes new tasks.")
    steps: tuple[tuple[str, str, Callable[[Lack], bool]], ...] = (
        ("no_worker_for_queue", f"No live worker serves the queue {task.queue}.", lambda lack: not lack.queue),
        (
            "no_worker_with_capabilities",
            f"No live worker of this queue offers {', '.join(task.capabilities)}.",
            lambda lack: not lack.capabilities,
        ),
        (
            "no_worker_knows_type",
            f"No live worker that could run it knows the task type {task.task_type}.",
            lambda lack: not lack.task_type,
        ),
        ("too_heavy", f"It takes {task.weight} slots, and no such worker has so many.", lambda lack: not lack.slots),
    )
    left, nearest = list(lacks), list(lacks)
    code, text = steps[-1][:2]
    for code, text, keeps in steps:  # noqa: B007 - the first that leaves nobody is the one
        nearest, left = left, [lack for lack in left if keeps(lack)]
        if not left:
            break
    near = sorted(lacks, key=lambda lack: (lack.count, lack not in nearest))[:NAMED] if names else []
    if near:
        text += " Closest: " + "; ".join(f"{lack.worker.name} {lack.words()}" for lack in near) + "."
    return Reason(code, text, details={"closest": [{"worker": x.worker.name, "lacks": x.words()} for x in near]})


def _most_free(workers: Sequence[Worker]) -> int:
    """Return the most slots that are free in one of the workers, by the rows."""
    taken: dict[Any, int] = dict(
        Task.objects.using(alias())
        .filter(status=Status.EXECUTING, worker_id__in=[worker.id for worker in workers])
        .values_list("worker_id")
        .annotate(total=Sum("weight"))
    )
    return max(int(worker.concurrency) - taken.get(worker.id, 0) for worker in workers)
