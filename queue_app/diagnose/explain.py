"""Explain why a task is not running: every reason, who caused it, since when and until when.

The index answers with the same Lua code as a claim, so both see the same gates. The rows add who paused, which tasks
hold the slots, and which workers are alive. A claim by an idle, able worker skips the task exactly when a reason blocks
it (``Explanation.blocking``); a test checks this. The answer describes one moment, and nothing is written.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

from django.utils import timezone

from queue_app import registry
from queue_app.core import rooms
from queue_app.core.ids import Id, parse_id
from queue_app.core.limits import Scope, names_of
from queue_app.core.reasons import (
    Explanation,
    Reason,
    decisive_first,
    moment,
    paused,
    reason,
    subject,
    throttled,
)
from queue_app.core.records import TaskRef
from queue_app.core.sentence import duration, joined, listed, sentence, sentence_n, some_of
from queue_app.core.states import FAILURES, TERMINAL, Status, predicate
from queue_app.core.steps import StepKind
from queue_app.diagnose import stalls, system
from queue_app.diagnose.waits import Workforce
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.keys import GateState, Placement
from queue_app.models import (
    DeadLetter,
    Limit,
    Queue,
    RuntimeSettings,
    StepResult,
    Task,
    TaskAttempt,
    Worker,
)
from queue_app.models.dead_letter import OPEN_NAME
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.lifecycle.actions import undone_refusal
from queue_app.services.read.inspect import effective_options, get_task
from queue_app.services.read.stats import LOADING, UNREACHABLE
from queue_app.sql.database import alias
from queue_app.sql.steps import awaited

#: Maximum number of slot holders, or of tasks before it, that a sentence names.
NAMED: Final = 3


@dataclass(frozen=True)
class Case:
    """A task that was just read, and what the reader may see: with ``visible``, neither other tasks nor people."""

    task: Task
    visible: TaskQuerySet | None

    @property
    def named(self) -> bool:
        """Whether the answer may name people, the reasons that they gave, and workers."""
        return self.visible is None

    @cached_property
    def system(self) -> system.System:
        return system.read()


type Finder = Callable[[Case], Iterator[Reason]]
#: Functions that find reasons, and the states of their tasks; rooms have more.
FINDERS: Final[list[tuple[frozenset[Status], Finder]]] = []


def finds_tasks(*statuses: Status) -> Callable[[Finder], Finder]:
    """Decorate a function that yields why tasks in some states do not run."""

    def register(finder: Finder) -> Finder:
        FINDERS.append((frozenset(statuses), finder))
        return finder

    return register


def explain(task_id: Id, visible: TaskQuerySet | None = None) -> Explanation:
    """Return all reasons why a task is not running, the most decisive first; raise ``TaskNotFound``.

    With ``visible``, the answer names only these tasks, and neither people, the reasons that they gave, nor workers.
    """
    tasks = Task.objects.using(alias()).all() if visible is None else visible
    return explain_task(get_task(tasks, parse_id(task_id)), visible)


def explain_task(task: Task, visible: TaskQuerySet | None = None) -> Explanation:
    """Return why a task that was just read is not running; like ``explain``."""
    status, case = Status(task.status), Case(task, visible)
    found = [each for statuses, find in FINDERS if status in statuses for each in find(case)]
    found += [each for find in rooms.each("reasons") for each in find(case)]
    if status is Status.BLOCKED and not any(each.blocks for each in found):
        found.append(reason("blocked"))
    if any(each.blocks for each in found):  # the first of a queue is not next while it is blocked
        found = [_first_of_queue(each) if each.code == "position" else each for each in found]
    return Explanation(task.id, status.value, tuple(decisive_first(found)))


def _first_of_queue(position: Reason) -> Reason:
    is_first = position.details["ahead"] == 0 and "turns" not in position.details
    return replace(position, text=sentence("First in its queue once it can start.")) if is_first else position


@finds_tasks(*TERMINAL)
def _finished(case: Case) -> Iterator[Reason]:
    task, status = case.task, Status(case.task.status)
    details = {"status": status.value, "finished_at": task.finished_at}
    text = f"It {predicate(status)}; it ended {moment(task.finished_at)}."
    yield reason("finished", *_next_step(case), text=text, details=details)


def _next_step(case: Case) -> Iterator[str]:
    """Yield what staff can do about a dead letter."""
    if not case.named or case.task.status != Status.DEAD_LETTER:
        return
    letter = DeadLetter.objects.using(alias()).filter(task_id=case.task.id, replayed_at__isnull=True).first()
    if letter is None or letter.state != OPEN_NAME:
        yield sentence("Its dead letter was discarded or has expired: enqueue the task again if it is needed.")
    elif undone := undone_refusal(case.task.id):
        yield str(undone)
    else:
        yield sentence(
            "Once the cause is mended, run `manage.py taskqueue replay %(id)s`; or discard its dead letter.",
            id=str(case.task.id),
        )


@finds_tasks(*FAILURES)
def _last_error(case: Case) -> Iterator[Reason]:
    """Yield the error of the last attempt of a failed task, without its message, which may hold secrets."""
    last = TaskAttempt.objects.using(alias()).filter(task_id=case.task.id).order_by("-attempt").first()
    if last is not None and last.exception_class:
        details = {"exception_class": last.exception_class}
        yield reason("error", n=last.attempt, error=last.exception_class, details=details)


@finds_tasks(*(set(Status) - TERMINAL))
def _unique(case: Case) -> Iterator[Reason]:
    """Yield the rule that makes the task unique."""
    if case.task.unique_key:
        rule = getattr(registry.known(case.task.task_type), "unique", None)
        words = rule.words if rule else sentence("until it has ended, no second task of its key is stored")
        yield reason("unique", rule=words, details={"key": case.task.unique_key})


@finds_tasks(Status.EXECUTING)
def _executing(case: Case) -> Iterator[Reason]:
    task, worker = case.task, None
    if case.named and task.worker_id is not None:
        worker = Worker.objects.using(alias()).filter(pk=task.worker_id).first()
    stopping = sentence("It was asked to stop.") if task.cancel_requested_at is not None else ""
    where, since = _on(worker.name if worker else ""), moment(task.started_at)
    details = {"worker_id": task.worker_id, "since": task.started_at, "attempt": task.attempt}
    yield reason("executing", stopping, where=where, time=since, n=task.attempt, details=details)


@finds_tasks(Status.BLOCKED)
def _blocked(case: Case) -> Iterator[Reason]:
    """Yield the signals for which a task waits."""
    for one in awaited(case.task.id):
        text = ""
        if one.until:
            text = sentence("It waits for the signal %(name)s until %(time)s.", name=one.signal, time=moment(one.until))
        details = {"signal": one.signal, "fields": one.fields}
        yield reason("waits_for_signal", text=text, name=one.signal, until=one.until, details=details)


@finds_tasks(Status.SCHEDULED)
def _waits_until(case: Case) -> Iterator[Reason]:
    task = case.task
    sleep = task.attempt and StepResult.objects.using(alias()).filter(
        task_id=task.id, kind=StepKind.SLEEP, until__gt=timezone.now()
    )
    time = moment(task.run_after)
    if sleep and sleep.exists():
        yield reason("sleeps", time=time, until=task.run_after)
    elif task.failures:
        most = effective_options(task).max_retries
        details = {"retry": task.failures, "of": most}
        yield reason("retry", n=task.failures, most=most, time=time, until=task.run_after, details=details)
    else:
        why = sentence(
            "Attempt %(n)s put it off: the code asked for that (Snooze), or the worker lacked a key or newer code. The"
            " log of the worker says which.",
            n=task.attempt,
        )
        yield reason("waits_until", why if task.attempt else "", time=time, until=task.run_after)


@finds_tasks(Status.SCHEDULED)
def _not_queued(case: Case) -> Iterator[Reason]:
    """Yield why the task is not queued at its time."""
    yield from (_advised(each) for each in system.troubles(case.system) if each.code == "no_scheduler")


@finds_tasks(Status.QUEUED)
def _in_index(case: Case) -> Iterator[Reason]:
    """Yield what the index knows of the task, or why it knows nothing."""
    if case.system.index != UNREACHABLE and not case.system.is_foreign:
        with suppress(IndexUnavailable):
            yield from list(_from_index(case))
            return
    state = case.system if case.system.is_foreign else system.System(UNREACHABLE)
    yield from map(_advised, system.troubles(state))
    yield from _pauses(case)


def _from_index(case: Case) -> Iterator[Reason]:
    """Yield the gates and the place of the task. Raises ``IndexUnavailable``."""
    index, ref = get_index(), TaskRef.of(case.task)
    placement = index.explain(ref)
    is_known = placement.waits or placement.is_leased
    needs_scheduler = not is_known and (placement.state != LOADING or not case.system.is_open)
    for trouble in system.troubles(replace(case.system, index=placement.state)):
        if trouble.kind.code == "no_scheduler":
            needed = needs_scheduler
        else:
            needed = trouble.kind.code != "index_loading" or not is_known
        if needed:
            yield _advised(trouble)
    is_open = case.system.is_open and not case.system.refusal
    if is_open and placement.is_leased:
        yield reason("being_claimed")
    elif is_open and placement.state != LOADING and not placement.waits:
        yield reason("index_missing")
    pauses = list(_pauses(case))
    yield from pauses
    known = {pause.details["scope"] for pause in pauses}
    for gate in placement.gates:
        if gate.paused and gate.scope not in known:  # resumed in the rows, not yet in the index
            text = sentence("%(what)s was paused and resumes in a moment.", what=subject(gate.scope, gate.name))
            yield reason("paused", text=text, details={"scope": gate.scope, "name": gate.name})
        yield from _from_gate(gate, case.visible)
    position = index.position(ref)
    if position is not None:
        yield _position(case.task, placement, position)


def _advised(trouble: Reason) -> Reason:
    """Return a trouble with what to do in its text."""
    return replace(trouble, text=trouble.advice)


@finds_tasks(Status.QUEUED)
def _workers(case: Case) -> Iterator[Reason]:
    """Yield that no live worker is able or free to run the task."""
    for each in Workforce().why_not(case.task, named=case.named):
        yield _advised(each) if each.code == "no_worker" else each


@finds_tasks(Status.QUEUED)
def _stalled(case: Case) -> Iterator[Reason]:
    """Yield that work stands still in the queue of the task, if the watchdog says so."""
    for stall in stalls.read().stalls:
        if stall.kind == "not_started" and stall.subject == case.task.queue:
            details = {"queue": stall.subject, "since": stall.since}
            text = joined(stall.text, stall.steps) if case.named else ""
            yield reason("stalled", text=text, queue=stall.subject, details=details)


def _position(task: Task, placement: Placement, position: int) -> Reason:
    """Return the place in the queue. In a fair queue, only the order among tasks of the same user or key is certain."""
    details = {"ahead": position - 1, "priority": task.band.label}
    text = "" if position > 1 else sentence("Next to run in its queue.")
    if placement.turns:
        details |= {"turns": placement.turns, "ahead_of_own": placement.own_ahead}
        about = sentence("About position %(n)s in its queue, by time.", n=position)
        text = joined(about, _turn_of_user(placement) if placement.turns == "user" else _turn_of_key(placement))
    return reason("position", text=text, n=position, details=details)


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


def _moving(gate: GateState) -> Any:
    """Return the present value of a limit that moves by itself, and why it is that; ``None`` for a fixed one."""
    return next((value for read in rooms.each("limit_values") if (value := read(gate.scope, gate.name))), None)


def _from_gate(gate: GateState, visible: TaskQuerySet | None) -> Iterator[Reason]:
    """Yield every reason besides a pause that closes a gate; each alone would be enough."""
    what = subject(gate.scope, gate.name)
    details: dict[str, Any] = {"scope": gate.scope, "name": gate.name}
    if gate.cap is not None and gate.used >= gate.cap:
        text, adaptive = "", _moving(gate) if gate.scope != "user" else None
        if adaptive is not None:
            text = sentence(
                "%(what)s is at its limit: %(used)s run. It adapts itself: %(how)s",
                what=what, used=gate.used, how=adaptive.words(),
            )  # fmt: skip
            details["adaptive"] = asdict(adaptive)
        holders = _holders(gate, visible)
        held = ""
        if holders:
            named = [listed([item["task_id"], _on(item["worker"])], "") for item in holders]
            held = sentence("The slots are held by %(tasks)s.", tasks=some_of(named, NAMED, gate.used))
        numbers = {"limit": gate.cap, "current": gate.used, "held_by": holders}
        yield reason("limit_reached", held, text=text, what=what, used=gate.used, most=gate.cap,
                     details=details | numbers)  # fmt: skip
    until = gate.throttled_until
    if until is not None and until > timezone.now():
        yield reason("throttled", text=throttled(what, until), until=until, details=details)
    elif gate.next_at is not None and gate.is_closed:
        rate = ""
        if gate.burst and gate.interval:
            every = duration(float(gate.interval))
            rate = sentence(" (%(n)s at once, then 1 every %(time)s)", n=int(gate.burst), time=every)
        details |= {"burst": gate.burst, "seconds": gate.interval}
        yield reason("rate_limited", what=what, rate=rate, time=moment(gate.next_at), until=gate.next_at,
                     details=details)  # fmt: skip


def _holders(gate: GateState, visible: TaskQuerySet | None) -> list[dict[str, str]]:
    """Return some visible tasks that hold the slots of a gate, with their workers."""
    tasks = Task.objects.using(alias()).all() if visible is None else visible
    held = list(tasks.filter(pk__in=gate.holders).order_by("started_at", "id").values_list("id", "worker_id"))
    ids = {worker_id for _, worker_id in held if worker_id} if visible is None else set()
    names = dict(Worker.objects.using(alias()).filter(pk__in=ids).values_list("id", "name"))
    return [{"task_id": str(task_id), "worker": names.get(worker_id, "")} for task_id, worker_id in held]


@finds_tasks(Status.SCHEDULED)
def _pauses(case: Case) -> Iterator[Reason]:
    """Yield the pauses in the rows that stop the task: who, why, until when."""
    for scope, name, row in _pausable(case.task):
        if row is None or not row.paused:
            continue
        details = {"scope": scope, "name": name, "since": row.paused_at}
        if case.named:
            details |= {"by": row.paused_by, "reason": row.paused_reason}
        text = paused(subject(scope, name), row, named=case.named)
        yield reason("paused", text=text, until=row.resume_at, details=details)


def _pausable(task: Task) -> Iterator[tuple[str, str, Queue | Limit | RuntimeSettings | None]]:
    yield "everything", "", RuntimeSettings.objects.using(alias()).filter(pk=1).first()
    yield "queue", task.queue, Queue.objects.using(alias()).filter(pk=task.queue).first()
    limits = Limit.objects.using(alias())
    yield "type", task.task_type, limits.filter(scope=Scope.TYPE, name=task.task_type).first()
    for name in names_of(Scope.KEY, task.concurrency_key) if task.concurrency_key else ():
        yield "key", name, limits.filter(scope=Scope.KEY, name=name).first()


def _on(worker: str) -> str:
    return sentence(" on %(worker)s", worker=worker) if worker else ""
