"""Turn the signals of ``queue_app.signals`` into log lines."""

import logging
import time
from dataclasses import replace
from typing import Any, Final

from django.db import InterfaceError, OperationalError
from django.dispatch import Signal, receiver

from queue_app import signals
from queue_app.core.priorities import Band
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure, TaskRef
from queue_app.core.redaction import HIDDEN, Secrets, redact
from queue_app.core.states import Status
from queue_app.encryption import UNDECRYPTABLE, hides
from queue_app.exceptions import IndexUnavailable
from queue_app.logs import ATTRIBUTE, printable
from queue_app.telemetry.transition_log import facts_of_attempt

logger = logging.getLogger("taskqueue")

_FROM_ROWS: Final = "the reconciler will repair it from the rows"
_NOTHING: Final = "they are lost, and no task depends on them"
#: Failed operation -> (what it notifies the index of, how the loss is repaired).
_LOST: Final = {
    "push": ("that tasks are queued", "the reconciler will push them from the rows"),
    "remove": ("that tasks no longer wait", "the rows will refuse them, and the reconciler will remove them"),
    "release": ("that slots are free", "the reconciler will end their leases"),
    "restore": ("of leases that were granted again", _FROM_ROWS),
    "reap": ("that tasks of a dead worker are queued again", "the reconciler will push them from the rows"),
    "withdraw": ("that the leases of a dead worker end", "the reconciler will end them"),
    "register": ("of a new worker", "it will register again with its first claim"),
    "retire": ("that a worker is gone", "the reconciler will retire it"),
    "tell": ("that workers must read their rows", "they read them with every heartbeat"),
    "set_limits": ("of changed limits", "the reconciler will copy them from the rows"),
    "set_thresholds": ("of changed thresholds of promotion", "the reconciler will copy them from the rows"),
    "publish": ("of events", _NOTHING),
    "count": ("of counts", _NOTHING),
    "position": ("of a new task whose position was asked for", "the answer has no position"),
}
#: Signal -> level and text of its line; texts may use the signal's values.
_LINES: Final[dict[Signal, tuple[int, str]]] = {
    signals.index_rebuilt: (
        logging.INFO,
        "index rebuilt: generation %(generation)d, %(tasks)d queued, %(leases)d executing, %(seconds).2f s",
    ),
    signals.index_condemned: (logging.ERROR, "the index is rebuilt: %(because)s"),
    signals.stalled: (logging.ERROR, "%(text)s"),
    signals.stall_acted: (logging.WARNING, "watchdog, %(step)s"),
    signals.stall_ended: (logging.INFO, "work continues after %(seconds).0f s: %(kind)s %(subject)s"),
    signals.index_repaired: (logging.INFO, "index repaired, %(kind)s: %(count)d"),
    signals.worker_reaped: (
        logging.WARNING,
        "worker %(name)s is gone and was declared dead; its tasks are queued again",
    ),
    signals.resumed_by_itself: (logging.INFO, "resumed: the pause of %(what)s ended at its time"),
    signals.dead_letters_replayed: (logging.INFO, "dead letters replayed by %(by)s: %(count)d"),
    signals.dead_letters_discarded: (logging.INFO, "dead letters discarded by %(by)s: %(count)d (%(reason)s)"),
    signals.tasks_expired: (logging.WARNING, "stale tasks of queue %(queue)s expired: %(count)d"),
}
#: Time after which an outage is logged again. While a server is away, every call fails.
REPEAT_SECONDS: Final = 60.0
_logged: Final[dict[str, float]] = {}  # server -> when (monotonic) its outage was last logged
#: Maximum number of tasks that a line names.
NAMED: Final = 3
_FINAL: Final = frozenset({Status.FAILED, Status.DEAD_LETTER})
#: New state of a task -> the consequence of its failed attempt.
_FOLLOWS: Final = {
    Status.FAILED: "it is not retried",
    Status.DEAD_LETTER: "no retries are left, it is a dead letter now",
    Status.CANCELLED: "it does not run again",
}


@receiver(signals.index_unreachable, dispatch_uid="queue_app.telemetry.unreachable")
def index_unreachable(operation: str, error: Exception, **_: Any) -> None:
    """Log that a notification of the index was lost, and how it will be repaired."""
    what, repair = _LOST.get(operation, (f"of {operation}", _FROM_ROWS))
    log_error(error, "the index was not notified %s; %s: %s", what, repair, error)


def log_error(error: Exception, text: str, *values: object) -> None:
    """Log a warning; if the error says that a server is away, once a minute for all calls of this process.

    The others go to the level DEBUG. ``outage_over`` lets the next outage be logged at once.
    """
    server, now = _server_of(error), time.monotonic()
    is_known = bool(server) and now - _logged.get(server, -REPEAT_SECONDS) < REPEAT_SECONDS
    logger.log(logging.DEBUG if is_known else logging.WARNING, text, *values)
    if server and not is_known:  # after the log: where a handler of the project fails, the next call logs again
        _logged[server] = now


def outage_over() -> None:
    """Forget outages: all servers have answered."""
    _logged.clear()


