"""The backend of a test: the real one, whose tasks run when the test says so."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.asyncio import async_unsafe

from queue_app import conf
from queue_app.backend import Call, TaskQueueBackend
from queue_app.backend.results import checked_timeout, load_results
from queue_app.core.ids import Id, parse_id
from queue_app.core.options import Seconds
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.exceptions import InvalidTransition, near_matches
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult
from queue_app.testing.clock import current, freeze, tell_sessions

_SETTINGS: Final = {"TASKQUEUE__INDEX": conf.ROWS, "TASKQUEUE__RETRY__JITTER": "false"}


@contextmanager
def on_rows() -> Iterator[None]:
    """Let the queue use no Redis, whatever the project sets, and delay retries by no random time."""
    before = {name: os.environ.get(name) for name in _SETTINGS}
    if before == _SETTINGS:
        yield
        return
    os.environ.update(_SETTINGS)
    conf.reset()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        conf.reset()


@async_unsafe("In a coroutine, write `await adrain()`, not drain().")
def drain(
    backend: TaskQueueBackend,
    *,
    queue: str | None = None,
    capabilities: Collection[str] | None = None,
    to_the_end: bool = False,
    hooks_since: int = 0,
) -> list[AnyResult]:
    """Run the due tasks of a backend, the most urgent first, as ``TestingBackend.drain``."""
    from queue_app.testing.runner import Drain, prepared  # noqa: PLC0415 - needs models

    if to_the_end and current() is None:
        with freeze():
            return drain(backend, queue=queue, capabilities=capabilities, to_the_end=True)
    with on_rows(), prepared(getattr(backend, "limits", {})):
        found = Drain(backend.alias, queue, capabilities, hooks_since)
        found.run(to_the_end=to_the_end)
    return found.ended


class TestingBackend(TaskQueueBackend):
    """Store tasks in the database of the test; ``drain`` runs the due ones, the most urgent first, without Redis.

    ``OPTIONS["LIMITS"]`` is {queue: {field of Queue: value}}, in force while tasks run. With ``OPTIONS["EAGER"]`` the
    due tasks run at each ``enqueue``.
    """

    __test__ = False  # no class of tests for pytest

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.options = dict(self.options)
        self._is_eager = bool(self.options.pop("EAGER", False))
        self.limits: dict[str, dict[str, Any]] = self.options.pop("LIMITS", {})
        for queue, values in self.limits.items():
            _check_limits(queue, values)

    def enqueue(  # type: ignore[override] # as the real one
        self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> AnyResult:
        """Store one task; with ``EAGER``, run it unless it is delayed."""
        return self._enqueue(lambda: [super(TestingBackend, self).enqueue(task, args, kwargs)])[0]

    def enqueue_many(self, task: AnyTask, calls: Iterable[Call]) -> list[AnyResult]:
        """Store one task for each (args, kwargs), all or nothing; with ``EAGER``, run them."""
        return self._enqueue(lambda: super(TestingBackend, self).enqueue_many(task, calls))

    def enqueue_workflow(self, *given: Any) -> None:
        """Store a workflow with all its tasks; with ``EAGER``, run them."""

        def store() -> list[AnyResult]:
            super(TestingBackend, self).enqueue_workflow(*given)
            return []

        self._enqueue(store)

    def _enqueue(self, store: Callable[[], list[AnyResult]]) -> list[AnyResult]:
        with on_rows():
            tell_sessions()
            hooks = len(connections[conf.get().database_alias].run_on_commit)
            found = store()
            if self._is_eager:
                drain(self, hooks_since=hooks)
                found = [self.get_result(result.id) for result in found]
            return found

    # -- for tests -----------------------------------------------------------------------------

    def drain(
        self, *, queue: str | None = None, capabilities: Collection[str] | None = None, to_the_end: bool = False
    ) -> list[AnyResult]:
        """Run the due tasks, the most urgent first; return the results in the order in which attempts ended.

        ``capabilities`` are those of the worker (default: all). With ``to_the_end``, the clock is frozen and moves
        forward to the next retry, delay or refill until no task waits. Raises ``RuntimeError`` after 10,000 attempts.
        """
        return drain(self, queue=queue, capabilities=capabilities, to_the_end=to_the_end)

    def clear(self) -> None:
        """Delete all tasks and workflows."""
        from queue_app.models import Task, Workflow  # noqa: PLC0415 - needs the apps

        for model in (Task, Workflow):
            model.objects.all().delete()

    @property
    def results(self) -> list[AnyResult]:
        """The results of all tasks, oldest first."""
        return self.in_state(*Status)

    def in_state(self, *states: Status) -> list[AnyResult]:
        """Return the results of the tasks in these states, oldest first."""
        from queue_app.models import Task  # noqa: PLC0415 - needs the apps

        ids = list(Task.objects.filter(status__in=states).order_by("id").values_list("pk", flat=True))
        found = load_results(ids, self.alias)
        return [found[task_id] for task_id in ids]

    def workflow(self, workflow_id: Id) -> Any:
        """Return a workflow, to look at it, or to cancel, pause, resume or retry it."""
        found = super().workflow(workflow_id)
        for name in "pause", "retry", "stop_undoing":
            setattr(found, name, partial(getattr(found, name), by="", reason="a test"))
        return found

    def replay(self, task_id: Id) -> None:
        """Run a dead letter again."""
        from queue_app.services.lifecycle.actions import replay  # noqa: PLC0415 - needs the apps

        replay(self._letter(task_id), by="")

    def discard(self, task_id: Id) -> None:
        """Close a dead letter for good."""
        from queue_app.services.lifecycle.actions import discard  # noqa: PLC0415 - needs the apps

        discard(self._letter(task_id), by="")

    def _letter(self, task_id: Id) -> Any:
        from queue_app.models import DeadLetter  # noqa: PLC0415 - needs the apps

        letter = DeadLetter.objects.open().filter(task_id=parse_id(task_id)).values_list("id", flat=True).first()
        if letter is None:
            status = self.row_of(task_id).status
            raise InvalidTransition(f"The task {predicate(status)}; it is no open dead letter.", status=status)
        return letter

    # -- waiting runs tasks ----------------------------------------------------------------------

    def wait_for(self, task_id: Id, seconds: Seconds | None) -> None:
        """Run tasks until this one has ended, with the clock if it must wait; raise ``TimeoutError`` if it cannot."""
        checked_timeout(seconds)
        if not self._ends(lambda: self.row_of(task_id).status in TERMINAL):
            raise TimeoutError(
                f"The task {task_id} is still {self.row_of(task_id).status}, and nothing is left to run."
            )

    async def await_for(self, task_id: Id, seconds: Seconds | None) -> None:
        """``wait_for`` for coroutines."""
        await sync_to_async(self.wait_for)(task_id, seconds)

    def wait_for_workflow(self, workflow_id: Id, seconds: Seconds | None) -> None:
        """Run tasks until a workflow has ended, like ``wait_for``."""
        checked_timeout(seconds)
        if not self._ends(lambda: self.workflow(workflow_id).has_ended):
            raise TimeoutError(f"The workflow {workflow_id} has not ended, and nothing is left to run.")

    async def await_workflow(self, workflow_id: Id, seconds: Seconds | None) -> None:
        """``wait_for_workflow`` for coroutines."""
        await sync_to_async(self.wait_for_workflow)(workflow_id, seconds)

    def _ends(self, has_ended: Callable[[], bool]) -> bool:
        for to_the_end in False, True:
            if not has_ended():
                self.drain(to_the_end=to_the_end)
        return has_ended()


def _check_limits(queue: str, values: dict[str, Any]) -> None:
    from queue_app.models import Queue  # noqa: PLC0415 - needs the apps

    known = [field.name for field in Queue._meta.fields]  # noqa: SLF001 - Django's public name
    for name in values:
        if name not in known:
            matches = near_matches(str(name), known)
            hint = f"Did you mean {matches[0]!r}?" if matches else f"Known names: {', '.join(known)}."
            raise ImproperlyConfigured(f"A queue such as {queue!r} has no field {name!r}. {hint}")
