"""Django's ``@task`` with the options of this queue, typed.

``from queue_app import task`` does what ``from django.tasks import task`` does, and accepts the
options of this queue, also on Django 6.0, whose own decorator accepts none, and under a strict type
checker. Its tasks work on every backend of ``django.tasks``; other backends ignore the options.

This module uses no models, so a module of tasks may be imported while the apps are loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, Protocol, Self, TypedDict, Unpack, cast, overload

from django.db import DEFAULT_DB_ALIAS, transaction
from django.tasks import task_backends
from django.tasks.base import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    Task,
    TaskContext,
    TaskResult,
)
from django.tasks.exceptions import InvalidTask

from queue_app import registry, task_options
from queue_app.core.ids import Id
from queue_app.core.options import CallOptions, CallValues, Seconds
from queue_app.core.other_queues import INSTEAD_OF_OPTIONS, METHODS, OPTIONS
from queue_app.exceptions import Retry, near_matches
from queue_app.versions import Upgrade

if TYPE_CHECKING:
    from django.tasks.base import Task as _Base

    from queue_app.task_result import QueueTaskResult
else:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class _Base(Task):
        """Django's class, which is only generic in the stubs."""

        def __class_getitem__(cls, _parameters: object) -> type:
            return cls


type AnyResult = TaskResult[..., Any]  # generic in the stubs only; an alias is not evaluated


class Backoff(Protocol):
    """Decides when a failed task is retried: after some seconds, or never (``None``)."""

    def __call__(self, exception: BaseException, task_result: AnyResult) -> Seconds | None:
        """Return the wait before the retry; ``task_result`` includes the attempt that has just failed."""


class TaskOptions(CallValues, total=False):
    """The options of this queue; the policy of the queue or of the band decides the missing ones."""

    max_attempts: int | None


class OwnOptions(TypedDict, total=False):
    """The options that belong to the function, not to one of its calls."""

    task_type: str
    aliases: Sequence[str]
    backoff: Backoff | None
    sensitive: Sequence[str]
    encrypted: bool | None
    hooks: Sequence[Any]
    version: int
    upgrade: Upgrade | None
    on_success: Any
    on_failure: Any
    signals: Mapping[str, Any]


class DecoratorOptions(TaskOptions, OwnOptions, total=False):
    """The options of the decorator."""

    priority: int
    queue_name: str
    backend: str


