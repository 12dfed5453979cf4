"""Read everything that a task's page shows beside the row, without secrets."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.utils import quote
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _

from queue_app.core import rooms
from queue_app.core.limits import ARRIVAL
from queue_app.core.options import DEFAULTS, OF_ROWS
from queue_app.core.priorities import rises
from queue_app.core.reasons import Level, Reason
from queue_app.core.redaction import redact, redact_value
from queue_app.core.states import WAITING, Status
from queue_app.core.steps import StepKind
from queue_app.dashboard import labels
from queue_app.dashboard.labels import translate, word
from queue_app.diagnose.explain import explain_task
from queue_app.encryption.displayed import argument_names, displayed_payload
from queue_app.models import (
    DeadLetter,
    PriorityPolicy,
    Queue,
    ScheduleTick,
    Signal,
    StepResult,
    Task,
    TaskAttempt,
    TaskPayload,
    TaskResult,
    Worker,
)
from queue_app.models.worker import TaskLog, TaskProgress
from queue_app.registry import known
from queue_app.services.read.inspect import effective_options

# A task's timeline: its events in order, and a bar of its waits and runs.

#: Size of the bar in its own units, and the minimum visible width of a span.
_WIDTH, _HEIGHT, _MIN = 1000, 14, 6


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A past or future event; ``kind`` selects its colour."""

    text: str
    at: datetime
    kind: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one state: wait, sleep, failed, run or done."""

    kind: str
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return max(0.0, (self.end - self.start).total_seconds())


def timeline(task: Task, attempts: Sequence[TaskAttempt], now: datetime) -> list[TimelineEvent]:
    """Return the events of a task in order, future ones included."""
    return sorted(_events(task, sorted(attempts, key=lambda row: row.attempt), now), key=lambda event: event.at)


def _events(task: Task, attempts: Sequence[TaskAttempt], now: datetime) -> Iterator[TimelineEvent]:
    yield TimelineEvent(_("Created"), task.created_at)
    for row in attempts:
        yield TimelineEvent(_("Attempt %(n)d started") % {"n": row.attempt}, row.started_at, "run")
        after = labels.duration((row.finished_at - row.started_at).total_seconds())
        name = row.exception_class.rpartition(".")[2]
        yield TimelineEvent(
            _("Attempt %(n)d failed") % {"n": row.attempt}, row.finished_at, "failed",
            _("%(error)s after %(time)s") % {"error": name, "time": after},
        )  # fmt: skip
    status = Status(task.status)
    if task.run_after is not None and (status in {Status.BLOCKED, Status.SCHEDULED} or not attempts):
        kind = _("Retry due") if task.failures else _("Not before")
        if status is Status.BLOCKED and task.attempt:
            kind = _("End of the wait")
        yield TimelineEvent(kind, task.run_after, "wait")
    if task.queued_at is not None:
        yield TimelineEvent(_("Queued"), task.queued_at, "wait")
        yield from _promotions(task, now)
    recorded = {row.attempt for row in attempts}
    if task.started_at is not None and task.attempt not in recorded:
        yield TimelineEvent(_("Attempt %(n)d started") % {"n": task.attempt}, task.started_at, "run")
    if task.deadline is not None and status is Status.EXECUTING:
        yield TimelineEvent(_("Deadline"), task.deadline)
    if task.cancel_requested_at is not None:
        yield TimelineEvent(_("Cancel requested"), task.cancel_requested_at, "failed")
    if task.finished_at is not None:
        kind = "done" if status is Status.COMPLETED else "failed"
        yield TimelineEvent(capfirst(word(status)), task.finished_at, kind)


def _promotions(task: Task, now: datetime) -> Iterator[TimelineEvent]:
    """Yield each promotion by age. No record of a promotion is stored, so its time is computed from the task's wait."""
    queued_at = task.queued_at
    assert queued_at is not None  # noqa: S101 - for mypy: the caller checked
    until = now if task.status == Status.QUEUED else max(task.started_at or queued_at, queued_at)
    if Queue.objects.filter(pk=task.queue, order=ARRIVAL).exists():
        return
    for rise in rises(task.band, PriorityPolicy.thresholds()):
        at = queued_at + timedelta(seconds=rise.after)
        if at > until:
            return
        yield TimelineEvent(_("Promoted to %(band)s") % {"band": word(rise.to.label)}, at, "promoted", _("by its age"))


