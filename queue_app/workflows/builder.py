"""What builds a graph of tasks: in code before it is enqueued, and in a running task of a workflow.

This module uses no models, so a module of tasks may import it while the apps are loading.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final, cast

from asgiref.sync import sync_to_async
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from django.tasks.base import Task

from queue_app import codecs, registry
from queue_app.core.graph import After, Graph, Node, NodeExtra, Wait, ends_of, waits_of
from queue_app.core.ids import uuid7, uuid7s
from queue_app.core.payload import ADDED, MANY, ONE, Reference, marked
from queue_app.core.records import NewTask, TaskRow, TaskSpec, call_options
from queue_app.core.signatures import check_arguments
from queue_app.exceptions import Discard, InvalidWorkflow
from queue_app.registry import AnyTask
from queue_app.tasks import task

if TYPE_CHECKING:
    from queue_app.core.records import AttemptKey
    from queue_app.models.workflow import WorkflowState


# The task behind ``Workflow.map``: it adds a call for each item of a list to its workflow.


@task(takes_context=True, encrypted=None)
async def expand(context: Any, options: dict[str, Any], items: Any) -> int:
    """Add a call of the stored task for each item; return how many."""
    if not isinstance(items, list):
        raise Discard(f"map() needs a list, and the result is {'null' if items is None else type(items).__name__}.")
    if items:
        new = NewTask(**options)
        await sync_to_async(context.workflow.add_stored)(new, [((item,), {}) for item in items])
    return len(items)


# A stored workflow, as ``enqueue`` returns it. Its methods ask the backend: in a test, waiting runs tasks.
#
# This module uses no models, so a module of tasks may import it while the apps are loading.


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


#: The task behind ``map``.
EXPAND: Final = "queue_app.workflows.builder.expand"


class Part:
    """What ``add`` takes in the place of a task: several tasks."""

    def add_to(self, flow: Builder, after: After, given: Reference | None) -> Node:
        """Add the tasks; the first ones get the result ``given``."""
        raise NotImplementedError


class Builder:
    """Collects the tasks of a workflow."""

    def __init__(self, *, user: str = "", on_failure: str = "hold") -> None:
        self.user = user
        self.on_failure = on_failure
        self._graph = Graph()
        self._names: dict[uuid.UUID, str] = {}
        self._specs: dict[int, tuple[AnyTask, TaskSpec]] = {}
        self._backend: Any = None  # of its tasks
        self._is_stored = False

    def add(
        self, task: AnyTask | Part, *args: Any, after: After = (), compensate: AnyTask | None = None, **kwargs: Any
    ) -> Node:
        """Add a call of a task that runs once the tasks in ``after`` have completed; return its node.

        Arguments may contain results of tasks that it waits for: ``node.result["key"]``. ``compensate`` is called with
        the same arguments if this task completes, but the workflow does not; if it has a parameter ``result``, it
        gets the result too. ``chain(…)``, ``group(…)`` and another ``Workflow`` may stand for a task.
        """
        if isinstance(task, Part):
            if args or kwargs or compensate is not None:
                raise InvalidWorkflow("task", "Give the arguments to the tasks in chain(…) and group(…), not to add().")
            return task.add_to(self, after, None)
        return self.add_call(task, args, kwargs, after=after, compensate=compensate)

    def add_call(  # noqa: PLR0913 - by name
        self,
        task: AnyTask,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        after: After = (),
        compensate: AnyTask | None = None,
        name: str = "",
    ) -> Node:
        """Add a call like ``add``, for tasks that themselves have parameters such as ``after``; or give it a name."""
        task_id = uuid7()
        self._put(task, [(tuple(args), dict(kwargs or {}))], [task_id], after)
        label = name or _name_of(task)
        node = Node((task_id,), label, Reference(ONE, (task_id,)))
        self._names[task_id] = label
        compensation = None
        if compensate is not None:
            from queue_app.workflows.store import undoing  # noqa: PLC0415 - needs models

            spec = self._spec_of(compensate)
            compensation = undoing(compensate, spec, args, dict(kwargs or {}), node.result)
        if name or compensation:
            self._graph.extras[task_id] = NodeExtra(_checked_name(name) if name else "", compensation)
        return node

    def add_many(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]], *, after: After = ()
    ) -> Node:
        """Add a call for each (args, kwargs); return them as one node, whose result is the list of their results."""
        given = [(tuple(args), dict(kwargs)) for args, kwargs in calls]
        if not given:
            raise InvalidWorkflow("calls", "add_many() needs at least one call.")
        ids = uuid7s(len(given))
        self._put(task, given, ids, after)
        return Node(tuple(ids), _name_of(task), Reference(MANY, tuple(ids)))

    def map(self, task: AnyTask, *, over: Reference, after: After = ()) -> Node:
        """Add a call for each item of a list that another task returns, when it is known.

        The result of the node is the list of their results, in the order of the items.
        """
        if not isinstance(over, Reference):
            raise InvalidWorkflow("over", "Give map() the result of a node: over=node.result.")
        options = call_options(self._spec_of(task))
        expansion = expand.using(queue_name=task.queue_name, priority=task.priority, backend=task.backend)
        ids = over.ids if over.kind != ADDED else over.ids[:1]
        waits = [*waits_of(after, self.on_failure), Wait(ids, self.on_failure)]
        node = self.add_call(expansion, (), {"options": options, "items": over}, after=waits)
        return replace(node, name=f"map {_name_of(task)}", result=Reference(ADDED, node.ids))

    def embed(self, other: Builder, name: str, after: After) -> Node:
        """Add all tasks of another workflow; its node has the result of its last task, or a list if it ends in many."""
        self._check_open()
        part, specs, names, backend = other._graph, other._specs, other._names, other._backend
        waits, ends, later = waits_of(after, self.on_failure), ends_of(part), {after for after, _ in part.edges}
        before = [(task_id, wait.condition) for wait in waits for task_id in wait.ids]
        for row in part.rows:
            spec = row.spec if other.user else self._spec_again(other, row.spec)
            self._graph.rows.append(row._replace(spec=spec))
            if row.id not in later:
                self._graph.edges |= {(row.id, task_id): condition for task_id, condition in before}
        self._graph.references += part.references
        self._graph.extras |= part.extras
        self._graph.edges |= part.edges
        self._specs, self._names = specs | self._specs, names | self._names
        self._backend = self._backend or backend
        return Node(tuple(ends), name, result_of(part))

    def _spec_again(self, other: Builder, spec: TaskSpec) -> TaskSpec:
        """Return the options of a task of another workflow, for the user of this one."""
        task = other.task_of(spec)
        return spec if task is None or not self.user else self._spec_of(task)

    def _check_open(self) -> None:
        if self._is_stored:
            raise InvalidWorkflow(
                "workflow",
                "The workflow is enqueued already, or part of another; add its tasks before. A running task adds to its"
                " workflow by context.workflow.add().",
            )

    def _put(
        self,
        task: AnyTask,
        calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
        ids: Sequence[uuid.UUID],
        after: After,
    ) -> None:
        from queue_app.services.enqueue.validate import check_payloads  # noqa: PLC0415 - needs models

        self._check_open()
        spec = self._spec_of(task)
        waits = waits_of(after, self.on_failure)
        plain: list[tuple[Any, Any]] = []
        for task_id, (args, kwargs) in zip(ids, calls, strict=True):
            check_arguments(task, args, kwargs)
            given = codecs.encode_call(args, kwargs) if codecs.are_on() else (args, kwargs)
            found: list[Reference] = []
            plain.append((marked(list(given[0]), found), marked(given[1], found)))
            self._graph.references += [(task_id, reference) for reference in found]
        for task_id, texts in zip(ids, check_payloads(plain), strict=True):
            self._graph.rows.append(TaskRow(task_id, spec, *texts))
        for wait in waits:
            for before in wait.ids:
                for task_id in ids:
                    self._graph.edges[task_id, before] = wait.condition

    def task_of(self, spec: TaskSpec) -> AnyTask | None:
        """Return the task that has these options, if it was added here."""
        return next((task for task, own in self._specs.values() if own is spec), None)

    def _spec_of(self, task: AnyTask) -> TaskSpec:
        known = self._specs.get(id(task))
        if known is not None:
            return known[1]
        from queue_app.backend import check_module  # noqa: PLC0415 - it imports this module's users
        from queue_app.services.enqueue.validate import check_spec  # noqa: PLC0415 - needs models

        if not isinstance(task, Task):
            raise InvalidWorkflow("task", f"A workflow consists of tasks; put @task above {task!r:.60}.")
        backend: Any = task.get_backend()
        if not hasattr(backend, "enqueue_workflow"):
            raise InvalidWorkflow(
                "task", f"The backend {task.backend!r} cannot run workflows; use queue_app.backend.TaskQueueBackend."
            )
        if backend is not (self._backend or backend):
            raise InvalidWorkflow("task", f"All tasks of a workflow need one backend; {_name_of(task)} has another.")
        self._backend = backend
        backend.validate_task(task)
        check_module(task)
        for option in ("idempotency_key", "unique"):
            if getattr(task, option, None) is not None:
                raise InvalidWorkflow(
                    option, f"{_name_of(task)} has {option}, which could name a task of another workflow; leave it out."
                )
        user = getattr(task, "user", "") or self.user
        new = NewTask(task_type=registry.type_of(task), user=user, run_after=task.run_after)
        spec = check_spec(new, task)
        self._specs[id(task)] = task, spec
        return spec


class RunningWorkflow(Builder):
    """The workflow of a running task, ``context.workflow``: what it adds runs once the task has completed.

    What waits for the task also waits for what it adds, unless ``joined`` is false. If the attempt does not complete,
    what it added is removed.
    """

    def __init__(self, workflow_id: uuid.UUID, attempt: AttemptKey, *, user: str = "", joined: bool = True) -> None:
        super().__init__(user=user)
        self.id = workflow_id
        self._attempt = attempt
        self._joined = joined

    def detached(self) -> RunningWorkflow:
        """Return the same workflow, to add tasks for which the waiters of the running task do not wait."""
        return RunningWorkflow(self.id, self._attempt, user=self.user, joined=False)

    def add(self, task: AnyTask | Part, *args: Any, **kwargs: Any) -> Node:
        """Add and store a task, a chain or a group, like ``Workflow.add``."""
        node = super().add(task, *args, **kwargs)
        self._store()
        return node

    def add_many(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]], *, after: After = ()
    ) -> Node:
        """Add and store calls, like ``Workflow.add_many``."""
        node = super().add_many(task, calls, after=after)
        self._store()
        return node

    def add_stored(self, new: NewTask, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]) -> None:
        """Add calls of a task whose options were stored."""
        from queue_app.services.enqueue.validate import check_payloads, check_spec  # noqa: PLC0415 - needs models

        spec = check_spec(new)
        texts = check_payloads((list(args), dict(kwargs)) for args, kwargs in calls)
        self._graph.rows += [
            TaskRow(task_id, spec, *text) for task_id, text in zip(uuid7s(len(calls)), texts, strict=True)
        ]
        self._store()

    def _store(self) -> None:
        from queue_app.workflows.store import add_nodes  # noqa: PLC0415 - needs models

        graph, self._graph = self._graph, Graph()
        if graph.rows:
            add_nodes(self.id, graph, added_by=self._attempt, joined=self._joined)


def result_of(graph: Graph) -> Reference:
    """Return the result of a whole graph: that of its last task, or a list of several last ones or of a map's items."""
    ends = tuple(ends_of(graph))
    if len(ends) != 1:
        return Reference(MANY, ends)
    is_map = any(row.id in ends and row.spec.task_type == EXPAND for row in graph.rows)
    return Reference(ADDED if is_map else ONE, ends)


def _name_of(task: AnyTask) -> str:
    return registry.type_of(task).rpartition(".")[2]


def _checked_name(name: Any) -> str:
    from queue_app.services.enqueue.validate import check_text  # noqa: PLC0415 - needs models

    return check_text(name, "name", 100)
