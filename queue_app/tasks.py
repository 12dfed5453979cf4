"""Django's ``@task`` with the options of this queue, typed.

``from queue_app import task`` does what ``from django.tasks import task`` does, and accepts the
options of this queue, also on Django 6.0, whose own decorator accepts none, and under a strict type
checker. Its tasks work on every backend of ``django.tasks``; other backends ignore the options.

This module uses no models, so a module of tasks may be imported while the apps are loading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from queue_app import registry
from queue_app.core.ids import Id
from queue_app.core.options import CallOptions, CallValues, Seconds
from queue_app.core.other_queues import INSTEAD_OF_OPTIONS, METHODS, OPTIONS
from queue_app.exceptions import InvalidTaskData, Retry, near_matches
from queue_app.registry import MAX_VERSION, Upgrade

if TYPE_CHECKING:
    from django.tasks.base import Task as _Base

    from queue_app.backend.results import QueueTaskResult
    from queue_app.core.unique import Unique
else:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class _Base(Task):
        """Django's class, which is only generic in the stubs."""

        def __class_getitem__(cls, _parameters: object) -> type:
            return cls


# Checks of the options of a ``QueueTask``, which this module cannot import.

#: A type that a task names itself; empty: its dotted path.
_TYPE: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.:\-]{0,199})?", re.ASCII)


def _check(task: Any) -> None:
    """Raise ``InvalidTask`` for an option that cannot be used; store the others in the form in which they are read."""

    def put(option: str, value: object) -> None:
        object.__setattr__(task, option, value)

    if task.max_attempts is not None:
        put("max_retries", _retries(task.max_attempts, task.max_retries))
    if task.backoff is not None and not callable(task.backoff):
        raise InvalidTask(
            "backoff must be a function of (exception, task_result); for a number of seconds use retry_delay."
        )
    if isinstance(task.capabilities, list | set | frozenset):
        put("capabilities", tuple(task.capabilities))  # immutable
    put("sensitive", _names(task.sensitive))
    put("aliases", _former_names(task.aliases))
    _check_type(task.task_type)
    if task.version != 1 or task.upgrade is not None:
        _check_version(task.version, task.upgrade)
    if task.signals is not None:
        put("signals", _schemas(task.signals))
    try:
        for option, value in _resolved(task):
            put(option, value)
    except InvalidTaskData as error:
        raise InvalidTask(str(error)) from None


def _resolved(task: Any) -> Iterator[tuple[str, Any]]:
    """Yield (option, value) of the options that few tasks have: their modules are only imported if one does."""
    if task.unique is not None:
        yield "unique", _rule(task)
    if task.hooks:
        from queue_app.hooks import resolve  # noqa: PLC0415 - it imports the registry, as the caller does

        yield "hooks", resolve(task.hooks)
    if task.on_success or task.on_failure:
        from queue_app.hooks.callbacks import name_of  # noqa: PLC0415

        for option in ("on_success", "on_failure"):
            given = getattr(task, option)
            yield option, None if given is None else name_of(given, option)


def _retries(max_attempts: Any, max_retries: int | None) -> int:
    if type(max_attempts) is not int or max_attempts < 1:
        raise InvalidTask(f"max_attempts must be a whole number of at least 1, not {max_attempts!r}.")
    retries: int = max_attempts - 1
    if max_retries not in {None, retries}:
        raise InvalidTask(
            f"max_attempts={max_attempts} and max_retries={max_retries} contradict each other; "
            "give one of them (max_attempts counts the first attempt too)."
        )
    return retries


def _rule(task: Any) -> Unique | None:
    from queue_app.core.unique import LATEST_HAS_A_KEY, rule_of  # noqa: PLC0415

    rule = rule_of(task.unique)
    if rule is not None:
        rule.check(task.func, takes_context=task.takes_context)
        if rule.on_conflict == "latest" and task.concurrency_key:
            raise InvalidTaskData("unique", LATEST_HAS_A_KEY)
    return rule


def _schemas(given: Any) -> dict[str, Any]:
    from queue_app.core.steps import read_schemas  # noqa: PLC0415 - only tasks with signals need it

    try:
        return read_schemas(given)
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def _check_type(name: object) -> None:
    if not isinstance(name, str) or not _TYPE.fullmatch(name):
        raise InvalidTask(f"task_type must be a name such as 'process_video', not {name!r:.60}.")


def _check_version(version: Any, upgrade: Any) -> None:
    if type(version) is not int or not 1 <= version <= MAX_VERSION:
        raise InvalidTask(f"version must be a whole number from 1 to {MAX_VERSION}, not {version!r:.40}.")
    if version > 1 and not callable(upgrade):
        raise InvalidTask("A version above 1 needs upgrade, a function of (version, args, kwargs), for older calls.")
    if version == 1 and upgrade is not None:
        raise InvalidTask("upgrade needs a version above 1: raise the version when you change the signature.")


def _former_names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(each, str) and each and _TYPE.fullmatch(each) for each in given
    ):
        raise InvalidTask(f'aliases must be a list of names such as ["shop.tasks.old_name"], not {given!r:.60}.')
    return tuple(given)


def _names(given: Any) -> tuple[str, ...]:
    if isinstance(given, list | tuple | set | frozenset) and all(isinstance(name, str) and name for name in given):
        return tuple(sorted(given))
    raise InvalidTask(f'sensitive must be a list of names such as ["card_number"], not {given!r:.60}.')


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
        _check(self)
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