def spans(task: Task, attempts: Sequence[TaskAttempt], now: datetime, steps: Sequence[StepResult] = ()) -> list[Span]:
    """Return the waits and runs of a task in order, and the times that its function slept or waited for a signal."""
    found: list[Span] = []
    at = task.created_at
    for row in sorted(attempts, key=lambda row: row.attempt):
        found += [Span("wait", at, row.started_at), Span("failed", row.started_at, row.finished_at)]
        at = row.finished_at
    status = Status(task.status)
    recorded = {row.attempt for row in attempts}
    end = task.finished_at or now
    is_started = status not in WAITING  # else its last attempt was suspended, and the end of that is not recorded
    if is_started and task.started_at is not None and task.attempt not in recorded and task.started_at >= at:
        found.append(Span("wait", at, task.started_at))
        found.append(Span("done" if status is Status.COMPLETED else "run", task.started_at, end))
    elif task.finished_at is None:
        found.append(Span("wait", at, now))
    for step in steps:
        until = step.until if step.kind == StepKind.SLEEP else step.done_at
        if step.kind != StepKind.STEP:
            found = list(_split(found, Span("sleep", step.stored_at, min(until or now, now))))
    return [span for span in found if span.seconds > 0]


def _split(found: Sequence[Span], slept: Span) -> Iterator[Span]:
    """Yield the spans; a sleep replaces the part of a wait in which it lies."""
    for span in found:
        start, end = max(span.start, slept.start), min(span.end, slept.end)
        if span.kind != "wait" or start >= end:
            yield span
            continue
        yield Span("wait", span.start, start)
        yield Span("sleep", start, end)
        yield Span("wait", end, span.end)


def bar(parts: Sequence[Span]) -> SafeString:
    """Return the spans as an SVG bar. Widths are proportional, but at least ``_MIN``."""
    total = sum(part.seconds for part in parts)
    if not total:
        return SafeString("")
    widths = [max(_MIN, part.seconds / total * _WIDTH) for part in parts]
    scale = _WIDTH / sum(widths)
    names = {
        "wait": _("waited"), "sleep": _("slept"), "failed": _("ran and failed"), "run": _("is running"),
        "done": _("ran"),
    }  # fmt: skip
    pieces, x = [], 0.0
    for part, width in zip(parts, widths, strict=True):
        text = f"{names[part.kind]} {labels.duration(part.seconds)}"
        pieces.append((part.kind, f"{x:.1f}", f"{width * scale:.1f}", text))
        x += width * scale
    context = {"pieces": pieces, "words": [piece[-1] for piece in pieces], "size": (_WIDTH, _HEIGHT)}
    return render_to_string("admin/queue_app/includes/bar.html", context)


MAX_ATTEMPTS = 25
MAX_SIMILAR = 5
#: Maximum number of steps, and of signals, on a task's page.
MAX_STEPS = 200


