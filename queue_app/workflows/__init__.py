"""Workflows in code: tasks that wait for tasks, stored together, in the caller's transaction.

This module uses no models, so a module of tasks may import it while the apps are loading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.tasks import default_task_backend
from django.tasks.base import Task

from queue_app.core.graph import After, NewWorkflow, Node, check_references, waits_of
from queue_app.core.ids import uuid7
from queue_app.core.payload import MANY, ONE, Reference
from queue_app.core.signatures import check_arguments
from queue_app.exceptions import InvalidWorkflow, WrongArguments
from queue_app.registry import AnyTask
from queue_app.workflows.builder import Builder, Part, WorkflowHandle

POLICIES: Final = ("hold", "cancel", "continue")

type Item = AnyTask | tuple[Any, ...] | Part


class Workflow(Builder, Part):
    """A workflow under construction: ``add`` tasks, then ``enqueue``.

    - ``user``: the user on whose behalf its tasks run, unless a task names another;
    - ``on_failure``: what happens when a task ends without success. "hold": tasks that wait for it keep waiting, until
      staff retry or skip it. "cancel": the rest is cancelled. "continue": tasks that wait for it run anyway;
    - ``deadline``: a time, or a time from now, at which it is cancelled if it has not ended;
    - ``max_concurrent``: maximum number of its tasks that are queued or run at the same time.
    """

    def __init__(
        self,
        name: str,
        *,
        user: str = "",
        on_failure: str = "hold",
        deadline: datetime | timedelta | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        if on_failure not in POLICIES:
            raise InvalidWorkflow("on_failure", f"on_failure must be one of {', '.join(POLICIES)}, not {on_failure!r}.")
        super().__init__(user=user, on_failure=on_failure)
        self.id = uuid7()
        self.name = name
        self.deadline = deadline
        self.max_concurrent = max_concurrent

    def add_to(self, flow: Builder, after: After, given: Reference | None) -> Node:
        """Let this workflow end as a part of another; raise ``InvalidWorkflow`` if it cannot."""
        if self is flow:
            raise InvalidWorkflow("task", f"The workflow {self.name!r} cannot be a part of itself.")
        if self._is_stored:
            raise InvalidWorkflow("task", f"The workflow {self.name!r} is enqueued already, or a part; make another.")
        if not self._graph.rows:
            raise InvalidWorkflow(
                "task", f"The workflow {self.name!r} has no tasks; add them before it becomes a part."
            )
        for option in ("deadline", "max_concurrent"):
            if getattr(self, option) is not None:
                raise InvalidWorkflow(
                    option, f"{option} belongs to the whole; take it from {self.name!r} to the other."
                )
        node = flow.embed(self, self.name, after)
        self._is_stored = True
        return node

    def enqueue(self) -> WorkflowHandle:
        """Store the workflow with all its tasks, or nothing, in the caller's transaction; return its handle.

        The handle is also the id of the workflow.

        Raises ``InvalidWorkflow``, and the errors of ``Task.enqueue``.
        """
        if self._is_stored:
            raise InvalidWorkflow(
                "workflow", f"The workflow {self.name!r} is enqueued already, or part of another; make another."
            )
        flow = NewWorkflow(
            id=self.id, name=self.name, user=self.user, on_failure=self.on_failure, max_concurrent=self.max_concurrent
        )
        known = {row.id for row in self._graph.rows}
        for after, before in self._graph.edges:
            if before not in known:
                name = self._names.get(after, "a task")
                raise InvalidWorkflow("after", f"{name} waits for a task that is not in the workflow {self.name!r}.")
        check_references(self._graph, self._names)
        backend: Any = self._backend or default_task_backend
        backend.enqueue_workflow(flow, self._graph, self.deadline)
        self._is_stored = True
        return WorkflowHandle.of(self.id, backend.alias)

    async def aenqueue(self) -> WorkflowHandle:
        """``enqueue`` for coroutines."""
        return await sync_to_async(self.enqueue)()


@dataclass(frozen=True, slots=True)
class _Form(Part):
    """A short form of a workflow."""

    items: tuple[Any, ...]

    def then(self, *items: Item) -> Chain:
        """Return a chain of this and the tasks after it."""
        return Chain((self, *items))

    def enqueue(self, name: str = "", **options: Any) -> WorkflowHandle:
        """Store it as a workflow with these options; return the workflow's handle."""
        flow = Workflow(name or type(self).__name__.lower(), **options)
        self.add_to(flow, (), None)
        return flow.enqueue()


class Chain(_Form):
    """Tasks one after the other."""

    def add_to(self, flow: Builder, after: After, given: Reference | None) -> Node:
        """Add the tasks, each after the one before."""
        node: Node | None = None
        for item in self.items:
            node = _add(flow, item, after, given)
            after, given = node, node.result
        if node is None:
            raise InvalidWorkflow("items", "chain() needs at least one task.")
        return node


class Group(_Form):
    """Tasks side by side."""

    def add_to(self, flow: Builder, after: After, given: Reference | None) -> Node:
        """Add the tasks; the node of all of them has the list of their results."""
        after = waits_of(after, flow.on_failure)
        nodes = [_add(flow, item, after, given) for item in self.items]
        if not nodes:
            raise InvalidWorkflow("items", "group() needs at least one task.")
        if any(node.result.kind != ONE for node in nodes):
            raise InvalidWorkflow("items", "A group in a group has a list of lists as its result; use Workflow().")
        ids = tuple(task_id for node in nodes for task_id in node.ids)
        return Node(ids, "group", Reference(MANY, tuple(node.id for node in nodes)))


def chain(*items: Item) -> Chain:
    """Return tasks that run one after the other.

    An item is a task, a tuple (task, arguments…), or another chain or group. A function that takes one more argument
    than it is given gets the result of the item before as its first; after a group that is a list.
    """
    return Chain(items)


def group(*items: Item | Iterable[Item]) -> Group:
    """Return tasks that run side by side; ``group(…).then(collect)`` gives ``collect`` the list of their results."""
    if len(items) == 1 and not isinstance(items[0], Task | tuple | Part):
        return Group(tuple(items[0]))
    return Group(items)


def _add(flow: Builder, item: Any, after: After, given: Reference | None) -> Node:
    if isinstance(item, Part):
        return item.add_to(flow, after, given)
    task, *args = item if isinstance(item, tuple) else (item,)
    if given is not None and isinstance(task, Task):
        try:
            check_arguments(task, [given, *args], {})
            args = [given, *args]
        except WrongArguments:
            pass
    return flow.add_call(task, args, after=after)
