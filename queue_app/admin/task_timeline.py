"""A task's timeline: its events in order, and a bar of its waits and runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from queue_app.core.limit_values import ARRIVAL
from queue_app.core.promotion import rises
from queue_app.core.states import WAITING, Status
from queue_app.core.steps import StepKind
from queue_app.dashboard import labels
from queue_app.dashboard.translation import word
from queue_app.models import PriorityPolicy, Queue, StepResult, Task, TaskAttempt

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
        yield TimelineEvent(word(status).capitalize(), task.finished_at, kind)


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
    rows, x = [], 0.0
    for part, width in zip(parts, widths, strict=True):
        text = f"{names[part.kind]} {labels.duration(part.seconds)}"
        rows.append((part.kind, f"{x:.1f}", f"{width * scale:.1f}", _HEIGHT, text))
        x += width * scale
    return format_html(
        '<svg class="tq-bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        _WIDTH,
        _HEIGHT,
        "; ".join(row[-1] for row in rows),
        format_html_join("", '<rect class="tq-piece-{}" x="{}" width="{}" height="{}"><title>{}</title></rect>', rows),
    )
