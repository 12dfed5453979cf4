"""Hooks: code of a project around every enqueue and every run.

A hook sees a call before it is stored, and may add metadata, which is stored with the task, or refuse the call
(``Veto``). In the worker it wraps the run, usually to restore what the metadata say. It also hears how attempts end.

Hooks of the setting ``HOOKS`` come first, in its order, then those of the task. Runs are wrapped in this order, so the
first hook is the outermost.
"""

from __future__ import annotations

import inspect
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.utils.module_loading import import_string

from queue_app import conf, registry
from queue_app.core.events import Ended
from queue_app.core.payload import PayloadLimits, dump_json
from queue_app.core.records import ClaimedTask, TaskFailure, TaskRow
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.hooks import callbacks

#: Metadata are for small facts, such as a tenant or a language.
LIMITS: Final = PayloadLimits(max_bytes=8 * 1024, max_depth=8, max_nodes=500)
_NOTHING: Final = nullcontext()
_log = logging.getLogger("taskqueue")


@dataclass(slots=True)
class HookCall:
    """A call as hooks see it; ``attempt`` is 0 before it is stored. Only changes of ``metadata`` before that count."""

    id: uuid.UUID
    task_type: str
    queue: str
    user: str
    attempt: int
    metadata: dict[str, Any]
    _args: str = field(repr=False)
    _parameters: str = field(repr=False)

    @property
    def args(self) -> list[Any]:
        """The positional arguments as plain JSON."""
        found: list[Any] = json.loads(self._args)
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """The named arguments as plain JSON."""
        found: dict[str, Any] = json.loads(self._parameters)
        return found


class Hook:
    """Base of hooks; override what you need. Methods without a context manager may be coroutine functions.

    An exception in ``enqueue`` reaches the caller, and the task is not stored. One in ``run`` fails the attempt.
    The others run after the end of the attempt is committed, in the process that commits it. Their exceptions are
    logged. They are not repeated if the process dies, so they should not do what must happen.
    """

    def enqueue(self, call: HookCall) -> Any:
        """Add to ``call.metadata``, or raise ``Veto`` to refuse the call."""

    def run(self, call: HookCall) -> AbstractContextManager[Any]:
        """Return a context manager around the function."""
        return _NOTHING

    def arun(self, call: HookCall) -> AbstractAsyncContextManager[Any]:
        """Return a context manager around a coroutine function; by default ``run``, on the event loop."""
        return _OnLoop(self.run(call))

    def succeeded(self, call: HookCall) -> Any:
        """React to a completed task."""

    def retried(self, call: HookCall, failure: TaskFailure, seconds: float) -> Any:
        """React to a failed attempt; the next one starts in ``seconds``."""

    def failed(self, call: HookCall, failure: TaskFailure) -> Any:
        """React to a task that failed for good without becoming a dead letter."""

    def died(self, call: HookCall, failure: TaskFailure) -> Any:
        """React to a task that became a dead letter because its last attempt failed."""


class _OnLoop(AbstractAsyncContextManager[Any]):
    def __init__(self, inner: AbstractContextManager[Any]) -> None:
        self.inner = inner

    async def __aenter__(self) -> Any:
        return self.inner.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool | None:
        return self.inner.__exit__(kind, error, frames)


def resolve(given: Sequence[Any]) -> tuple[Hook, ...]:
    """Return hooks given as instances, classes or dotted paths; raise ``InvalidTaskData`` for anything else."""
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise InvalidTaskData("hooks", f"hooks must be a list of hooks, not {given!r:.60}.")
    found = []
    for each in given:
        try:
            hook = import_string(each) if isinstance(each, str) else each
        except ImportError as error:
            raise InvalidTaskData("hooks", f"The hook {each!r:.100} cannot be imported: {error}") from None
        hook = hook() if isinstance(hook, type) and issubclass(hook, Hook) else hook
        if not isinstance(hook, Hook):
            raise InvalidTaskData("hooks", f"{each!r:.100} is no subclass or instance of queue_app.hooks.Hook.")
        found.append(hook)
    return tuple(found)


@lru_cache(maxsize=8)
def _of_project(paths: tuple[str, ...]) -> tuple[Hook, ...]:
    return resolve(paths)


