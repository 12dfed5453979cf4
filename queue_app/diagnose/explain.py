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
from queue_app.core.explanation import Explanation, Reason, at_limit, because, by, subject
from queue_app.core.ids import Id, parse_id
from queue_app.core.limit_values import Scope, names_of
from queue_app.core.records import TaskRef
from queue_app.core.sentence import joined, listed, sentence, sentence_n
from queue_app.core.stall import StallKind
from queue_app.core.states import FAILURES, TERMINAL, Status, predicate
from queue_app.core.steps import StepKind
from queue_app.diagnose import stalls
from queue_app.diagnose.ability import Workforce
from queue_app.exceptions import IndexOfAnotherDatabase, IndexUnavailable
from queue_app.index import get_index
from queue_app.index.placement import GateState, Placement
from queue_app.index.server import index_health
from queue_app.models import Limit, Queue, RuntimeSettings, ScheduleTick, StepResult, Task, TaskAttempt, Worker
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.owner import check_owner
from queue_app.services.read.adaptive import of_gate
from queue_app.services.read.inspect import effective_options, get_task
from queue_app.services.read.workflows import held_by, in_workflow
from queue_app.sql.database import alias
from queue_app.sql.steps import Awaited, awaited

#: Maximum number of slot holders that a sentence names.
NAMED: Final = 3

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
        reasons += [*_last_error(task), *held_by(task)]
    elif status is Status.EXECUTING:
        reasons = [_executing(task, visible)]
    elif status is Status.BLOCKED:
        reasons = [_waits_for_signal(one) for one in awaited(task.id)]
        reasons += in_workflow(task, named=visible is None)
        reasons = reasons or [Reason("blocked", sentence("It waits for other tasks of its workflow."))]
    elif status is Status.SCHEDULED:
        unqueued = _without_scheduler(sentence("It is not queued at its time"))
        reasons = [_waits_until(task), *_pauses(task, visible), *unqueued]
    else:
        try:
            reasons = list(_from_index(task, visible))
        except IndexOfAnotherDatabase:
            text = sentence("The index in Redis belongs to another database. `manage.py taskqueue doctor` says which.")
            reasons = [Reason("index_unreachable", text), *_pauses(task, visible)]
        except IndexUnavailable:
            text = sentence(
                "Redis cannot be reached: no task starts until Redis answers. The task is safe in PostgreSQL."
            )
            reasons = [Reason("index_unreachable", text), *_pauses(task, visible)]
        reasons += Workforce().why_not(task, named=visible is None)
        reasons += _stalled(task, named=visible is None)
    return Explanation(task.id, status.value, (*_place_last(reasons), *_unique(task, status), *_of_schedule(task)))


def _last_error(task: Task) -> Iterator[Reason]:
    """Yield the error of the last attempt of a failed task, without its message, which may hold secrets."""
    last = TaskAttempt.objects.using(alias()).filter(task_id=task.id).order_by("-attempt").first()
    if task.status in FAILURES and last is not None and last.exception_class:
        text = sentence("Attempt %(n)s ended with %(error)s.", n=last.attempt, error=last.exception_class)
        yield Reason("error", text, blocks=False, details={"exception_class": last.exception_class})


def _place_last(reasons: Sequence[Reason]) -> Iterator[Reason]:
    """Yield the place in the queue after what blocks the task; the first of a queue is not next while it is blocked."""
    yield from (reason for reason in reasons if reason.code != "position")
    blocked = any(reason.blocks for reason in reasons)
    for reason in reasons:
        if reason.code == "position":
            is_first = blocked and reason.details["ahead"] == 0 and "turns" not in reason.details
            yield replace(reason, text=sentence("First in its queue once it can start.")) if is_first else reason


def _unique(task: Task, status: Status) -> Iterator[Reason]:
    """Yield the rule that makes the task unique."""
    if task.unique_key and status not in TERMINAL:
        rule = getattr(registry.known(task.task_type), "unique", None)
        words = rule.words if rule else sentence("until it has ended, no second task of its key is stored")
        text = sentence("It is unique: %(rule)s.", rule=words)
        yield Reason("unique", text, blocks=False, details={"key": task.unique_key})


def _of_schedule(task: Task) -> Iterator[Reason]:
    tick = ScheduleTick.objects.using(alias()).filter(task_id=task.id).select_related("schedule").first()
    if tick is not None:
        text = sentence(
            "It is the tick of %(time)s of the schedule %(name)s.",
            time=_time(tick.instant), name=tick.schedule.name,
        )  # fmt: skip
        details = {"schedule": tick.schedule.name, "instant": tick.instant, "kind": tick.kind}
        yield Reason("schedule", text, blocks=False, details=details)