def load_detail(
    task: Task, now: datetime, *, may_view_payload: bool = True, letter_id: UUID | None = None
) -> dict[str, Any]:
    """Read the page of a task; parameters, result and messages only for users who may view them.

    ``letter_id`` names a replayed dead letter, to show it instead of the present one.
    """
    detail: dict[str, Any] = {"may_view_payload": may_view_payload}
    secrets: frozenset[str] = frozenset()
    if may_view_payload:
        payload = TaskPayload.objects.filter(pk=task.pk).first()
        secrets, args, parameters = displayed_payload(task.task_type, payload)
        result = TaskResult.objects.filter(pk=task.pk).first()
        progress, logs = progress_and_logs(task, secrets)
        detail |= {
            **_arguments(task.task_type, args, parameters),
            "references": list(_references([args, parameters])),
            "metadata": pretty(redact_value(payload.metadata, secrets)) if payload and payload.metadata else "",
            "result": pretty(redact_value(result.value, secrets)) if result else None,
            "progress": progress,
            "logs": logs,
        }
    rows = list(task.attempts.order_by("-attempt")[: MAX_ATTEMPTS + 1])
    displayed = rows[:MAX_ATTEMPTS]
    if displayed and task.finished_at and displayed[0].attempt == task.attempt:
        displayed[0].finished_at = task.finished_at  # as in lists; the attempt has the time of the worker
    for row in displayed:  # a worker names its exceptions as it likes
        row.exception_class = redact(row.exception_class, secrets) if may_view_payload else ""
    worker_ids = {row.worker_id for row in displayed} | {task.worker_id}
    workers = Worker.objects.in_bulk(worker_ids - {None})
    detail |= _steps_and_signals(task, secrets, may_view_payload=may_view_payload)
    found = spans(task, displayed, now, detail["steps"])
    waited, slept = (sum(span.seconds for span in found if span.kind == kind) for kind in ("wait", "sleep"))
    for of_room in rooms.each("task_details"):
        detail |= of_room(task)
    which = {"replayed_at__isnull": True} if letter_id is None else {"pk": letter_id}
    letter = DeadLetter.objects.filter(task_id=task.pk, **which).first()
    last = letter if letter_id is not None or not displayed else displayed[0]
    attempts = [
        {
            "row": row,
            "number": str(row.attempt),
            "message": redact(row.message, secrets) if may_view_payload else "",
            "traceback": redact(row.traceback, secrets) if may_view_payload else "",
            "worker": workers.get(row.worker_id) if row.worker_id else None,
            "seconds": (row.finished_at - row.started_at).total_seconds(),
            # the newer attempt that failed in the same way
            "same_as": newer.attempt if newer and _failed_alike(row, newer) else None,
        }
        for newer, row in pairwise([None, *displayed])
        if row is not None
    ]
    return detail | {
        "worker": workers.get(task.worker_id) if task.worker_id else None,
        "attempts": attempts,
        # the newest, and the one before it that failed in another way: open, side by side
        "compared": [each["number"] for each in attempts if each["same_as"] is None][:2],
        "error_class": redact(last.exception_class, secrets) if last and may_view_payload else "",
        "error_message": redact(last.message, secrets) if last and may_view_payload else "",
        "reason": word(letter.reason) if letter else "-",
        "similar": _similar(letter),
        "more_attempts": len(rows) > MAX_ATTEMPTS,
        "options": _options(task),
        "unique": _rule(task),
        "timeline": timeline(task, displayed, now),
        "bar": bar(found),
        "waited": waited,
        "slept": slept,
        "ran": sum(span.seconds for span in found) - waited - slept,
        "letter": letter,
        "tick": ScheduleTick.objects.filter(task_id=task.pk).select_related("schedule").first(),
        "hints": list(map(_hint, explain_task(task).reasons)) if task.status in WAITING else [],
    }


def _hint(why: Reason) -> str:
    """Return why a task waits, and what to do if nothing else ends the wait."""
    return translate(why.advice if why.kind.level is Level.FAIL else why.text)


def _failed_alike(one: TaskAttempt, other: TaskAttempt) -> bool:
    return (one.exception_class, one.traceback) == (other.exception_class, other.traceback)


def _similar(letter: DeadLetter | None) -> list[DeadLetter]:
    """Return the newest other open dead letters with the same cause."""
    if letter is None or not letter.fingerprint:
        return []
    same = DeadLetter.objects.open().filter(fingerprint=letter.fingerprint).exclude(pk=letter.pk)
    return list(same.order_by("-died_at")[:MAX_SIMILAR])


def _steps_and_signals(task: Task, secrets: frozenset[str], *, may_view_payload: bool) -> dict[str, Any]:
    """Return the steps and the signals of a task for its page, and what it waits for."""
    steps = list(StepResult.objects.filter(task_id=task.pk).order_by("position")[:MAX_STEPS]) if task.attempt else []
    signals = list(Signal.objects.filter(task_id=task.pk).order_by("id")[:MAX_STEPS])
    for row in steps:
        row.value = redact_value(row.value, secrets) if may_view_payload else None
    for sent in signals:
        sent.payload = redact_value(sent.payload, secrets) if may_view_payload else None
    return {"steps": steps, "signals": signals, "awaited": next((one for one in steps if one.done_at is None), None)}


