"""The ``django.tasks`` backend.

``TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend"}}`` makes Django's
own ``@task`` and ``.enqueue()`` store tasks in this queue, in the caller's transaction.

A decorator imports this module, perhaps while the apps are still loading (a third-party app
may define tasks beside its models), so functions import modules with models when they need them.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TASK_MAX_PRIORITY
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json

from queue_app import codecs, conf, registry
from queue_app.backend.results import ResultActions, has_receivers, load_result, load_results, new_result
from queue_app.core import rooms
from queue_app.core.graph import Graph, NewWorkflow
from queue_app.core.ids import Id, as_texts, parse_id
from queue_app.core.records import Enqueued, NewTask, TaskSpec
from queue_app.core.signatures import check_arguments, check_calls, check_types
from queue_app.exceptions import InvalidTaskData, UnserializableParameters, suggestion
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, QueueTask

if apps.apps_ready and not apps.is_installed("queue_app"):  # else the first model would raise something less clear
    raise ImproperlyConfigured(
        'TASKS uses the task queue, but its app is not installed: add "queue_app" to INSTALLED_APPS and run migrate.'
    )


_BANDS: Final = "75 and above is critical, 25 to 74 high, -24 to 24 normal, -74 to -25 low, less is background"

type Call = tuple[Sequence[Any], dict[str, Any]]

#: Maximum number of cached specs. The cache is then emptied, for projects that keep making new task objects.
MAX_SPECS: Final = 512


class TaskQueueBackend(ResultActions, BaseTaskBackend):
    """Store tasks as rows for the workers of this queue."""

    task_class = QueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._given_queues = params.get("QUEUES")
        self._specs: dict[int, tuple[AnyTask, TaskSpec]] = {}  # by id(task); the entry keeps the task alive

    @property
    def stores_tasks_in(self) -> str:
        """The alias of the database in whose transactions tasks are stored."""
        return conf.get().database_alias

    def validate_task(self, task: AnyTask) -> None:
        """Raise ``InvalidTask`` for a task that this backend cannot take; called when it is made and enqueued."""
        _check_options(task)
        if self.queues and task.queue_name not in self.queues:
            meant = suggestion(task.queue_name, self.queues)
            raise InvalidTask(
                f"Queue {task.queue_name!r} is not valid for backend. TASKS[{self.alias!r}] does not list it.{meant}"
                f' Add it to QUEUES ({", ".join(sorted(self.queues))}), or set "QUEUES": [] to allow every name.'
            )
        super().validate_task(task)
        if registry.is_stand_in(task.func):
            raise InvalidTask(f"The function {task.module_path!r} no longer exists; its tasks can only be read.")

    def enqueue(  # type: ignore[override] # the stubs tie the result to the parameters of the function
        self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> AnyResult:
        """Store one task in the caller's transaction and return its result, not yet finished.

        Raises ``InvalidTask`` for a task that this backend cannot take, ``InvalidTaskData`` for parameters that must
        not be stored, ``WrongArguments`` if the function does not take them, and ``IdempotencyConflict`` for a reused
        key.
        """
        from queue_app.services.enqueue.store import store_one  # noqa: PLC0415 - needs models
        from queue_app.services.enqueue.validate import check_call  # noqa: PLC0415 - needs models

        spec, settings = self._spec_of(task), conf.get()
        check_arguments(task, args, kwargs)
        if settings.typed_arguments:
            check_types(task, args, kwargs)
        if settings.codecs:
            args, kwargs = codecs.encode_call(args, kwargs)
        try:
            row = check_call(spec, args, kwargs)
        except UnserializableParameters as refused:
            args, kwargs = _normalised((args, kwargs), refused)
            row = check_call(spec, args, kwargs)
        try:
            stored = store_one(row)
        except SynchronousOnlyOperation:
            raise SynchronousOnlyOperation("In a coroutine, write `await task.aenqueue(…)`, not enqueue().") from None
        if not stored.created:  # a replayed idempotency key: the result of the first task
            return self.get_result(str(stored.id))
        result = new_result(task, (args, kwargs), stored, str(stored.id), self.alias)
        if has_receivers(task_enqueued, logging.DEBUG):
            task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(self, task: AnyTask, calls: Iterable[Call]) -> list[AnyResult]:
        """Store one task for each (args, kwargs), all or nothing; return the results in order.

        One COPY and one push, in the caller's transaction. Raises as ``enqueue`` does.
        """
        from queue_app.services.enqueue.store import enqueue_calls  # noqa: PLC0415 - needs models

        spec = self._spec_of(task)
        calls = list(calls)
        check_calls(task, calls)
        for call in calls if conf.get().typed_arguments else ():
            check_types(task, *call)
        if codecs.are_on():
            calls = [codecs.encode_call(*call) for call in calls]
        created: list[AnyResult] = []

        def results(stored: list[Enqueued]) -> list[AnyResult]:
            found = []
            repeated = [item.id for item in stored if not item.created]
            earlier = load_results(repeated, self.alias) if repeated else {}
            for call, item, text in zip(calls, stored, as_texts([item.id for item in stored]), strict=True):
                if item.created:
                    found.append(new_result(task, call, item, text, self.alias))
                    created.append(found[-1])
                else:  # a replayed idempotency key, or an equal unique task: the result of the first task
                    found.append(earlier[item.id])
            return found

        try:
            made = enqueue_calls(spec, calls, results)
        except UnserializableParameters as refused:
            calls = [_normalised(call, refused) for call in calls]
            made = enqueue_calls(spec, calls, results)
        if has_receivers(task_enqueued, logging.DEBUG):
            for result in created:
                task_enqueued.send(type(self), task_result=result)
        return made

    def _spec_of(self, task: AnyTask) -> TaskSpec:
        """Return the options that all calls of a task share; raise as ``enqueue`` does.

        They are checked when the task is first enqueued. A task with options that can change from one call to the
        next (``run_after``, options that are lists) is checked each time.
        """
        known = self._specs.get(id(task))
        if known is not None and known[0] is task:
            return known[1]
        from queue_app.services.enqueue.validate import check_spec, check_task_type  # noqa: PLC0415 - needs models

        self.validate_task(task)
        check_module(task)
        user = task.user if isinstance(task, QueueTask) else ""
        new = NewTask(task_type=check_task_type(registry.type_of(task)), user=user, run_after=task.run_after)
        spec = check_spec(new, task)
        if task.run_after is None and type(getattr(task, "capabilities", ())) is tuple:
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            self._specs[id(task)] = task, spec
        return spec

    async def aenqueue_many(self, task: AnyTask, calls: Iterable[Call]) -> list[AnyResult]:
        """``enqueue_many`` for coroutines."""
        return await sync_to_async(self.enqueue_many)(task, calls)

    def get_result(self, result_id: Id) -> AnyResult:
        """Return the result of a task (``load_result``); raise ``TaskResultDoesNotExist`` for an unknown id."""
        try:
            task_id = parse_id(result_id)
        except InvalidTaskData:
            raise TaskResultDoesNotExist(f"{result_id!r:.80} is not the id of a task of this queue.") from None
        found = load_result(task_id, self.alias)
        if found is None:
            raise TaskResultDoesNotExist(f"No task has the id {task_id}; it was purged, or never committed.")
        return found

    def enqueue_workflow(self, flow: NewWorkflow, graph: Graph, deadline: datetime | timedelta | None) -> None:
        """Store a workflow with all its tasks; raise as ``Workflow.enqueue`` does."""
        rooms.part("enqueue_workflow")(flow, graph, deadline)

    def signal(self, task_id: Id, name: str, payload: Any = None, *, by: str = "") -> bool:
        """Send a signal to a task; return whether the task waits for it. Raises as ``queue_app.signal`` does."""
        from queue_app.services.lifecycle.steps import signal  # noqa: PLC0415 - needs the apps

        return signal(task_id, name, payload, by=by).is_awaited

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return the problems of this entry of ``TASKS``."""
        from queue_app.checks import entry_problems  # noqa: PLC0415 - it imports the driver

        return [*super().check(**kwargs), *entry_problems(self.alias, self.options, self._given_queues)]


