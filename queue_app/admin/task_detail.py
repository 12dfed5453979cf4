"""Read everything that a task's page shows beside the row, without secrets."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from queue_app.admin.task_timeline import bar, spans, timeline
from queue_app.core.options import DEFAULTS, OF_ROWS
from queue_app.core.redaction import redact, redact_value
from queue_app.core.states import WAITING
from queue_app.dashboard import labels
from queue_app.dashboard.translation import translate, word
from queue_app.diagnose.explain import explain_task
from queue_app.displayed_payload import argument_names, displayed_payload
from queue_app.models import (
    DeadLetter,
    ScheduleTick,
    Signal,
    StepResult,
    Task,
    TaskAttempt,
    TaskPayload,
    TaskResult,
    Worker,
    Workflow,
    WorkflowNode,
)
from queue_app.models.running import TaskLog, TaskProgress
from queue_app.registry import known
from queue_app.services.read.inspect import effective_options
from queue_app.sql.workflow_graph import neighbours

MAX_ATTEMPTS = 25
MAX_SIMILAR = 5
#: Maximum number of steps, and of signals, on a task's page.
MAX_STEPS = 200
#: Maximum number of tasks of each kind next to a task in its workflow.
MAX_NEIGHBOURS = 12


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
    for row in displayed:  # a worker names its exceptions as it likes
        row.exception_class = redact(row.exception_class, secrets) if may_view_payload else ""
    worker_ids = {row.worker_id for row in displayed} | {task.worker_id}
    workers = Worker.objects.in_bulk(worker_ids - {None})
    detail |= _steps_and_signals(task, secrets, may_view_payload=may_view_payload)
    found = spans(task, displayed, now, detail["steps"])
    waited, slept = (sum(span.seconds for span in found if span.kind == kind) for kind in ("wait", "sleep"))
    if task.workflow_id is not None:
        detail |= _in_workflow(task.pk, task.workflow_id)
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
        "hints": [translate(reason.text) for reason in explain_task(task).reasons] if task.status in WAITING else [],
    }


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


def _in_workflow(task_id: UUID, workflow_id: UUID) -> dict[str, Any]:
    """Return the workflow of a task, its name there, and the tasks next to it."""
    found = neighbours(task_id, MAX_NEIGHBOURS + 1)
    titles = {
        "parents": _("Waits for"), "children": _("Waited for by"), "undoes": _("Undoes"),
        "undone_by": _("Undone by"), "added_by": _("Added by"),
    }  # fmt: skip
    return {
        "workflow": Workflow.objects.filter(pk=workflow_id).first(),
        "node_name": WorkflowNode.objects.filter(pk=task_id).values_list("name", flat=True).first(),
        "neighbours": [
            (titles[kind], links[:MAX_NEIGHBOURS], len(links) > MAX_NEIGHBOURS) for kind, links in found.items()
        ],
    }


def _arguments(task_type: str, args: Any, parameters: Any) -> dict[str, str]:
    """Return the arguments as one object if the names of the positional ones are known, else these by themselves."""
    named = with_names(task_type, args) if args else {}
    if isinstance(named, dict) and isinstance(parameters, dict) and not named.keys() & parameters.keys():
        args, parameters = [], named | parameters
    return {"args": pretty(args) if args else "", "parameters": pretty(parameters) if parameters else ""}


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
