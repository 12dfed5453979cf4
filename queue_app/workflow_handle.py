"""A stored workflow, as ``enqueue`` returns it. Its methods ask the backend, so it works in memory too.

This module uses no models, so a module of tasks may import it while the apps are loading.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, cast

from asgiref.sync import sync_to_async
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends

from queue_app.core.nodes import Node

if TYPE_CHECKING:
    from queue_app.models.workflow import WorkflowState


def _in_thread[S, **P, R](
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return a method for coroutines."""

    async def call(handle: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(method)(handle, *args, **kwargs)

    return call


class WorkflowHandle(uuid.UUID):
    """A stored workflow, which is also its id. Each method reads or changes the present state.

    The commands raise ``WorkflowNotFound``, and ``InvalidTransition`` if the state does not allow them. ``by`` says who
    gives a command, ``reason`` why; the audit log keeps both.
    """

    backend: str

    @classmethod
    def of(cls, workflow_id: uuid.UUID | str, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> WorkflowHandle:
        """Return the handle of a workflow that was stored before."""
        handle = cls(str(workflow_id))
        object.__setattr__(handle, "backend", backend)  # the class of the standard library refuses changes
        return handle

    @property
    def id(self) -> uuid.UUID:
        """The id of the workflow."""
        return uuid.UUID(int=self.int)

    def status(self) -> WorkflowState:
        """Return the state: running, compensating, completed, failed, cancelled or compensated."""
        return cast("WorkflowState", self._stored.state)

    def gaps(self) -> list[str]:
        """Return the names of completed tasks that stay as they are, because what undoes them was given up."""
        return list(self._stored.gaps)

    def wait(self, timeout: float | timedelta | None = None) -> WorkflowState:
        """Wait for the end and return the state; raise ``TimeoutError`` after ``timeout`` (s; ``None``: never).

        Raises ``TransactionManagementError`` inside a transaction, because no worker sees the tasks before its commit.
        """
        self._backend.wait_for_workflow(self.id, timeout)
        return self.status()

    async def await_(self, timeout: float | timedelta | None = None) -> WorkflowState:  # noqa: ASYNC109 - as wait()
        """``wait`` for coroutines; no thread waits."""
        await self._backend.await_workflow(self.id, timeout)
        return await self.astatus()

    def result(self, node: Node) -> Any:
        """Return what the task of a node returned, or a list for several tasks; null if it did not complete."""
        return self._stored.filled(node.result.as_json())

    def cancel(self, *, by: str = "", reason: str = "") -> None:
        """Cancel what has not ended, and undo what had completed; a second cancel changes nothing."""
        self._stored.cancel(by=by, reason=reason)

    def pause(self, *, by: str = "", reason: str = "") -> None:
        """Start no task until ``resume``; running tasks finish."""
        self._stored.pause(by=by, reason=reason)

    def resume(self, *, by: str = "", reason: str = "") -> None:
        """Let the tasks go that a pause holds back."""
        self._stored.resume(by=by, reason=reason)

    def retry(self, *, by: str = "", reason: str = "") -> int:
        """Run again what ended without success; return how many tasks."""
        return cast("int", self._stored.retry(by=by, reason=reason))

    def stop_undoing(self, *, by: str = "", reason: str) -> None:
        """Give up the compensations that have not completed; ``gaps`` names what stays as it is."""
        self._stored.stop_undoing(by=by, reason=reason)

    def signal(self, name: str, payload: Any = None, *, by: str = "") -> bool:
        """Send a signal to the first task that waits for it; return whether one does (``queue_app.signal``)."""
        return bool(self._backend.signal(self.id, name, payload, by=by))

    astatus = _in_thread(status)
    aresult = _in_thread(result)
    acancel = _in_thread(cancel)
    apause = _in_thread(pause)
    aresume = _in_thread(resume)
    aretry = _in_thread(retry)
    astop_undoing = _in_thread(stop_undoing)
    asignal = _in_thread(signal)

    @property
    def _backend(self) -> Any:
        return task_backends[getattr(self, "backend", DEFAULT_TASK_BACKEND_ALIAS)]  # not there after unpickling

    @property
    def _stored(self) -> Any:
        return self._backend.workflow(self.id)