def _server_of(error: Exception) -> str:
    """Return the server that is away; empty if the error has another cause."""
    if type(error) is IndexUnavailable:  # not damaged, and not another database's
        return "Redis"
    state = getattr(error.__cause__, "sqlstate", None) or ""
    is_away = isinstance(error, OperationalError | InterfaceError) and (not state or state[:2] in ("08", "57"))
    return "PostgreSQL" if is_away else ""


@receiver(signals.tasks_orphaned, dispatch_uid="queue_app.telemetry.orphaned")
def tasks_orphaned(tasks: list[TaskRef], **_: Any) -> None:
    """Log which tasks a dead worker ran."""
    names = [f"{printable(task.task_type)} (task {task.id})" for task in tasks[:NAMED]]
    names += [f"{len(tasks) - NAMED} others"] if len(tasks) > NAMED else []
    logger.warning("their worker died, so these tasks run again: %s", ", ".join(names))


@receiver(list(_LINES), dispatch_uid="queue_app.telemetry.line")
def log_line(signal: Signal, **values: Any) -> None:
    """Log the line of a signal."""
    level, text = _LINES[signal]
    texts = {name: printable(value) for name, value in values.items() if isinstance(value, str)}
    if "kind" in texts:
        texts["kind"] = texts["kind"].replace("_", " ")
    if "by" in texts:
        texts["by"] = texts["by"] or "a program"
    logger.log(level, text, values | texts)


@receiver(signals.operation_ended, dispatch_uid="queue_app.telemetry.operation_ended")
def operation_ended(operation: Any, **_: Any) -> None:
    """Log how an operation ended; as a warning if it stopped because its first tasks failed again."""
    logger.log(
        logging.WARNING if operation.state == "stopped" else logging.INFO,
        "operation %s (%s by %s) %s: %d of %d tasks changed, %d failed again",
        operation.id,
        operation.kind,
        printable(operation.by) or "a program",
        operation.state,
        operation.changed,
        operation.total,
        operation.failed_again,
    )


def _describe(
    task: ClaimedTask, failure: TaskFailure, status: Status | None, retry_in: float | None, secrets: Secrets
) -> str:
    """Return one line about a failed attempt and its consequence, without secrets and control characters."""
    name = failure.exception_class.removeprefix("builtins.").removeprefix("queue_app.exceptions.")
    error = redact(f"{name}: {failure.message}" if failure.message else name, secrets)
    follows = "its server decides about a retry" if status is None else _FOLLOWS.get(status, f"it is {status} now")
    if status is Status.SCHEDULED and retry_in is not None:
        follows = f"retry {task.failures + 1} of {task.max_retries} in {retry_in:.3g} s"
    what = "was cancelled" if status is Status.CANCELLED else "failed"
    return f"{printable(task.task_type)} {what}: {printable(error).removesuffix('.')[:500]}; {follows} (task {task.id})"


@receiver(signals.attempt_failed, dispatch_uid="queue_app.telemetry.failed")
def attempt_failed(outcome: Outcome, status: Status | None, retry_in: float | None = None, **_: Any) -> None:
    """Log a failure: a warning if the task is retried, an error if it was the last attempt.

    The record carries the redacted traceback as text. Error trackers report each ``ERROR`` line, so that record also
    carries the exception, if this process raised it and it contains no secret.
    """
    task, failure, error = outcome.task, outcome.failure, outcome.error
    if failure is None:
        return
    from queue_app.encryption.displayed import secrets_of_call  # noqa: PLC0415 - it needs the models

    if hides(task.task_type) and failure.exception_class != UNDECRYPTABLE:  # outside of the rows nothing is encrypted
        error, failure = None, replace(failure, message=HIDDEN, traceback=HIDDEN)
    secrets = secrets_of_call(task)
    described = _describe(task, failure, status, retry_in, secrets)
    facts = {"task_id": str(task.id)} | facts_of_attempt(task, status)
    if status is Status.CANCELLED:
        logger.info("%s", described, extra={ATTRIBUTE: facts})
        return
    facts["traceback"] = redact(failure.traceback, secrets)[-4_000:]
    if status not in _FINAL:
        logger.warning("%s", described, extra={ATTRIBUTE: facts})
        return
    text = failure.message + failure.traceback
    shown = None if any(secret in text for secret in secrets) else error
    logger.error("%s", described, exc_info=shown, extra={ATTRIBUTE: facts})


@receiver(signals.tasks_crash_looped, dispatch_uid="queue_app.telemetry.crash_looped")
def tasks_crash_looped(tasks: list[TaskRef], **_: Any) -> None:
    """Log tasks that became dead letters because their workers died."""
    for task in tasks:
        logger.error(
            "%s %s became a dead letter: too many workers died while they ran it",
            printable(task.task_type),
            task.id,
            extra={ATTRIBUTE: {"task_id": str(task.id), "task_type": task.task_type, "queue": task.queue}},
        )


@receiver(signals.tasks_promoted, dispatch_uid="queue_app.telemetry.promoted")
def tasks_promoted(steps: dict[tuple[Band, Band], int], *, complete: bool, **_: Any) -> None:
    """Log how many tasks were promoted, and whether more follow."""
    text = ", ".join(f"{count} from {one.label} to {other.label}" for (one, other), count in sorted(steps.items()))
    logger.info("promoted: %s%s", text, "" if complete else "; more at the next run")