# Django 6.0 has no defaults.
_DEFAULTS: Final[dict[str, Any]] = {
    "priority": DEFAULT_TASK_PRIORITY,
    "queue_name": DEFAULT_TASK_QUEUE_NAME,
    "backend": DEFAULT_TASK_BACKEND_ALIAS,
    "run_after": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTask[**P, R](_Base[P, R], CallOptions):
    """A task function with the options of this queue.

    Set them in the decorator or with ``.using(...)``:

    - those of ``queue_app.core.options.CallOptions``, where each says what it does;
    - ``max_attempts``: ``max_retries``, including the first attempt;
    - ``backoff``: a function of (exception, task_result) that returns the seconds before the
      retry, or ``None`` not to retry; only in the decorator, as it is not stored with a task;
    - ``task_type``: the name of the function for the API, other services and stored tasks, instead of its
      dotted path; the function may then move or be renamed; only in the decorator;
    - ``aliases``: former names of the function, the first one first, under which tasks may still be stored; only in the
      decorator;
    - ``sensitive``: names of parameters, at any depth, whose values are masked wherever they
      are displayed; only in the decorator, as it applies to all tasks of the function;
    - ``encrypted``: the arguments, results, errors and log lines are encrypted in the database (``None``: if the
      project has a key); only in the decorator;
    - ``unique``: ``True`` or a ``Unique`` rule: while one task exists, no equal one is stored;
    - ``hooks``: hooks around enqueue and run, after those of the setting ``HOOKS``; only in the decorator;
    - ``version``, ``upgrade``: the version of the signature, and a function of (version, args, kwargs) that returns
      the arguments of this version for a call that was stored with an older one; only in the decorator;
    - ``on_success``, ``on_failure``: a task (or its type) that is enqueued with the id of this one when it has
      completed, or failed for good; or ``"webhook:<endpoint>"``; only in the decorator;
    - ``signals``: the payloads of the signals that it waits for, such as ``{"approved": {"ok": bool}}``: other signals
      and payloads are refused, and the page of the task shows a form; only in the decorator.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    task_type: str = ""
    aliases: Sequence[str] = ()
    sensitive: Sequence[str] = ()
    encrypted: bool | None = False
    hooks: Sequence[Any] = ()
    version: int = 1
    upgrade: Upgrade | None = None
    on_success: Any = None
    on_failure: Any = None
    signals: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        task_options.check(self)
        Task.__post_init__(self)
        registry.register(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Self:
        """Return a copy with other defaults; raise ``TypeError`` for an unknown option."""
        _check_names(options)
        for name in OwnOptions.__annotations__:
            if name in options:
                raise TypeError(
                    f"{name} can be set in the decorator only: a stored task knows its function, not its copy."
                )
        named = {"priority": priority, "queue_name": queue_name, "run_after": run_after, "backend": backend}
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        if "max_attempts" in options and "max_retries" not in options:
            given["max_retries"] = None
        elif "max_retries" in options and "max_attempts" not in options:
            given["max_attempts"] = None
        return replace(self, **given, **options)

    if not TYPE_CHECKING:  # a type checker says it itself
        do_not_call_in_templates = True

        def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
            """Raise ``TypeError``: a task is no function."""
            name = self.func.__name__
            raise TypeError(f"{name} is a task. Use {name}.enqueue(…) to store a call, {name}.call(…) to run it here.")

        def __getattr__(self, name: str) -> Any:  # only for names that do not exist
            meant = METHODS.get(name)
            hint = f" Use {meant}." if meant else ""
            raise AttributeError(f"A task has no attribute {name!r}.{hint}", name=name, obj=self)

    if TYPE_CHECKING:

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> QueueTaskResult[P, R]:
            """Store a call in the caller's transaction."""

        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> QueueTaskResult[P, R]:
            """``enqueue`` for coroutines."""

    def enqueue_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue once the transaction on the default database has committed, and never if it is rolled back.

        If this queue uses that database, the task is stored in the transaction and commits with it.
        Otherwise a hook enqueues the task after the commit, and the task is lost if the process dies in
        between. Bad parameters raise at once in the first case, and in the hook in the second.
        """
        if getattr(self.get_backend(), "stores_tasks_in", None) == DEFAULT_DB_ALIAS:
            self.enqueue(*args, **kwargs)
        else:
            transaction.on_commit(partial(self.enqueue, *args, **kwargs))


@overload
def task[**P, R](
    function: Callable[Concatenate[TaskContext[Any, Any], P], R],
    /,
    *,
    takes_context: Literal[True],
    **options: Unpack[DecoratorOptions],
) -> QueueTask[P, R]: ...
@overload
def task[**P, R](
    function: Callable[P, R], /, *, takes_context: Literal[False] = False, **options: Unpack[DecoratorOptions]
) -> QueueTask[P, R]: ...
@overload
def task[**P, R](
    *, takes_context: Literal[True], **options: Unpack[DecoratorOptions]
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], QueueTask[P, R]]: ...
@overload
def task[**P, R](
    *, takes_context: Literal[False] = False, **options: Unpack[DecoratorOptions]
) -> Callable[[Callable[P, R]], QueueTask[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None, /, *, takes_context: bool = False, **options: Unpack[DecoratorOptions]
) -> Any:
    """Make a task of a function, like Django's decorator, with the options of ``QueueTask``.

    Raises ``InvalidTask`` for a function or an option that cannot be used, and ``TypeError``
    for an unknown option.
    """
    if "run_after" in options:  # as Django's decorator does
        raise TypeError("run_after cannot be set in the decorator; use .using(run_after=...).")

    _check_names(options)
    given: dict[str, Any] = _DEFAULTS | options

    def wrap(wrapped: Callable[..., Any]) -> QueueTask[..., Any]:
        return QueueTask(func=wrapped, takes_context=takes_context, **given)

    return wrap if function is None else wrap(function)


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for a name that is no option; suggest the one that was meant."""
    for name in options:
        if name not in QueueTask.__dataclass_fields__:
            if name in INSTEAD_OF_OPTIONS:
                raise TypeError(f"A task has no option {name!r}. {INSTEAD_OF_OPTIONS[name]}")
            meant = [OPTIONS[name]] if name in OPTIONS else near_matches(name, QueueTask.__dataclass_fields__)
            hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
            raise TypeError(f"A task has no option {name!r}.{hint}")


def signal(task: Any, name: str, payload: Any = None, *, by: str = "") -> bool:
    """Send a signal to a task, which gets ``payload`` (JSON) from ``context.wait_for(name)``.

    ``task`` is a result, a workflow, or the id of either; a signal to a workflow is for the first of its tasks that
    waits for it. ``by`` says who sends the signal. Returns whether the task waits for it; if not, the
    signal is kept until it does. Inside a transaction, the signal is sent when that commits.

    Raises ``TaskNotFound``, ``InvalidTransition`` for a task that has ended, and ``InvalidTaskData`` for a payload that
    is no JSON or lacks what the task declares.
    """
    alias = task.backend if isinstance(task, TaskResult) else DEFAULT_TASK_BACKEND_ALIAS
    task_id: Id = getattr(task, "id", task)
    backend: Any = task_backends[alias]
    if not hasattr(backend, "signal"):
        raise InvalidTask(f"The backend {alias!r} of TASKS has no signals: {type(backend).__qualname__}.")
    return bool(backend.signal(task_id, name, payload, by=by))


def next_try(failed: Any, error: BaseException, result: AnyResult) -> float | None:
    """Return the seconds that the task's own ``backoff`` returns; ``None`` means no retry.

    Raises ``LookupError`` if the task has no ``backoff``, ``ValueError`` or ``TypeError`` if the function
    does not return a time between 0 s and ten years, and any error of the function.
    """
    backoff = getattr(failed, "backoff", None)
    if backoff is None:
        raise LookupError("The task has no backoff of its own.")
    wait = cast("Backoff", backoff)(error, result)
    return None if wait is None else Retry(after=wait).after
