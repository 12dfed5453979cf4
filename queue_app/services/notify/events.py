"""Record what happened to tasks in the event stream and in the transition log; read the stream.

Events are published after the commit, and a reader must not rely on them: it takes an event as
the reason to read the rows.

Crash points: a process that dies between COMMIT and the event publishes nothing. A connection
that breaks while an event is sent may publish it twice. FLUSHALL empties the stream. The rows
are right in all of these cases.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from queue_app import conf
from queue_app.core.counters import times_of
from queue_app.core.events import (
    Ended,
    Event,
    EventFilter,
    EventName,
    Occasion,
    Run,
    accepted,
    attempts_in_runs,
    counted,
    in_runs,
    is_entry_id,
    occasion_of,
    traced,
)
from queue_app.core.limits import score
from queue_app.core.records import ClaimedTask, Enqueued, Entry, Returned, TaskRef, TaskSpec
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.index import Index, stream_index
from queue_app.services.notify.index import OnLocated, notify_index, push_on_commit
from queue_app.sql.search import traces
from queue_app.telemetry import tracing, transition_log

#: Pass this id to read only events that are published from now on.
FROM_NOW = "$"
FROM_THE_BEGINNING = "0-0"
MAX_COUNT = 1000


def read(
    after_id: str = FROM_NOW, *, count: int = 100, block_ms: int | None = None, only: EventFilter | None = None
) -> tuple[list[Event], str]:
    """Return the events after ``after_id`` that match ``only``, oldest first, and the id to continue from.

    Reads up to ``count`` entries, and waits up to ``block_ms`` for the first. Raises ``InvalidTaskData``
    for an invalid id, and ``IndexUnavailable`` when the stream cannot be read.
    """
    if after_id != FROM_NOW and not is_entry_id(after_id):
        raise InvalidTaskData(
            "after_id", "after_id must be the id of an event, like 1700000000000-0.", code="invalid_id"
        )
    found = stream_index().read_events(after_id, count=max(1, min(count, MAX_COUNT)), block_ms=block_ms)
    last = found[-1].id if found else after_id
    return [event for event in found if only is None or only.matches(event)], last


def last_id() -> str:
    """Return the id of the newest event, to continue from; raise ``IndexUnavailable``."""
    return stream_index().last_event_id()


def enabled() -> bool:
    """Return whether events are published or counted at all."""
    return _is_published(conf.get())


def are_streamed() -> bool:
    """Return whether events reach those who listen: the stream is in Redis."""
    return enabled() and conf.get().index == conf.REDIS


def publish(events: Iterable[tuple[Occasion, uuid.UUID]]) -> None:
    """Record events about tasks whose rows are committed. Never raises."""
    _record(_runs(events))


def publish_on_commit(events: Iterable[tuple[Occasion, uuid.UUID]]) -> None:
    """Record events once the caller's transaction has committed."""
    push_on_commit((), events=_runs(events))


def count(counts: Mapping[str, int]) -> None:
    """Add to the counters of the cluster. Never raises."""
    if counts and conf.get().metrics.enabled:
        notify_index(Index.count, "count", counts)


# -- events of the transitions ---------------------------------------------------------------------


def announcement(
    stored: Sequence[Enqueued],
    on_push: Callable[[], object] | None = None,
    *,
    write_events: bool = True,
    on_located: OnLocated | None = None,
) -> Callable[[], None]:
    """Return a function that pushes tasks which were stored, with their events, once they are committed.

    Tasks of one call mostly share instant and band, and their events mostly differ only in the task.
    """
    entries: list[Entry] = []
    runs: list[Run] = []
    instant, band, place = None, None, 0.0
    kind, status = None, None
    is_recorded = write_events and _is_recorded()
    for item in stored:
        spec, queued_at, sent = item.spec, item.queued_at, item.sent_trace
        if queued_at is not None:
            if queued_at is not instant or spec.priority != band:
                instant, band = queued_at, spec.priority
                place = score(band, instant)
            entries.append(Entry(spec.lane, place, item.id))
        if is_recorded:
            if spec is not kind or item.status is not status:
                kind, status = spec, item.status
                occasion = accepted(spec.task_type, spec.queue, spec.priority, spec.user, status)
                runs.append(Run(traced(occasion, sent) if sent else occasion, []))
            runs[-1].task_ids.append(item.id)
    return partial(push_on_commit, entries, on_push, events=runs, on_located=on_located)


