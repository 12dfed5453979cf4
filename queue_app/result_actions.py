"""What the backend does for ``QueueTaskResult``; each function takes the id of a task as text or as a UUID.

A decorator imports this module by way of the backend, perhaps while the apps are still loading, so functions import
services when they need them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db.transaction import TransactionManagementError
from django.utils.asyncio import async_unsafe

from queue_app.core.ids import Id, parse_id
from queue_app.exceptions import TaskNotFound
from queue_app.task_result import Progress, QueueTaskResult

if TYPE_CHECKING:
    from queue_app.core.reasons import Explanation
    from queue_app.core.states import Status
    from queue_app.models import Task
    from queue_app.services.workflows.stored import StoredWorkflow

#: One turn of waiting; the rows are read at least as often.
_TURN_SECONDS: Final = 3600.0


class ResultActions:
    """The part of the backend behind ``QueueTaskResult``."""

    def get_result(self, result_id: Id) -> Any:
        """Return the result of a task; the backend does it."""
        raise NotImplementedError

    @async_unsafe("In a coroutine, write `await result.await_(…)`, not wait().")
    def wait_for(self, task_id: Id, seconds: float | timedelta | None) -> None:
        """Wait until a task has ended; raise ``TimeoutError``, and ``TransactionManagementError`` in a transaction."""
        from queue_app.services.notify.subscribe import wait_for_end  # noqa: PLC0415 - needs models

        _refuse_transaction()
        found, seconds = parse_id(task_id), checked_timeout(seconds)
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _TURN_SECONDS if until is None else until - time.monotonic()
            if wait_for_end(found, min(left, _TURN_SECONDS)):
                return
            if until is not None and time.monotonic() >= until:
                raise _timed_out(task_id, seconds)

    async def await_for(self, task_id: Id, seconds: float | timedelta | None) -> None:
        """``wait_for`` for coroutines."""
        from queue_app.services.notify.subscribe import await_end  # noqa: PLC0415 - needs models

        seconds = checked_timeout(seconds)
        if not await await_end(parse_id(task_id), seconds):
            raise await sync_to_async(_timed_out)(task_id, seconds)

    def workflow(self, workflow_id: Id) -> StoredWorkflow:
        """Return a stored workflow."""
        from queue_app.services.workflows.stored import StoredWorkflow  # noqa: PLC0415 - needs models

        return StoredWorkflow(parse_id(workflow_id))

    @async_unsafe("In a coroutine, write `await handle.await_(…)`, not wait().")
    def wait_for_workflow(self, workflow_id: Id, seconds: float | timedelta | None) -> None:
        """Wait until a workflow has ended; raise as ``wait_for`` does."""
        _refuse_transaction()
        for pause in _pauses(workflow_id, seconds):
            if self.workflow(workflow_id).has_ended:
                return
            time.sleep(pause)

    async def await_workflow(self, workflow_id: Id, seconds: float | timedelta | None) -> None:
        """``wait_for_workflow`` for coroutines."""
        for pause in _pauses(workflow_id, seconds):
            if await sync_to_async(lambda: self.workflow(workflow_id).has_ended)():
                return
            await asyncio.sleep(pause)

    def cancel(self, task_id: Id) -> Status:
        """Cancel a task; return its new status."""
        from queue_app.services.lifecycle.actions import cancel  # noqa: PLC0415 - needs models

        return cancel(task_id)

    def explain(self, task_id: Id) -> Explanation:
        """Return why a task is not running."""
        from queue_app.diagnose.explain import explain  # noqa: PLC0415 - needs models

        return explain(task_id)

    def progress_of(self, task_id: Id) -> Progress | None:
        """Return what a task last reported."""
        from queue_app.models import TaskProgress  # noqa: PLC0415 - needs the apps

        found = TaskProgress.objects.filter(pk=parse_id(task_id)).first()
        return None if found is None else Progress(found.fraction, found.message, found.updated_at)

    def row_of(self, task_id: Id) -> Task:
        """Return the row of a task; raise ``TaskNotFound``."""
        from queue_app.models import Task  # noqa: PLC0415 - needs the apps

        found: Task | None = Task.objects.filter(pk=parse_id(task_id)).first()
        if found is None:
            raise TaskNotFound(f"There is no task {task_id}.")
        return found

    def children_of(self, task_id: Id) -> list[QueueTaskResult[..., Any]]:
        """Return the results of the tasks that wait for a task in its workflow."""
        from queue_app.models import TaskDependency  # noqa: PLC0415 - needs the apps

        edges = TaskDependency.objects.filter(before_id=parse_id(task_id)).order_by("after_id")
        return [self.get_result(child) for child in edges.values_list("after_id", flat=True)]


def _refuse_transaction() -> None:
    from queue_app.sql.database import is_in_transaction  # noqa: PLC0415 - imports the driver

    if is_in_transaction():
        raise TransactionManagementError(
            "wait() inside a transaction may wait for ever: no worker sees a task before its transaction commits."
        )


def _pauses(workflow_id: Id, timeout: float | timedelta | None) -> Iterator[float]:
    """Yield the seconds until the next look, at most a second; raise ``TimeoutError`` when the time is over."""
    seconds, began, pause = checked_timeout(timeout), time.monotonic(), 0.05
    while seconds is None or time.monotonic() - began < seconds:
        yield pause if seconds is None else min(pause, max(seconds - time.monotonic() + began, 0.0))
        pause = min(1.0, 1.5 * pause)
    yield 0.0
    raise TimeoutError(f"The workflow {workflow_id} has not ended after {seconds:g} s; its page says why.")


def checked_timeout(given: object) -> float | None:
    """Return a timeout in seconds (``None``: none); raise ``TypeError`` or ``ValueError``."""
    if given is None:
        return None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"timeout is a number of seconds, a timedelta or None, not {given!r:.60}.")
    if not seconds >= 0:  # false for NaN too, which would never time out
        raise ValueError(f"timeout must be at least 0 seconds, not {given!r:.60}.")
    return float(seconds)


def _timed_out(task_id: Id, seconds: float | None) -> TimeoutError:
    from queue_app.sql.claim import statuses  # noqa: PLC0415 - imports the driver

    status = statuses([parse_id(task_id)]).get(parse_id(task_id), "gone")
    return TimeoutError(f"The task {task_id} is still {status} after {seconds:g} s; result.explain() says why.")