def _check_options(task: AnyTask) -> None:
    """Refuse common mistakes with a message that says what to write; Django's own checks follow."""
    priority: Any = task.priority
    run_after: Any = task.run_after
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > TASK_MAX_PRIORITY:
        raise InvalidTask(f"priority must be a whole number between -100 and 100. It is {priority!r:.60}; {_BANDS}.")
    if run_after is not None and not isinstance(run_after, datetime):
        raise InvalidTask(
            f"run_after must be a time with a zone, not {run_after!r:.60}; in 5 minutes is"
            " django.utils.timezone.now() + timedelta(minutes=5)."
        )
    if run_after is not None and run_after.utcoffset() is None:
        raise InvalidTask(
            f"run_after must be an aware datetime. {run_after} has no time zone; django.utils.timezone.make_aware()"
            " adds one."
        )


def check_module(task: AnyTask) -> None:
    """Refuse a function that no worker can import."""
    module, _, name = registry.path_of(task).rpartition(".")
    if module in {"__main__", "__console__", "builtins", "django.core.management.commands.shell"}:  # scripts, shells
        raise InvalidTask(
            f"The task {name} is defined in a script or a shell, where no worker finds it. Move it to a module, such as"
            " tasks.py of an installed app, and import it from there."
        )


def _normalised(call: Call, refused: UnserializableParameters) -> Call:
    """Return a call with any mapping, any sequence and UTF-8 bytes turned into plain JSON, as Django does.

    Only refused calls come here, so plain parameters cost nothing. Raises ``refused`` if that does not help.
    """
    args, kwargs = call
    try:
        return cast("Call", (normalize_json(list(args)), normalize_json(kwargs)))
    except (TypeError, ValueError, RecursionError):
        raise refused from None
