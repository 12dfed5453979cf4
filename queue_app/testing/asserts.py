"""Assert in a test which tasks were enqueued, and run them."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from asgiref.sync import sync_to_async
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskResultStatus
from django.utils.json import normalize_json

from queue_app import codecs
from queue_app.backend import TaskQueueBackend
from queue_app.backend.results import load_results
from queue_app.registry import AnyTask, type_of
from queue_app.tasks import AnyResult
from queue_app.testing.backend import drain as run_due


def enqueued(task: AnyTask | None = None, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> list[AnyResult]:
    """Return the results of all tasks (or those of ``task``) that were enqueued and have not ended, oldest first.

    Works with Django's ``DummyBackend`` too. Raises ``TypeError`` for a backend that cannot list its tasks.
    """
    found = [
        result
        for result in _all(task_backends[backend])
        if result.status in {TaskResultStatus.READY, TaskResultStatus.RUNNING}
    ]
    return [result for result in found if task is None or type_of(result.task) == type_of(task)]


def _all(backend: BaseTaskBackend) -> list[AnyResult]:
    if isinstance(backend, TaskQueueBackend):
        from queue_app.models import Task  # noqa: PLC0415 - needs the apps

        found = load_results(list(Task.objects.pending().values_list("pk", flat=True)), backend.alias)
        return [found[task_id] for task_id in sorted(found)]
    if hasattr(backend, "results"):
        return list(backend.results)
    raise TypeError(f"{type(backend).__name__} cannot list its tasks; use queue_app.testing.override_queue in tests.")


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
    """Run the due tasks, the most urgent first; return the results in the order in which attempts ended.

    ``capabilities`` are those of the worker (default: all). With ``to_the_end``, the clock is frozen and moves forward
    to the next retry, delay or refill until no task waits. Raises ``RuntimeError`` after 10,000 attempts.
    """
    found = task_backends[backend]
    if not isinstance(found, TaskQueueBackend):
        raise TypeError(
            f"drain() runs tasks of this queue; TASKS[{backend!r}] is {type(found).__name__}. Use"
            " queue_app.testing.override_queue in the test."
        )
    return run_due(found, queue=queue, capabilities=capabilities, to_the_end=to_the_end)


async def adrain(**options: Any) -> list[AnyResult]:
    """``drain`` for coroutines."""
    return await sync_to_async(drain)(**options)


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
    args = codecs.encode_call([wanted], {})[0] if codecs.are_on() else [wanted]
    try:
        return bool(normalize_json(args) == [stored])
    except (TypeError, ValueError):  # such as a value that only compares, unittest.mock.ANY
        return False


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
