"""Explain why a task is not running: every reason, who caused it, since when and until when.

The index answers with the same Lua code as a claim, so both see the same gates. The rows add who paused, which tasks
hold the slots, and which workers are alive. A claim by an idle, able worker skips the task exactly when a reason blocks
it (``Explanation.blocking``); a test checks this. The answer describes one moment, and nothing is written.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from queue_app import registry
from queue_app.core.explanation import Explanation, Reason
from queue_app.core.ids import Id, parse_id
from queue_app.core.limit_values import Scope, names_of
from queue_app.core.records import TaskRef
from queue_app.core.stall import StallKind
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.core.steps import StepKind
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.placement import GateState, Placement
from queue_app.index.server import index_health
from queue_app.models import Limit, Queue, RuntimeSettings, ScheduleTick, StepResult, Task, Worker
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.read import stalls
from queue_app.services.read.ability import Workforce
from queue_app.services.read.adaptive import of_gate
from queue_app.services.read.awaited import Awaited, awaited
from queue_app.services.read.explain_workflow import in_workflow
from queue_app.services.read.inspect import effective_options, get_task
from queue_app.sql.database import alias

#: Maximum number of slot holders that a sentence names.
NAMED: Final = 3
_SUBJECTS: Final = {
    "everything": "Everything",
    "queue": "The queue {}",
    "type": "The task type {}",
    "key": "The key {}",
    "user": "The user {} in this queue",
}

type Paused = Queue | Limit | RuntimeSettings


def explain(task_id: Id, visible: TaskQuerySet | None = None) -> Explanation:
    """Return all reasons why a task is not running, the most decisive first; raise ``TaskNotFound``.

    With ``visible``, the answer names only these tasks, and neither people, the reasons that they gave, nor workers.
    """
    tasks = Task.objects.using(alias()).all() if visible is None else visible
    return explain_task(get_task(tasks, parse_id(task_id)), visible)


def explain_task(task: Task, visible: TaskQuerySet | None = None) -> Explanation:
    """Return why a task that was just read is not running; like ``explain``."""
    status = Status(task.status)
    if status in TERMINAL:
        text = f"It {predicate(status)}; it ended {_time(task.finished_at)}."
        reasons = [Reason("finished", text, details={"status": status.value, "finished_at": task.finished_at})]
    elif status is Status.EXECUTING:
        reasons = [_executing(task, visible)]
    elif status is Status.BLOCKED:
        reasons = [_waits_for_signal(one) for one in awaited(task.id)]
        reasons += in_workflow(task, named=visible is None)
        reasons = reasons or [Reason("blocked", "It waits for other tasks of its workflow.")]
    elif status is Status.SCHEDULED:
        reasons = [_waits_until(task), *_pauses(task, visible), *_without_scheduler("It is not queued at its time")]
    else:
        try:
            reasons = list(_from_index(task, visible))
        except IndexUnavailable:
            text = "Redis cannot be reached: no task starts until Redis answers. The task is safe in PostgreSQL."
            reasons = [Reason("index_unreachable", text), *_pauses(task, visible)]
        reasons += Workforce().why_not(task, named=visible is None)
        reasons += _stalled(task, named=visible is None)
    return Explanation(task.id, status.value, (*_place_last(reasons), *_unique(task, status), *_of_schedule(task)))


def _place_last(reasons: Sequence[Reason]) -> Iterator[Reason]:
    """Yield the place in the queue after what blocks the task; the first of a queue is not next while it is blocked."""
    yield from (reason for reason in reasons if reason.code != "position")
    blocked = any(reason.blocks for reason in reasons)
    for reason in reasons:
        if reason.code == "position":
            is_first = blocked and reason.details["ahead"] == 0 and "turns" not in reason.details
            yield replace(reason, text="First in its queue once it can start.") if is_first else reason


def _unique(task: Task, status: Status) -> Iterator[Reason]:
    """Yield the rule by which the task stands for others like it."""
    if task.unique_key and status not in TERMINAL:
        rule = getattr(registry.known(task.task_type), "unique", None)
        words = rule.words if rule else "no second task of its key is stored while it stands"
        yield Reason("unique", f"It is unique: {words}.", blocks=False, details={"key": task.unique_key})


def _of_schedule(task: Task) -> Iterator[Reason]:
    tick = ScheduleTick.objects.using(alias()).filter(task_id=task.id).select_related("schedule").first()
    if tick is not None:
        text = f"It is the tick of {_time(tick.instant)} of the schedule {tick.schedule.name}."
        details = {"schedule": tick.schedule.name, "instant": tick.instant, "kind": tick.kind}
        yield Reason("schedule", text, blocks=False, details=details)


def _executing(task: Task, visible: TaskQuerySet | None) -> Reason:
    worker = None
    if visible is None and task.worker_id is not None:
        worker = Worker.objects.using(alias()).filter(pk=task.worker_id).first()
    on = f" on {worker.name}" if worker else ""
    text = f"It has been executing{on} since {_time(task.started_at)}, in attempt {task.attempt}."
    if task.cancel_requested_at is not None:
        text += " It was asked to stop."
    details = {"worker_id": task.worker_id, "since": task.started_at, "attempt": task.attempt}
    return Reason("executing", text, details=details)


def _waits_for_signal(one: Awaited) -> Reason:
    until = f" until {timezone.localtime(one.until):%A %Y-%m-%d %H:%M %Z}" if one.until else ""
    details = {"signal": one.signal, "fields": one.fields}
    return Reason("waits_for_signal", f"It waits for the signal {one.signal}{until}.", until=one.until, details=details)


def _waits_until(task: Task) -> Reason:
    sleep = task.attempt and StepResult.objects.using(alias()).filter(
        task_id=task.id, kind=StepKind.SLEEP, until__gt=timezone.now()
    )
    if sleep and sleep.exists():
        text = f"It sleeps until {_time(task.run_after)}, and then goes on after its last step."
        return Reason("sleeps", text, until=task.run_after)
    if not task.failures:
        return Reason("waits_until", f"It starts no earlier than {_time(task.run_after)}.", until=task.run_after)
    most = effective_options(task).max_retries
    text = f"It failed; retry {task.failures} of {most} starts no earlier than {_time(task.run_after)}."
    return Reason("retry", text, until=task.run_after, details={"retry": task.failures, "of": most})


def _from_index(task: Task, visible: TaskQuerySet | None) -> Iterator[Reason]:
    index, ref = get_index(), TaskRef.of(task)
    placement = index.explain(ref)
    if placement.state != "ready":
        text = "The index is being rebuilt from the rows. No task starts until the rebuild is done."
        yield Reason("index_rebuilding", text, details={"state": placement.state})
        yield from _without_scheduler("Only a worker that claims rebuilds the index")
    elif placement.is_leased:
        text = "A worker is claiming it. If the worker dies before it starts the task, the lease ends within 20 s."
        yield Reason("being_claimed", text)
    elif not placement.waits:
        yield Reason("index_missing", "The index lacks the task; the reconciler adds it within seconds.")
        yield from _without_scheduler("The index is not repaired")
    pauses = list(_pauses(task, visible))
    yield from pauses
    known = {reason.details["scope"] for reason in pauses}
    for gate in placement.gates:
        if gate.paused and gate.scope not in known:  # resumed in the rows, not yet in the index
            text = f"{_SUBJECTS[gate.scope].format(gate.name)} was paused and resumes in a moment."
            yield Reason("paused", text, details={"scope": gate.scope, "name": gate.name})
        yield from _from_gate(gate, visible)
    position = index.position(ref)
    if position is not None:
        yield _position(task, placement, position)


def _without_scheduler(consequence: str) -> Iterator[Reason]:
    """Yield that no scheduler leads, if the task needs one."""
    with suppress(IndexUnavailable):
        if not index_health(get_index()).has_leader:
            text = f"No scheduler runs. {consequence}: start `manage.py runscheduler`."
            yield Reason("no_scheduler", text)


def _stalled(task: Task, *, named: bool) -> Iterator[Reason]:
    """Yield that work stands still in the queue of the task, if the watchdog says so."""
    for stall in stalls.read().stalls:
        if stall.kind is StallKind.NOT_STARTED and stall.subject == task.queue:
            text = f"{stall.text} {stall.steps}".strip()
            if not named:
                text = f"Work stands still in queue {task.queue}, although workers ask for tasks. Staff see why."
            yield Reason("stalled", text, blocks=False, details={"queue": task.queue, "since": stall.since})


def _position(task: Task, placement: Placement, position: int) -> Reason:
    """Return the place in the queue. In a fair queue, only the order among tasks of the same user or key is certain."""
    details = {"ahead": position - 1, "priority": task.band.label}
    text = f"Position {position:,} in its queue." if position > 1 else "Next to run in its queue."
    if placement.turns:
        details |= {"turns": placement.turns, "ahead_of_own": placement.own_ahead}
        own = f"{placement.own_ahead:,} tasks of the same {placement.turns} come first"
        if placement.own_ahead == 0:
            own = f"it is the next task of its {placement.turns}"
        elif placement.own_ahead == 1:
            own = f"1 task of the same {placement.turns} comes first"
        text = f"About position {position:,} in its queue, by time. The {placement.turns}s take turns: {own}."
    return Reason("position", text, blocks=False, details=details)


def _from_gate(gate: GateState, visible: TaskQuerySet | None) -> Iterator[Reason]:
    """Yield every reason besides a pause that closes a gate; each alone would be enough."""
    subject = _SUBJECTS[gate.scope].format(gate.name)
    details: dict[str, Any] = {"scope": gate.scope, "name": gate.name}
    if gate.cap is not None and gate.used >= gate.cap:
        text = f"{subject} is at its limit: {gate.used} of at most {gate.cap} run."
        adaptive = of_gate(gate.scope, gate.name) if gate.scope != "user" else None
        if adaptive is not None:
            text = f"{subject} is at its limit: {gate.used} run. It adapts itself: {adaptive.words()}"
            details["adaptive"] = asdict(adaptive)
        holders = _holders(gate, visible)
        if holders:
            named = [f"{item['task_id']}{' on ' if item['worker'] else ''}{item['worker']}" for item in holders[:NAMED]]
            others = gate.used - len(named)
            text += f" The slots are held by {', '.join(named)}{f' and {others} more' if others > 0 else ''}."
        numbers = {"limit": gate.cap, "current": gate.used, "held_by": holders}
        yield Reason("limit_reached", text, details=details | numbers)
    if gate.throttled_until is not None and gate.throttled_until > timezone.now():
        text = f"{subject} is throttled: none of its tasks starts before {_time(gate.throttled_until)}."
        yield Reason("throttled", text, until=gate.throttled_until, details=details)
    elif gate.next_at is not None and gate.is_closed:
        every = f" ({gate.burst} at once, then 1 every {gate.interval:g} s)" if gate.burst and gate.interval else ""
        text = f"{subject} has used up its rate{every}: the next task may start {_time(gate.next_at)}."
        details |= {"burst": gate.burst, "seconds": gate.interval}
        yield Reason("rate_limited", text, until=gate.next_at, details=details)


def _holders(gate: GateState, visible: TaskQuerySet | None) -> list[dict[str, str]]:
    """Return some visible tasks that hold the slots of a gate, with their workers."""
    tasks = Task.objects.using(alias()).all() if visible is None else visible
    held = list(tasks.filter(pk__in=gate.holders).order_by("started_at", "id").values_list("id", "worker_id"))
    ids = {worker_id for _, worker_id in held if worker_id} if visible is None else set()
    names = dict(Worker.objects.using(alias()).filter(pk__in=ids).values_list("id", "name"))
    return [{"task_id": str(task_id), "worker": names.get(worker_id, "")} for task_id, worker_id in held]


def _pauses(task: Task, visible: TaskQuerySet | None) -> Iterator[Reason]:
    """Yield the pauses in the rows that stop the task: who, why, until when."""
    for scope, name, row in _pausable(task):
        if row is None or not row.paused:
            continue
        by = f" by {row.paused_by}" if row.paused_by and visible is None else ""
        why = f": {row.paused_reason.rstrip('.')}." if row.paused_reason and visible is None else "."
        until = f" It resumes by itself {_time(row.resume_at)}." if row.resume_at else ""
        details = {"scope": scope, "name": name, "since": row.paused_at}
        if visible is None:
            details |= {"by": row.paused_by, "reason": row.paused_reason}
        text = f"{_SUBJECTS[scope].format(name)} was paused{by} {_time(row.paused_at)}{why}{until}"
        yield Reason("paused", text, until=row.resume_at, details=details)


def _pausable(task: Task) -> Iterator[tuple[str, str, Paused | None]]:
    yield "everything", "", RuntimeSettings.objects.using(alias()).filter(pk=1).first()
    yield "queue", task.queue, Queue.objects.using(alias()).filter(pk=task.queue).first()
    limits = Limit.objects.using(alias())
    yield "type", task.task_type, limits.filter(scope=Scope.TYPE, name=task.task_type).first()
    for name in names_of(Scope.KEY, task.concurrency_key) if task.concurrency_key else ():
        yield "key", name, limits.filter(scope=Scope.KEY, name=name).first()


def _time(when: datetime | None) -> str:
    return "at an unknown time" if when is None else f"{timezone.localtime(when):%Y-%m-%d %H:%M:%S %Z}"