def _executing(task: Task, visible: TaskQuerySet | None) -> Reason:
    worker = None
    if visible is None and task.worker_id is not None:
        worker = Worker.objects.using(alias()).filter(pk=task.worker_id).first()
    text = sentence(
        "It has been executing%(where)s since %(time)s, in attempt %(n)s.",
        where=_on(worker.name if worker else ""), time=_time(task.started_at), n=task.attempt,
    )  # fmt: skip
    if task.cancel_requested_at is not None:
        text = joined(text, sentence("It was asked to stop."))
    details = {"worker_id": task.worker_id, "since": task.started_at, "attempt": task.attempt}
    return Reason("executing", text, details=details)


def _waits_for_signal(one: Awaited) -> Reason:
    text = sentence("It waits for the signal %(name)s.", name=one.signal)
    if one.until:
        text = sentence("It waits for the signal %(name)s until %(time)s.", name=one.signal, time=_time(one.until))
    details = {"signal": one.signal, "fields": one.fields}
    return Reason("waits_for_signal", text, until=one.until, details=details)


def _waits_until(task: Task) -> Reason:
    sleep = task.attempt and StepResult.objects.using(alias()).filter(
        task_id=task.id, kind=StepKind.SLEEP, until__gt=timezone.now()
    )
    if sleep and sleep.exists():
        text = sentence("It sleeps until %(time)s, and then continues after its last step.", time=_time(task.run_after))
        return Reason("sleeps", text, until=task.run_after)
    if not task.failures:
        text = sentence("It starts no earlier than %(time)s.", time=_time(task.run_after))
        if task.attempt:
            why = sentence(
                "Attempt %(n)s put it off: the code asked for that (Snooze), or the worker lacked a key or newer code."
                " The log of the worker says which.",
                n=task.attempt,
            )
            text = joined(text, why)
        return Reason("waits_until", text, until=task.run_after)
    most = effective_options(task).max_retries
    text = sentence(
        "It failed; retry %(n)s of %(most)s starts no earlier than %(time)s.",
        n=task.failures, most=most, time=_time(task.run_after),
    )  # fmt: skip
    return Reason("retry", text, until=task.run_after, details={"retry": task.failures, "of": most})


def _from_index(task: Task, visible: TaskQuerySet | None) -> Iterator[Reason]:
    check_owner()
    index, ref = get_index(), TaskRef.of(task)
    placement = index.explain(ref)
    is_known = placement.waits or placement.is_leased
    refusal = index_health(index).refusal
    if refusal:
        yield _refusal(refusal)
    elif placement.state == "loading" and not is_known:
        text = sentence("The index is being rebuilt from the rows, and does not have this task yet. Other tasks start.")
        yield Reason("index_rebuilding", text, details={"state": placement.state})
    elif placement.state not in ("ready", "loading"):
        text = sentence("The index is being rebuilt from the rows. No task starts until the rebuild is done.")
        yield Reason("index_rebuilding", text, details={"state": placement.state})
        yield from _without_scheduler(sentence("Only a worker that claims rebuilds the index"))
    elif placement.is_leased:
        text = sentence(
            "A worker is claiming it. If the worker dies before it starts the task, the lease ends within 20 s."
        )
        yield Reason("being_claimed", text)
    elif not placement.waits:
        yield Reason("index_missing", sentence("The index lacks the task; the reconciler adds it within seconds."))
        yield from _without_scheduler(sentence("The index is not repaired"))
    pauses = list(_pauses(task, visible))
    yield from pauses
    known = {reason.details["scope"] for reason in pauses}
    for gate in placement.gates:
        if gate.paused and gate.scope not in known:  # resumed in the rows, not yet in the index
            text = sentence("%(what)s was paused and resumes in a moment.", what=subject(gate.scope, gate.name))
            yield Reason("paused", text, details={"scope": gate.scope, "name": gate.name})
        yield from _from_gate(gate, visible)
    position = index.position(ref)
    if position is not None:
        yield _position(task, placement, position)


def _without_scheduler(consequence: str) -> Iterator[Reason]:
    """Yield that no scheduler leads, if the task needs one; none can while Redis refuses writes."""
    with suppress(IndexUnavailable):
        health = index_health(get_index())
        if health.refusal:
            yield _refusal(health.refusal)
        elif not health.has_leader:
            text = sentence("No scheduler runs. %(so)s: start `manage.py runscheduler`.", so=consequence)
            yield Reason("no_scheduler", text)


def _refusal(error: str) -> Reason:
    text = sentence("Redis refuses writes: no task starts until it accepts them. The task is safe in PostgreSQL.")
    return Reason("index_unreachable", text, details={"error": error})


def _stalled(task: Task, *, named: bool) -> Iterator[Reason]:
    """Yield that work stands still in the queue of the task, if the watchdog says so."""
    for stall in stalls.read().stalls:
        if stall.kind is StallKind.NOT_STARTED and stall.subject == task.queue:
            text = joined(stall.text, stall.steps)
            if not named:
                text = sentence(
                    "Work stands still in queue %(queue)s, although workers ask for tasks. Staff see why.",
                    queue=task.queue,
                )
            yield Reason("stalled", text, blocks=False, details={"queue": task.queue, "since": stall.since})


