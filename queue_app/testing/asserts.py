"""Assert in a test which tasks were enqueued, and run them."""

import json
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskResultStatus

from queue_app.exceptions import InvalidTaskData
from queue_app.registry import AnyTask, type_of
from queue_app.tasks import AnyResult
from queue_app.testing.memory import MemoryBackend
from queue_app.testing.stored import as_json


def enqueued(task: AnyTask | None = None, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> list[AnyResult]:
    """Return the results of all tasks (or those of ``task``) that were enqueued and have not ended, oldest first.

    Works with ``MemoryBackend``, Django's ``DummyBackend`` and ``TaskQueueBackend``. Raises ``TypeError`` for a backend
    that cannot list its tasks.
    """
    found = [
        result
        for result in _all(task_backends[backend])
        if result.status in {TaskResultStatus.READY, TaskResultStatus.RUNNING}
    ]
    return [result for result in found if task is None or type_of(result.task) == type_of(task)]


def _all(backend: BaseTaskBackend) -> list[AnyResult]:
    if isinstance(backend, MemoryBackend) or hasattr(backend, "results"):
        return list(backend.results)
    from queue_app.backend import TaskQueueBackend  # noqa: PLC0415 - it needs the models

    if isinstance(backend, TaskQueueBackend):
        from queue_app.models import Task  # noqa: PLC0415

        pending = Task.objects.pending().order_by("id").values_list("pk", flat=True)
        return [backend.get_result(str(task_id)) for task_id in pending]
    raise TypeError(f"{type(backend).__name__} cannot list its tasks; use queue_app.testing.MemoryBackend in tests.")


def assert_enqueued(
    task: AnyTask,
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    count: int | None = None,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    **options: Any,
) -> AnyResult:
    """Assert that ``task`` was enqueued and has not ended; return the newest matching result.

    ``args`` must be equal, ``kwargs`` may name some of the parameters (both with the values of the call, or as they are
    stored), and ``options`` are attributes of the task
    (``queue_name``, ``priority``, ``run_after``, ``user``, …). Without ``count``, at least one result must match. The
    error lists all enqueued tasks.
    """
    for name in options:
        if name not in {field.name for field in fields(task)}:
            raise TypeError(f"{name!r} is not an option of a task.")
    waiting = enqueued(backend=backend)
    matching = [result for result in waiting if _matches(result, task, args, kwargs, options)]
    if len(matching) == count or (count is None and matching):
        return matching[-1]
    wanted = "at least one" if count is None else count
    listed = "\n".join(f"  {_line(result)}" for result in waiting) or "  none"
    raise AssertionError(
        f"Expected {wanted} of {_call(type_of(task), args or [], kwargs or {})}{_brackets(options)} to be enqueued, "
        f"found {len(matching)}. Enqueued tasks:\n{listed}"
    )


def assert_not_enqueued(task: AnyTask, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
    """Assert that no task of this function was enqueued and has not ended."""
    found = enqueued(task, backend=backend)
    if found:
        listed = "\n".join(f"  {_line(result)}" for result in found)
        raise AssertionError(f"Expected no {type_of(task)} to be enqueued, found:\n{listed}")


def drain(
    *,
    queue: str | None = None,
    capabilities: Collection[str] | None = None,
    to_the_end: bool = False,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> list[AnyResult]:
    """Run the due tasks of ``MemoryBackend``, the most urgent first; see ``MemoryBackend.drain``."""
    found = task_backends[backend]
    if not isinstance(found, MemoryBackend):
        raise TypeError(
            f"drain() needs queue_app.testing.MemoryBackend; TASKS[{backend!r}] is {type(found).__name__}. "
            "To run rows, call the command runworker with burst=True in a test that commits."
        )
    return found.drain(queue=queue, capabilities=capabilities, to_the_end=to_the_end)


def _matches(
    result: AnyResult, task: AnyTask, args: list[Any] | None, kwargs: dict[str, Any] | None, options: dict[str, Any]
) -> bool:
    return (
        type_of(result.task) == type_of(task)
        and (args is None or _is_stored(list(args), result.args))
        and (kwargs is None or _is_stored(kwargs, {name: result.kwargs.get(name) for name in kwargs}))
        and all(getattr(result.task, name, None) == value for name, value in options.items())
    )


def _is_stored(wanted: Any, stored: Any) -> bool:
    """Return whether stored JSON is that of the wanted values, which may be real values or their stored forms."""
    if stored == wanted:
        return True
    try:
        text, _ = as_json([wanted], {})
    except InvalidTaskData:  # such as a value that only compares, unittest.mock.ANY
        return False
    return bool(json.loads(text) == [stored])


def _line(result: AnyResult) -> str:
    task = result.task
    options = {"queue_name": task.queue_name, "priority": task.priority, "run_after": task.run_after}
    return _call(type_of(task), result.args, result.kwargs) + _brackets(options)


def _call(name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    parts = [repr(value) for value in args] + [f"{key}={value!r}" for key, value in kwargs.items()]
    return f"{name}({', '.join(parts)})"


def _brackets(options: dict[str, Any]) -> str:
    parts = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    return f" [{', '.join(parts)}]" if parts else ""
