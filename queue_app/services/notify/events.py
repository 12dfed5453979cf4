"""The stream of lifecycle events: told once the row is committed, as a hint like all others.

Crash points: a process that dies between COMMIT and the event tells nothing; the row is
right all the same. A connection that breaks while an event is under way may have it told
twice. FLUSHALL empties the stream. So a reader that must know asks the rows, and takes an
event as the reason to ask.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from queue_app import conf
from queue_app.core.counters import times_of
from queue_app.core.events import (
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
)
from queue_app.core.records import ClaimedTask, Outcome, TaskRef
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.index import get_index
from queue_app.services.notify import transition_log
from queue_app.services.notify.index import notify_index, push_on_commit
from queue_app.sql.finish import Attempt
from queue_app.sql.insert import Stored, TaskSpec

#: The id after which there is nothing yet: a reader that begins with it hears what comes from now on.
FROM_NOW = "$"
FROM_THE_BEGINNING = "0-0"
MAX_COUNT = 1000


def enabled() -> bool:
    """Return whether events are written, or counted, at all."""
    settings = conf.get()
    return settings.metrics.enabled or settings.events.max_length > 0


def publish(events: Iterable[tuple[Occasion, uuid.UUID]]) -> None:
    """Tell events about tasks whose rows are committed. Never raises; nobody waits for it."""
    if _is_told():
        _tell_and_log(in_runs(events))


def publish_on_commit(events: Iterable[tuple[Occasion, uuid.UUID]]) -> None:
    """Tell events once the caller's transaction has committed."""
    if _is_told():
        push_on_commit((), events=in_runs(events))


def read(
    after_id: str = FROM_NOW,
    *,
    count: int = 100,
    block_ms: int | None = None,
    only: EventFilter | None = None,
) -> tuple[list[Event], str]:
    """Return events that follow ``after_id``, oldest first, and the id to go on from.

    Looks at up to ``count`` entries, and returns those events that ``only`` lets pass; with
    ``block_ms`` it waits so long for the first. Raises ``InvalidTaskData`` for what is no id
    of an entry, ``IndexUnavailable`` when the stream cannot be read.
    """
    if after_id != FROM_NOW and not is_entry_id(after_id):
        raise InvalidTaskData(
            "after_id", "after_id must be the id of an event, like 1700000000000-0.", code="invalid_id"
        )
    found = get_index().read_events(after_id, count=max(1, min(count, MAX_COUNT)), block_ms=block_ms)
    last = found[-1].id if found else after_id
    return [event for event in found if only is None or only.matches(event)], last


def last_id() -> str:
    """Return the id of the newest event, to read on from; raise ``IndexUnavailable``."""
    return get_index().last_event_id()


# -- what the transitions tell ---------------------------------------------------------------------


def of_stored(stored: Sequence[Stored]) -> list[Run]:
    """Return the events of tasks that were stored; those of one call mostly share all but their id."""
    if not _is_told():
        return []
    runs: list[Run] = []
    kind: object = None
    status: Status | None = None
    for item in stored:
        spec = item.row.spec
        if spec is not kind or item.status is not status:
            kind, status = spec, item.status
            runs.append(Run(accepted(spec.task_type, spec.queue, spec.priority, spec.user, status), []))
        runs[-1].task_ids.append(item.row.id)
    return runs


def rejected(spec: TaskSpec, code: str, details: Sequence[str]) -> None:
    """Tell that tasks were refused; the event is about none, as nothing was stored."""
    if _is_told():
        occasion = accepted(spec.task_type, spec.queue, spec.priority, spec.user, Status.QUEUED)._replace(
            name=EventName.REJECTED.value, attempt="", status="rejected", details=("code", code, *details)
        )
        _tell_and_log([Run(occasion, [])])


def of_queued_again(tasks: Iterable[TaskRef]) -> list[Run]:
    """Return the events of tasks that were replayed."""
    if not _is_told():
        return []
    return in_runs((occasion_of(EventName.REQUEUED, task, Status.QUEUED), task.id) for task in tasks)


def started(tasks: Sequence[ClaimedTask]) -> None:
    """Tell that a worker was granted tasks."""
    if transition_log.enabled():
        transition_log.started(tasks)
    if enabled():
        _tell(attempts_in_runs((EventName.STARTED, task, Status.EXECUTING) for task in tasks))


def finished(outcomes: Mapping[Attempt, Outcome], held: Mapping[Attempt, Status]) -> None:
    """Tell how attempts ended, and which tasks are dead letters now."""
    if not _is_told():
        return
    ended = [(outcomes[attempt], status) for attempt, status in held.items()]
    if transition_log.enabled():
        transition_log.ended([(_name_of(outcome, status), outcome, status) for outcome, status in ended])
    runs = attempts_in_runs((_name_of(outcome, status), outcome.task, status) for outcome, status in ended)
    dead = [outcome for outcome, status in ended if status is Status.DEAD_LETTER]
    dead_letters = in_runs((_dead_letter_of(outcome), outcome.task.id) for outcome in dead)
    if transition_log.enabled():
        transition_log.told(dead_letters)
    runs += dead_letters
    if conf.get().metrics.enabled:
        runs.append(counted(times_of(ended)))
    _tell(runs)


def count(counts: Mapping[str, int]) -> None:
    """Add to the counts of the cluster. Never raises."""
    if counts and conf.get().metrics.enabled:
        notify_index(lambda index: index.count(counts), "count")


def _name_of(outcome: Outcome, status: Status) -> EventName:
    if status is Status.COMPLETED:
        return EventName.COMPLETED
    if status is Status.CANCELLED:
        return EventName.CANCELLED
    if outcome.failure is None:
        return EventName.REQUEUED
    return EventName.TIMED_OUT if outcome.failure.reason == "timeout" else EventName.FAILED


def _dead_letter_of(outcome: Outcome) -> Occasion:
    by_timeout = outcome.failure is not None and outcome.failure.reason == "timeout"
    return dead_letter(outcome.task, "timeout" if by_timeout else "retries_exhausted", attempt=outcome.task.attempt)


def dead_letter(task: ClaimedTask | TaskRef, reason: str, *, attempt: int | str = "") -> Occasion:
    """Return the occasion of a task that became a dead letter."""
    occasion = occasion_of(EventName.DEAD_LETTERED, task, Status.DEAD_LETTER, attempt=attempt)
    return occasion._replace(details=("reason", reason))


def returned(tasks: Iterable[tuple[Status, TaskRef]]) -> None:
    """Tell what became of tasks that their workers gave back or died with."""
    publish((_of_returned(status, task), task.id) for status, task in tasks)


def _of_returned(status: Status, task: TaskRef) -> Occasion:
    if status is Status.DEAD_LETTER:
        return dead_letter(task, "crash_loop")
    return occasion_of(EventName.CANCELLED if status is Status.CANCELLED else EventName.REQUEUED, task, status)


def _is_told() -> bool:
    return enabled() or transition_log.enabled()


def _tell_and_log(runs: Sequence[Run]) -> None:
    if transition_log.enabled():
        transition_log.told(runs)
    _tell(runs)


def _tell(runs: Sequence[Run]) -> None:
    if runs and enabled():
        notify_index(lambda index: index.post_entries((), runs), "publish")