def _position(task: Task, placement: Placement, position: int) -> Reason:
    """Return the place in the queue. In a fair queue, only the order among tasks of the same user or key is certain."""
    details = {"ahead": position - 1, "priority": task.band.label}
    text = (
        sentence("Position %(n)s in its queue.", n=position) if position > 1 else sentence("Next to run in its queue.")
    )
    if placement.turns:
        details |= {"turns": placement.turns, "ahead_of_own": placement.own_ahead}
        about = sentence("About position %(n)s in its queue, by time.", n=position)
        text = joined(about, _turn_of_user(placement) if placement.turns == "user" else _turn_of_key(placement))
    return Reason("position", text, blocks=False, details=details)


def _turn_of_user(placement: Placement) -> str:
    if not placement.own_ahead:
        return sentence("The users take turns: it is the next task of its user.")
    return sentence_n(
        "The users take turns: %(n)s task of the same user comes first.",
        "The users take turns: %(n)s tasks of the same user come first.",
        placement.own_ahead,
    )


def _turn_of_key(placement: Placement) -> str:
    if not placement.own_ahead:
        return sentence("The keys take turns: it is the next task of its key.")
    return sentence_n(
        "The keys take turns: %(n)s task of the same key comes first.",
        "The keys take turns: %(n)s tasks of the same key come first.",
        placement.own_ahead,
    )


def _from_gate(gate: GateState, visible: TaskQuerySet | None) -> Iterator[Reason]:
    """Yield every reason besides a pause that closes a gate; each alone would be enough."""
    what = subject(gate.scope, gate.name)
    details: dict[str, Any] = {"scope": gate.scope, "name": gate.name}
    if gate.cap is not None and gate.used >= gate.cap:
        text = at_limit(what, gate.used, gate.cap)
        adaptive = of_gate(gate.scope, gate.name) if gate.scope != "user" else None
        if adaptive is not None:
            text = sentence(
                "%(what)s is at its limit: %(used)s run. It adapts itself: %(how)s",
                what=what, used=gate.used, how=adaptive.words(),
            )  # fmt: skip
            details["adaptive"] = asdict(adaptive)
        holders = _holders(gate, visible)
        if holders:
            named = [listed([item["task_id"], _on(item["worker"])], "") for item in holders[:NAMED]]
            others = gate.used - len(named)
            names = listed(named)
            if others > 0:
                names = sentence("%(tasks)s and %(n)s more", tasks=names, n=others)
            text = joined(text, sentence("The slots are held by %(tasks)s.", tasks=names))
        numbers = {"limit": gate.cap, "current": gate.used, "held_by": holders}
        yield Reason("limit_reached", text, details=details | numbers)
    if gate.throttled_until is not None and gate.throttled_until > timezone.now():
        time = _time(gate.throttled_until)
        text = sentence("%(what)s is throttled: none of its tasks starts before %(time)s.", what=what, time=time)
        yield Reason("throttled", text, until=gate.throttled_until, details=details)
    elif gate.next_at is not None and gate.is_closed:
        rate = ""
        if gate.burst and gate.interval:
            interval = float(gate.interval)
            rate = sentence(" (%(n)s at once, then 1 every %(seconds)s s)", n=int(gate.burst), seconds=interval)
        text = sentence(
            "%(what)s has used up its rate%(rate)s: the next task may start %(time)s.",
            what=what, rate=rate, time=_time(gate.next_at),
        )  # fmt: skip
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
        details = {"scope": scope, "name": name, "since": row.paused_at}
        if visible is None:
            details |= {"by": row.paused_by, "reason": row.paused_reason}
        text = sentence(
            "%(what)s was paused%(by)s %(time)s%(why)s",
            what=subject(scope, name),
            by=by(row.paused_by if visible is None else ""),
            time=_time(row.paused_at),
            why=because(row.paused_reason if visible is None else ""),
        )
        if row.resume_at:
            text = joined(text, sentence("It resumes by itself %(time)s.", time=_time(row.resume_at)))
        yield Reason("paused", text, until=row.resume_at, details=details)


def _pausable(task: Task) -> Iterator[tuple[str, str, Paused | None]]:
    yield "everything", "", RuntimeSettings.objects.using(alias()).filter(pk=1).first()
    yield "queue", task.queue, Queue.objects.using(alias()).filter(pk=task.queue).first()
    limits = Limit.objects.using(alias())
    yield "type", task.task_type, limits.filter(scope=Scope.TYPE, name=task.task_type).first()
    for name in names_of(Scope.KEY, task.concurrency_key) if task.concurrency_key else ():
        yield "key", name, limits.filter(scope=Scope.KEY, name=name).first()


def _time(when: datetime | None) -> str:
    return sentence("at an unknown time") if when is None else f"{timezone.localtime(when):%Y-%m-%d %H:%M:%S %Z}"


def _on(worker: str) -> str:
    return sentence(" on %(worker)s", worker=worker) if worker else ""