def _arguments(task_type: str, args: Any, parameters: Any) -> dict[str, str]:
    """Return the arguments as one object if the names of the positional ones are known, else these by themselves."""
    named = with_names(task_type, args) if args else {}
    if isinstance(named, dict) and isinstance(parameters, dict) and not named.keys() & parameters.keys():
        args, parameters = [], named | parameters
    return {"args": pretty(args) if args else "", "parameters": pretty(parameters) if parameters else ""}


#: Maximum number of characters of the arguments in a list.
IN_SHORT: Final = 80


def in_short(task_type: str, payload: TaskPayload | None) -> str:
    """Return the arguments of a task in one line for a list, without secrets."""
    _secrets, args, parameters = displayed_payload(task_type, payload)
    named = with_names(task_type, args)
    parts = [f"{name}: {_plain(value)}" for name, value in (named if isinstance(named, dict) else {}).items()]
    parts += [] if isinstance(named, dict) else [_plain(value) for value in named]
    parts += [f"{name}: {_plain(value)}" for name, value in parameters.items()]
    return Truncator(", ".join(parts)).chars(IN_SHORT)


def _plain(value: Any) -> str:
    if isinstance(value, dict) and any(key.startswith("$result") for key in value):
        return _("a result")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text[: IN_SHORT + 1].split())


def with_names(task_type: str, args: Any) -> Any:
    """Return positional arguments by the names of the function's parameters, if this process knows the function."""
    names = argument_names(task_type, len(args)) if isinstance(args, list) else []
    return dict(zip(names, args, strict=True)) if names else args


def _references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the label and the admin page of each model instance that a displayed JSON value refers to."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict) and isinstance(found := value.get("$model"), list) and len(value) == 1:
        with suppress(NoReverseMatch, ValueError):
            label, key, *_database = found
            yield f"{label} {key}", reverse(f"admin:{str(label).replace('.', '_', 1)}_change", args=[quote(key)])
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)


def pretty(value: Any) -> str:
    """Return a JSON value as indented text."""
    return json.dumps(value, indent=2, ensure_ascii=False)


#: Options that a task's page shows in another way.
_ELSEWHERE: Final = ("capabilities", "user", "concurrency_key", "max_retries", "timeout", "retry_delay")


def _options(task: Task) -> list[tuple[str, str, str]]:
    """Return the task's options: those in force with their sources, and of the others those that it has."""
    options = effective_options(task)
    sources = {
        "task": _("set for this task"),
        "queue": _("queue %(name)s") % {"name": task.queue},
        "policy": _("policy of %(band)s") % {"band": task.band.label},
    }
    delay_from = _("TASKQUEUE setting") if task.retry_delay is None else sources["task"]
    in_force = [
        (_("Retries"), str(options.max_retries), sources[options.max_retries_from]),
        (_("Timeout"), labels.duration(options.timeout), sources[options.timeout_from]),
        (_("First retry after"), labels.duration(options.retry_delay), delay_from),
    ]
    others = [name for name in OF_ROWS if name not in _ELSEWHERE and getattr(task, name) != DEFAULTS[name]]
    return in_force + [(capfirst(_(name.replace("_", " "))), str(getattr(task, name)), "") for name in others]


def _rule(task: Task) -> str:
    rule = getattr(known(task.task_type), "unique", None)
    return translate(rule.words) if rule else ""


def progress_and_logs(task: Task, secrets: frozenset[str]) -> tuple[TaskProgress | None, list[TaskLog]]:
    """Return a task's progress, and the last log lines of each attempt, without secrets."""
    progress = TaskProgress.objects.filter(pk=task.pk).first()
    if progress is not None:
        progress.message = redact(progress.message, secrets)
    logs = list(TaskLog.objects.filter(task_id=task.pk).order_by("-attempt")[:MAX_ATTEMPTS])
    for log in logs:
        log.lines = redact(log.lines, secrets)
    return progress, logs
