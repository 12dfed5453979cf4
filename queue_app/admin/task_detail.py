"""Read everything that a task's page shows beside the row, without secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from queue_app.admin.task_timeline import Event, bar, spans, timeline
from queue_app.core.redaction import redact, redact_value
from queue_app.core.states import WAITING
from queue_app.dashboard import labels
from queue_app.displayed_payload import displayed_payload
from queue_app.models import DeadLetter, Task, TaskAttempt, TaskPayload, TaskResult, Worker
from queue_app.models.running import TaskLog, TaskProgress
from queue_app.services.read.explain import explain_task
from queue_app.services.read.inspect import effective_options

MAX_ATTEMPTS = 25


@dataclass(frozen=True, slots=True)
class DisplayedAttempt:
    """A failed attempt without its secrets."""

    row: TaskAttempt
    message: str
    traceback: str
    worker: Worker | None

    @property
    def seconds(self) -> float:
        """Run time of the attempt."""
        return (self.row.finished_at - self.row.started_at).total_seconds()


@dataclass(slots=True)
class TaskPage:
    """Everything about one task, ready for display."""

    task: Task
    now: datetime
    parameters: str = ""
    args: str = ""
    result: str | None = None
    attempts: list[DisplayedAttempt] = field(default_factory=list)
    more_attempts: bool = False
    options: list[tuple[str, str, str]] = field(default_factory=list)  # (name, value, source)
    timeline: list[Event] = field(default_factory=list)
    bar: str = ""
    waited: float = 0.0
    ran: float = 0.0
    may_view_payload: bool = True
    progress: TaskProgress | None = None
    logs: list[TaskLog] = field(default_factory=list)
    letter: DeadLetter | None = None
    hints: list[str] = field(default_factory=list)
    worker: Worker | None = None


def load_detail(task: Task, now: datetime, *, may_view_payload: bool = True) -> TaskPage:
    """Read the page of a task; parameters, result and messages only for users who may view them."""
    detail = TaskPage(task, now, may_view_payload=may_view_payload)
    secrets: frozenset[str] = frozenset()
    if may_view_payload:
        secrets, args, parameters = displayed_payload(task.task_type, TaskPayload.objects.filter(pk=task.pk).first())
        detail.parameters = pretty(parameters) if parameters else ""
        detail.args = pretty(args) if args else ""
        outcome = TaskResult.objects.filter(pk=task.pk).first()
        if outcome is not None:
            detail.result = pretty(redact_value(outcome.value, secrets))
        detail.progress, detail.logs = progress_and_logs(task, secrets)
    rows = list(task.attempts.order_by("-attempt")[: MAX_ATTEMPTS + 1])
    detail.more_attempts = len(rows) > MAX_ATTEMPTS
    rows = rows[:MAX_ATTEMPTS]
    ids = {row.worker_id for row in rows if row.worker_id} | ({task.worker_id} if task.worker_id else set())
    workers = Worker.objects.in_bulk(list(ids)) if ids else {}
    detail.worker = workers.get(task.worker_id) if task.worker_id else None
    detail.attempts = [
        DisplayedAttempt(
            row,
            redact(row.message, secrets) if may_view_payload else "",
            redact(row.traceback, secrets) if may_view_payload else "",
            workers.get(row.worker_id) if row.worker_id else None,
        )
        for row in rows
    ]
    detail.options = _options(task)
    detail.timeline = timeline(task, rows, now)
    found = spans(task, rows, now)
    detail.bar = bar(found)
    detail.waited = sum(span.seconds for span in found if span.kind == "wait")
    detail.ran = sum(span.seconds for span in found) - detail.waited
    detail.letter = DeadLetter.objects.filter(task_id=task.pk, replayed_at__isnull=True).first()
    if task.status in WAITING:
        detail.hints = [reason.text for reason in explain_task(task).reasons]
    return detail


def pretty(value: Any) -> str:
    """Return a JSON value as indented text."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _options(task: Task) -> list[tuple[str, str, str]]:
    """Return the task's effective options, each with its source."""
    options = effective_options(task)
    sources = {
        "task": _("set for this task"),
        "queue": _("queue %(name)s") % {"name": task.queue},
        "policy": _("policy of %(band)s") % {"band": task.band.label},
    }
    delay_from = _("TASKQUEUE setting") if task.retry_delay is None else sources["task"]
    return [
        (_("Retries"), str(options.max_retries), sources[options.max_retries_from]),
        (_("Timeout"), labels.duration(options.timeout), sources[options.timeout_from]),
        (_("First retry after"), labels.duration(options.retry_delay), delay_from),
    ]


def progress_and_logs(task: Task, secrets: frozenset[str]) -> tuple[TaskProgress | None, list[TaskLog]]:
    """Return a task's progress, and the last log lines of each attempt, without secrets."""
    progress = TaskProgress.objects.filter(pk=task.pk).first()
    if progress is not None:
        progress.message = redact(progress.message, secrets)
    logs = list(TaskLog.objects.filter(task_id=task.pk).order_by("-attempt")[:MAX_ATTEMPTS])
    for log in logs:
        log.lines = redact(log.lines, secrets)
    return progress, logs
