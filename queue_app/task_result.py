"""The result of a task, as ``enqueue`` returns it: Django's, with what this queue can do with a stored task.

The methods ask the backend of the task, so the same result works on the real backend and on the one in memory.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from asgiref.sync import sync_to_async
from django.core.signing import Signer
from django.tasks.base import TaskResult, TaskResultStatus
from django.urls import reverse

from queue_app.exceptions import TaskFailed

if TYPE_CHECKING:
    from queue_app.core.reasons import Explanation
    from queue_app.core.states import Status
    from queue_app.models import Task as TaskModel

    class _Base[**P, R](TaskResult[P, R]):
        """Django's class, which is only generic in the stubs."""

else:

    class _Base(TaskResult):
        """Django's class, which is only generic in the stubs."""

        __slots__ = ()

        def __class_getitem__(cls, _parameters: object) -> type:
            return cls


def status_signer() -> Signer:
    """Return the signer of the addresses of status pages; it needs settings."""
    return Signer(salt="queue_app.status")


def address_of(task_id: object) -> str:
    """Return the address of the status page of a task."""
    return reverse("queue_app:task-status", args=[status_signer().sign(str(task_id))])


class Progress(NamedTuple):
    """What a task last reported: a fraction from 0 to 1, and what it does."""

    fraction: float
    message: str
    updated_at: datetime


class QueueTaskResult[**P, R](_Base[P, R]):
    """The result of a task of this queue.

    The fields say what was known when the result was read; ``refresh`` reads them again. Each of the methods and
    properties of this class reads the present state.
    """

    __slots__ = ()

    def get_absolute_url(self) -> str:
        """Return the address of the status page for the user who waits, for ``redirect(result)``."""
        return address_of(self.id)

    def wait(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the end of the task and return its return value.

        Raises ``TaskFailed`` if it ends without success, ``TimeoutError`` after ``timeout`` (s; ``None``: never),
        and ``TransactionManagementError`` inside a transaction, because no worker sees a task before its commit.
        """
        self._backend.wait_for(self.id, timeout)
        self.refresh()
        return self._value()

    async def await_(self, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - as wait()
        """``wait`` for coroutines; no thread waits."""
        await self._backend.await_for(self.id, timeout)
        await self.arefresh()
        return self._value()

    def cancel(self) -> Status:
        """Cancel the task; return its new status: cancelled, or executing if its worker was asked to stop.

        Raises ``InvalidTransition`` if it has already ended.
        """
        return cast("Status", self._backend.cancel(self.id))

    async def acancel(self) -> Status:
        """``cancel`` for coroutines."""
        return await sync_to_async(self.cancel)()

    def explain(self) -> Explanation:
        """Return why the task is not running (``diagnose.explain``)."""
        return cast("Explanation", self._backend.explain(self.id))

    @property
    def progress(self) -> Progress | None:
        """What the task last reported with ``context.progress``; ``None`` if it has reported nothing."""
        return cast("Progress | None", self._backend.progress_of(self.id))

    @property
    def row(self) -> TaskModel:
        """The row of the task; raises ``TaskNotFound`` if it was purged."""
        return cast("TaskModel", self._backend.row_of(self.id))

    @property
    def children(self) -> list[QueueTaskResult[..., Any]]:
        """The results of the tasks that wait, or waited, for this one in its workflow."""
        return cast("list[QueueTaskResult[..., Any]]", self._backend.children_of(self.id))

    @property
    def _backend(self) -> Any:
        return self.task.get_backend()

    def _value(self) -> R:
        if self.status is TaskResultStatus.FAILED:
            raise TaskFailed(self.id, [(error.exception_class_path, error.traceback) for error in self.errors])
        return self.return_value