def hooks_of(task_type: str) -> tuple[Hook, ...]:
    """Return the hooks of a task type, in order."""
    paths = conf.get().hooks
    own: tuple[Hook, ...] = getattr(registry.known(task_type), "hooks", ())
    return (*_of_project(tuple(paths)), *own) if paths else own


def has_metadata(task_type: str) -> bool:
    """Return whether calls of a type may get metadata: of hooks, of callbacks or of a version."""
    task = registry.known(task_type)
    return bool(
        conf.get().hooks
        or getattr(task, "hooks", ())
        or getattr(task, "on_success", None)
        or getattr(task, "on_failure", None)
        or getattr(task, "version", 1) != 1
    )


def before_enqueue(row: TaskRow) -> TaskRow:
    """Return a new task with its version, its callbacks and what hooks add; let their exceptions through."""
    spec = row.spec
    if not has_metadata(spec.task_type) or row.metadata is not None:  # a copy keeps the metadata of its original
        return row
    own = callbacks.reserved(registry.known(spec.task_type))
    call = HookCall(row.id, spec.task_type, spec.queue, spec.user, 0, {}, row.args, row.parameters)
    for hook in hooks_of(spec.task_type):
        _call(hook.enqueue, call)
    if not isinstance(call.metadata, dict):
        raise InvalidTaskData("metadata", f"A hook made call.metadata {call.metadata!r:.60}; it must stay a dict.")
    # A hook may pass on all metadata of the running task, whose callbacks and version the new task must not get.
    metadata = {name: value for name, value in call.metadata.items() if name not in callbacks.RESERVED} | own
    return row._replace(metadata=dump_json(metadata, field="metadata", limits=LIMITS)) if metadata else row


def around_run(task: ClaimedTask) -> AbstractContextManager[Any]:
    """Return what wraps one run of a function."""
    found = hooks_of(task.task_type)
    return _wrapped(found, task) if found else _NOTHING


@contextmanager
def _wrapped(hooks: Sequence[Hook], task: ClaimedTask) -> Iterator[None]:
    with ExitStack() as stack:
        call = call_of(task)
        for hook in hooks:
            stack.enter_context(hook.run(call))
        yield


async def enter_async(stack: AsyncExitStack, task: ClaimedTask) -> None:
    """Wrap the run of a coroutine function, which the caller does in ``stack``."""
    found = hooks_of(task.task_type)
    if found:
        call = call_of(task)
        for hook in found:
            await stack.enter_async_context(hook.arun(call))


def call_of(task: ClaimedTask) -> HookCall:
    """Return a claimed task as hooks see it."""
    metadata = {} if task.metadata is None else json.loads(task.metadata)
    return HookCall(task.id, task.task_type, task.queue, task.user, task.attempt, metadata, task.args, task.parameters)


def after_end(attempts: Iterable[Ended]) -> None:
    """Tell the hooks how attempts ended; log their exceptions."""
    for attempt in attempts:
        task = attempt.outcome.task
        if found := hooks_of(task.task_type):
            call = call_of(task)
            for hook in found:
                try:
                    _tell(hook, call, attempt)
                except Exception:  # noqa: BLE001 - logged; the attempt has ended
                    _log.exception("The hook %s failed after task %s had ended.", type(hook).__name__, task.id)


def _tell(hook: Hook, call: HookCall, attempt: Ended) -> None:
    status, failure = attempt.status, attempt.outcome.failure
    if status is Status.COMPLETED:
        _call(hook.succeeded, call)
    elif failure is None:
        return
    elif status is Status.SCHEDULED and attempt.retry_in is not None:
        _call(hook.retried, call, failure, attempt.retry_in)
    elif status is Status.FAILED:
        _call(hook.failed, call, failure)
    elif status is Status.DEAD_LETTER:
        _call(hook.died, call, failure)


def _call(method: Callable[..., Any], *args: Any) -> None:
    result = method(*args)
    if inspect.isawaitable(result):

        async def wait() -> None:
            await result

        async_to_sync(wait)()


def problems() -> Iterator[str]:
    """Yield what is wrong with the setting ``HOOKS``."""
    for path in conf.load()[0].hooks:
        try:
            resolve([path])
        except Exception as error:  # noqa: BLE001 - the module of a project may raise anything
            yield f"TASKQUEUE HOOKS: {error}"