def rejected(spec: TaskSpec, code: str, details: Sequence[str]) -> None:
    """Record that tasks were refused; the event names no task, as none was stored."""
    if _is_recorded():
        occasion = accepted(spec.task_type, spec.queue, spec.priority, spec.user, Status.QUEUED)._replace(
            name=EventName.REJECTED.value, attempt="", status="rejected", details=("code", code, *details)
        )
        _record([Run(traced(occasion, tracing.of_caller()), [])])


def push_queued_again(tasks: Sequence[TaskRef]) -> None:
    """Push tasks that were replayed, retried, released or queued early, with their events, on commit."""
    requeued = ((occasion_of(EventName.REQUEUED, task, Status.QUEUED), task.id) for task in tasks)
    push_on_commit([task.entry for task in tasks], events=_runs(requeued))


def started(tasks: Sequence[ClaimedTask]) -> None:
    """Record that a worker was granted tasks."""
    settings = conf.get()
    if settings.events.log:
        transition_log.log_started(tasks)
    if _is_published(settings):
        runs = attempts_in_runs([(EventName.STARTED, task, Status.EXECUTING) for task in tasks])
        notify_index(Index.notify, "publish", (), runs)


def finished(attempts: Sequence[Ended]) -> None:
    """Record how attempts ended, and which tasks are dead letters now."""
    settings = conf.get()
    is_published = _is_published(settings)
    if not (is_published or settings.events.log):
        return
    dead = [(each.name, each.outcome.task) for each in attempts if each.status is Status.DEAD_LETTER]
    letters = [(traced(_dead_letter_of(name, task), task.trace), task.id) for name, task in dead]
    dead_letters = in_runs(letters) if letters else []
    if settings.events.log:
        transition_log.log_ended(attempts)
        transition_log.log_events(dead_letters)
    if is_published:
        counts = [counted(times_of(attempts))] if settings.metrics.enabled else []
        runs = attempts_in_runs([(each.name, each.outcome.task, each.status) for each in attempts])
        notify_index(Index.notify, "publish", (), runs + dead_letters + counts)


def returned(tasks: Iterable[Returned]) -> None:
    """Record the new states of tasks that their workers gave back or died with."""
    publish((_of_returned(each.status, each.task), each.task.id) for each in tasks)


def _dead_letter(task: ClaimedTask | TaskRef, reason: str, *, attempt: int | str = "") -> Occasion:
    """Return the occasion of a task that became a dead letter."""
    occasion = occasion_of(EventName.DEAD_LETTERED, task, Status.DEAD_LETTER, attempt=attempt)
    return occasion._replace(details=("reason", reason))


def _runs(events: Iterable[tuple[Occasion, uuid.UUID]]) -> list[Run]:
    """Group events, if any are recorded, and add the traces that callers have sent; the rows have them."""
    if not _is_recorded():
        return []
    found = list(events)
    sent = traces([task_id for _, task_id in found])
    return in_runs((traced(occasion, sent.get(task_id)), task_id) for occasion, task_id in found)


def _dead_letter_of(name: EventName, task: ClaimedTask) -> Occasion:
    reason = "timeout" if name is EventName.TIMED_OUT else "retries_exhausted"
    return _dead_letter(task, reason, attempt=task.attempt)


def _of_returned(status: Status, task: TaskRef) -> Occasion:
    if status is Status.DEAD_LETTER:
        return _dead_letter(task, "crash_loop")
    return occasion_of(EventName.CANCELLED if status is Status.CANCELLED else EventName.REQUEUED, task, status)


def _is_published(settings: conf.TaskQueueSettings) -> bool:
    return settings.metrics.enabled or settings.events.max_length > 0


def _is_recorded() -> bool:
    settings = conf.get()
    return settings.events.log or _is_published(settings)


def _record(runs: Sequence[Run]) -> None:
    if transition_log.enabled():
        transition_log.log_events(runs)
    if runs and enabled():
        notify_index(Index.notify, "publish", (), runs)
