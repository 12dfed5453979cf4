"""Workflows in memory, with the rules of the real ones: all tasks of a workflow are looked at after each change."""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.utils import timezone

from queue_app import registry
from queue_app.core.graph import Graph, NewWorkflow, NodeExtra
from queue_app.core.options import OF_ROWS
from queue_app.core.payload import Reference, chosen, filled
from queue_app.core.records import TaskRow, TaskSpec
from queue_app.core.states import FAILURES, TERMINAL, Status
from queue_app.exceptions import AttemptOver, InvalidTransition, InvalidWorkflow
from queue_app.models.workflow import Closed, Condition, OnFailure, WorkflowState
from queue_app.registry import AnyTask
from queue_app.services.advance import DOOMING, MET
from queue_app.services.lifecycle.dependencies import undoing
from queue_app.testing.memory import MemoryBackend
from queue_app.testing.stored import StoredCall
from queue_app.workflows.builder import RunningWorkflow

_OPEN: Final = frozenset({Status.EXECUTING, Status.QUEUED, Status.SCHEDULED})
type TaskOf = Callable[[TaskSpec], AnyTask | None]
type MakeCall = Callable[[AnyTask, TaskRow, MemoryWorkflow], StoredCall]


class MemoryWorkflow:
    """One workflow in memory: its tasks, what waits for what, and what a test does with it as a whole."""

    def __init__(self, flow: NewWorkflow, graph: Graph, task_of: TaskOf, make_call: MakeCall) -> None:
        self.id, self.name, self.user = flow.id, flow.name, flow.user
        self.on_failure, self.deadline, self.max_concurrent = flow.on_failure, flow.deadline, flow.max_concurrent
        self.state = WorkflowState.RUNNING
        self.is_held = self.is_paused = self.is_cancelled = False
        self.signals: list[tuple[str, str | None]] = []
        self._make_call = make_call
        self._calls: dict[uuid.UUID, StoredCall] = {}
        self._edges: dict[tuple[uuid.UUID, uuid.UUID], str] = {}
        self._extras: dict[uuid.UUID, NodeExtra] = {}
        self._met: set[tuple[uuid.UUID, uuid.UUID]] = set()
        self._closed: dict[uuid.UUID, Closed] = {}  # what a test decided about compensations
        self._add(graph, task_of)
        self.go_on()

    # -- for tests -----------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen, unless a test retries it."""
        return self.state not in {WorkflowState.RUNNING, WorkflowState.COMPENSATING}

    @property
    def nodes(self) -> list[tuple[str, Status]]:
        """(name, state) of each task, in order; a compensation is called "undo" and the name of what it undoes."""
        return [(self._name_of(task_id), call.status) for task_id, call in self._calls.items()]

    def cancel(self, *, by: str = "", reason: str = "") -> None:
        """Cancel what has not ended, and undo what had completed; a second cancel changes nothing."""
        if self.is_cancelled or self._is_undone:
            return
        self._refuse_ended("cancelled")
        self.is_cancelled = True
        self._cancel_pending()
        self.go_on()

    def stop_undoing(self, *, by: str = "", reason: str = "") -> None:
        """Give up the compensations that have not completed."""
        if not self._is_undoing and self.gaps:
            return
        if not self._is_undoing:
            raise InvalidTransition(f"The workflow is {self.state}; nothing of it is being undone.", status=self.state)
        for call in self._undoing():
            if call.status is not Status.COMPLETED:
                self._closed.setdefault(_id(call), Closed.STOPPED)
            if call.status not in TERMINAL:
                call.status, call.finished_at, call.is_cancelled = Status.CANCELLED, timezone.now(), True
        self.go_on()

    @property
    def gaps(self) -> list[str]:
        """Names of the completed tasks that stay as they are, because what undoes them was given up."""
        return [
            self._name_of(undone)
            for call in self._undoing()
            if (undone := self._extra(call).compensates)
            and call.status is not Status.COMPLETED
            and self._closed.get(_id(call), Closed.SKIPPED if call.status is Status.CANCELLED else Closed.DONE)
            is not Closed.DONE
        ]

    def pause(self, *, by: str = "", reason: str = "") -> None:
        """Start nothing until ``resume``."""
        self._refuse_ended("paused")
        self.is_paused = True
        for call in self._calls.values():
            self._hold_back(call)

    def resume(self, *, by: str = "", reason: str = "") -> None:
        """Let the tasks go that a pause holds back."""
        self.is_paused = False
        self.go_on()

    def retry(self, *, by: str = "", reason: str = "") -> int:
        """Run again what ended without success; return how many tasks."""
        again = [call for call in self._calls.values() if call.status in FAILURES | {Status.CANCELLED}]
        if self._is_undone:
            decided = {Closed.DONE} if self.has_ended else {Closed.DONE, Closed.SKIPPED}
            again = [call for call in again if self.undoes(call) and self._closed.get(_id(call)) not in decided]
            if not again:
                raise InvalidTransition("What had completed was undone; enqueue a new workflow.", status=self.state)
        again = [call for call in again if not self._is_skipped(call)]
        self.reopen()
        for call in again:
            self._closed.pop(_id(call), None)
            call.status, call.queued_at, call.finished_at = Status.BLOCKED, None, None
            call.failures, call.is_cancelled = 0, False
        for call in again:
            if call.first_started_at is not None or not self._waits(call):
                self._open(call)
        self.go_on()
        return len(again)

    def give_up(self, call: StoredCall) -> None:
        """Cancel what waits for a task that failed for good; what waits for a compensation goes on."""
        waiting = [pair for pair, kind in self._edges.items() if pair[1] == _id(call) and kind == Condition.HOLD]
        if not self.undoes(call):
            self._doom(after for after, _ in waiting)
        else:
            self._closed.setdefault(_id(call), Closed.SKIPPED)
            self._met.update(waiting)
            self._open_ready()
        self.go_on()

    def undoes(self, call: StoredCall) -> bool:
        """Whether a task undoes another."""
        return self._extra(call).compensates is not None

    # -- for the backend -----------------------------------------------------------------------

    def reopen(self, call: StoredCall | None = None) -> None:
        """Run again if the workflow has ended, because a task of it does; raise ``InvalidTransition``."""
        if call is not None and self._is_undone and not self.undoes(call):
            raise InvalidTransition("What had completed was undone; enqueue a new workflow.", status=call.status)
        if self.has_ended:
            self.state = WorkflowState.COMPENSATING if self._is_undone else WorkflowState.RUNNING
            self.is_cancelled = False

    def changed(self, call: StoredCall) -> None:
        """Let the workflow continue after the state of one of its tasks has changed."""
        if call.status is not Status.COMPLETED:
            self._drop_added(_id(call))
        if call.status in TERMINAL:
            self._ended(call)
        elif self.is_paused:
            self._hold_back(call)
        self.go_on()

    def go_on(self) -> None:
        """Decide what follows: room under the cap, the policy for failures, the end, compensations."""
        if self.has_ended:
            return
        calls = self._calls.values()
        failed = any(call.status in FAILURES and not self._is_excused(call) for call in calls)
        if self.state is WorkflowState.RUNNING and (self.is_cancelled or (failed and self.on_failure == "cancel")):
            self.is_cancelled = True
            self._cancel_pending()
        self._make_room()
        self.is_held = any(self._holds(call) for call in calls)
        if not self.is_held and all(call.status in TERMINAL for call in calls):
            self._end(failed=failed)

    def check_deadline(self, now: datetime) -> None:
        """Cancel the workflow if it is overdue."""
        if self.deadline is not None and self.deadline <= now and not self.has_ended and not self.is_cancelled:
            self.cancel()

    def add(self, graph: Graph, task_of: TaskOf, by: StoredCall, *, joined: bool) -> None:
        """Add what a running task adds."""
        if by.status is not Status.EXECUTING:
            raise AttemptOver("The attempt no longer holds its task, so it cannot add tasks to the workflow.")
        if self.has_ended or self.is_cancelled:
            raise InvalidWorkflow("workflow", f"The workflow {self.name} has ended; tasks cannot be added to it.")
        if self._is_undoing:
            raise InvalidWorkflow("workflow", f"The workflow {self.name} is being undone; context.run() starts others.")
        inner = {before for _, before in graph.edges}
        waiting = [
            (after, kind)
            for (after, before), kind in self._edges.items()
            if before == _id(by) and kind != Condition.FAILURE and self._extras[after].added_by != _id(by)
        ]
        for row in graph.rows:
            graph.edges.setdefault((row.id, _id(by)), Condition.HOLD.value)
            graph.extras[row.id] = graph.extras.get(row.id, NodeExtra())._replace(added_by=_id(by))
        self._add(graph, task_of)
        for after, kind in waiting if joined else ():
            self._edges |= {(after, row.id): kind for row in graph.rows if row.id not in inner}

    def filled(self, value: Any) -> Any:
        """Return arguments with results in the places of references; raise ``ResultMissing``."""
        completed = {task_id: call for task_id, call in self._calls.items() if call.status is Status.COMPLETED}
        values = {task_id: json.loads(call.value or "null") for task_id, call in completed.items()}
        added: dict[uuid.UUID, list[uuid.UUID]] = {}
        for task_id, extra in self._extras.items():
            if extra.added_by is not None:
                added.setdefault(extra.added_by, []).append(task_id)

        def of(reference: Reference) -> Any:
            return chosen(reference, values, added)

        return filled(value, of)

    def after(self, task_id: uuid.UUID) -> list[StoredCall]:
        """Return what waits for a task."""
        return [self._calls[after] for after, before in self._edges if before == task_id]

    # -- rules ---------------------------------------------------------------------------------

    def _add(self, graph: Graph, task_of: TaskOf) -> None:
        for row in graph.rows:
            call = self._calls[row.id] = self._make_call(task_of(row.spec) or _stored_task(row.spec), row, self)
            self._extras[row.id] = graph.extras.get(row.id, NodeExtra())
            call.status, call.queued_at = Status.BLOCKED, None
        self._edges |= graph.edges
        for row in graph.rows:
            if not self._waits(self._calls[row.id]):
                self._open(self._calls[row.id])

    def _waits(self, call: StoredCall) -> bool:
        """Whether a task waits for another."""
        return any(
            not (pair in self._met or self._is_met(self._calls[pair[1]], kind))
            for pair, kind in self._edges.items()
            if pair[0] == _id(call)
        )

    @staticmethod
    def _is_met(before: StoredCall, kind: str) -> bool:
        return before.status is Status.COMPLETED and kind != Condition.FAILURE

    def _is_skipped(self, call: StoredCall) -> bool:
        """Whether a task waits for a failure of one that completed."""
        return any(
            kind == Condition.FAILURE and self._calls[before].status is Status.COMPLETED
            for (after, before), kind in self._edges.items()
            if after == _id(call)
        )

    def _open(self, call: StoredCall) -> None:
        """Queue a task that waits for no other, unless the workflow holds it back."""
        now = timezone.now()
        later = call.run_after is not None and call.run_after > now
        call.status, call.queued_at = Status.SCHEDULED if later else Status.QUEUED, None if later else now
        if self.is_paused or self.max_concurrent is not None:
            self._hold_back(call)

    @staticmethod
    def _hold_back(call: StoredCall) -> None:
        if call.status in {Status.QUEUED, Status.SCHEDULED}:
            call.status, call.queued_at = Status.BLOCKED, call.queued_at or timezone.now()

    def _make_room(self) -> None:
        """Let tasks go that a pause or the cap held back."""
        waiting = [call for call in self._calls.values() if call.status is Status.BLOCKED and call.queued_at]
        room = len(waiting)
        if self.max_concurrent is not None:
            room = self.max_concurrent - sum(call.status in _OPEN for call in self._calls.values())
        for call in [] if self.is_paused else sorted(waiting, key=lambda call: call.sequence)[: max(0, room)]:
            later = call.run_after is not None and call.run_after > timezone.now()
            call.status = Status.SCHEDULED if later else Status.QUEUED

    def _ended(self, call: StoredCall) -> None:
        """Count the edges that the end of a task meets; cancel what can never run."""
        doomed: list[uuid.UUID] = []
        for (after, before), kind in self._edges.items():
            if before != _id(call) or (after, before) in self._met:
                continue
            if kind in MET[call.status]:
                self._met |= {(after, before)} if call.status is not Status.COMPLETED else set()
            elif kind in DOOMING[call.status]:
                doomed.append(after)
        self._doom(doomed)
        self._open_ready()

    def _open_ready(self) -> None:
        for other in self._calls.values():
            is_new = other.status is Status.BLOCKED and other.queued_at is None and other.first_started_at is None
            if is_new and not self._waits(other) and (not self.is_cancelled or self._is_undoing):
                self._open(other)

    @property
    def _is_undoing(self) -> bool:
        return self.state is WorkflowState.COMPENSATING

    @property
    def _is_undone(self) -> bool:
        return any(extra.compensates for extra in self._extras.values())

    def _doom(self, ids: Iterable[uuid.UUID]) -> None:
        for task_id in list(ids):
            call = self._calls[task_id]
            if call.status is Status.BLOCKED and call.queued_at is None and call.first_started_at is None:
                call.status, call.finished_at = Status.CANCELLED, timezone.now()
                self._ended(call)

    def _cancel_pending(self) -> None:
        for call in self._calls.values():
            if call.status not in TERMINAL:
                call.status, call.finished_at, call.is_cancelled = Status.CANCELLED, timezone.now(), True

    def _drop_added(self, by: uuid.UUID) -> None:
        gone = {task_id for task_id, extra in self._extras.items() if extra.added_by == by}
        gone = {task_id for task_id in gone if self._calls[task_id].status is Status.BLOCKED}
        for task_id in gone:
            self._calls[task_id].exists = lambda: False
            del self._calls[task_id], self._extras[task_id]
        self._edges = {pair: kind for pair, kind in self._edges.items() if not gone & set(pair)}

    def _conditions_after(self, call: StoredCall) -> set[str]:
        return {kind for (_, before), kind in self._edges.items() if before == _id(call)}

    def _is_excused(self, call: StoredCall) -> bool:
        """Whether a failure does not count, because the tasks that wait for it run anyway."""
        kinds = self._conditions_after(call)
        may = bool(kinds) or self.on_failure == OnFailure.CONTINUE
        return may and not kinds & {"hold", "cancel"} and not self.undoes(call)

    def _holds(self, call: StoredCall) -> bool:
        """Whether a failed task holds the workflow until a test replays or discards it."""
        if call.status not in FAILURES:
            return False
        if any(
            kind == Condition.HOLD and pair[1] == _id(call) and self._calls[pair[0]].status is Status.BLOCKED
            for pair, kind in self._edges.items()
            if pair not in self._met
        ):
            return True
        if self.undoes(call):
            return _id(call) not in self._closed
        is_letter = call.status is Status.DEAD_LETTER and not call.is_discarded
        may_hold = self.on_failure == OnFailure.HOLD and not self.is_cancelled
        return is_letter and may_hold and not self._is_excused(call)

    def _end(self, *, failed: bool) -> None:
        calls = list(self._calls.values())
        if self._is_undoing:
            decided = {Closed.SKIPPED, Closed.DONE}
            left = [call for call in self._undoing() if call.status is not Status.COMPLETED]
            is_done = all(self._closed.get(_id(call)) in decided for call in left)
            state = WorkflowState.COMPENSATED if is_done else WorkflowState.FAILED
        elif failed:
            state = WorkflowState.FAILED
        else:
            is_cancelled = self.is_cancelled or any(call.is_cancelled for call in calls)
            state = WorkflowState.CANCELLED if is_cancelled else WorkflowState.COMPLETED
        if state is WorkflowState.COMPLETED or not self._compensate():
            self.state = state

    def _compensate(self) -> bool:
        """Add the compensations of what completed as a chain, the last to complete first; return if there are some."""
        undone = {extra.compensates for extra in self._extras.values()}
        undoable = [
            (call, extra.compensation)
            for task_id, extra in self._extras.items()
            if (call := self._calls[task_id]).status is Status.COMPLETED
            and extra.compensation
            and task_id not in undone
        ]
        if not undoable:
            return False
        self.state = WorkflowState.COMPENSATING
        undoable.sort(key=lambda pair: pair[0].ended_as, reverse=True)
        self._add(undoing((_id(call), text) for call, text in undoable), _stored_task)
        self._make_room()
        return True

    def _undoing(self) -> list[StoredCall]:
        return [call for call in self._calls.values() if self.undoes(call)]

    def _extra(self, call: StoredCall) -> NodeExtra:
        return self._extras[_id(call)]

    def _name_of(self, task_id: uuid.UUID) -> str:
        extra = self._extras[task_id]
        if extra.compensates is not None:
            return f"undo {self._name_of(extra.compensates)}"
        return extra.name or registry.type_of(self._calls[task_id].task).rpartition(".")[2]

    def _refuse_ended(self, what: str) -> None:
        if self.has_ended:
            raise InvalidTransition(f"The workflow is {self.state}; it can no longer be {what}.", status=self.state)


class RunningInMemory(RunningWorkflow):
    """``context.workflow`` of a task in memory."""

    def __init__(self, flow: MemoryWorkflow, call: StoredCall, *, joined: bool = True) -> None:
        super().__init__(flow.id, (_id(call), call.failures + 1, 0), user=call.option("user", ""), joined=joined)
        self._flow, self._call = flow, call

    def detached(self) -> "RunningInMemory":
        """Return the same workflow to add tasks that what waits for the running task does not wait for."""
        return RunningInMemory(self._flow, self._call, joined=False)

    def _store(self) -> None:
        graph, self._graph = self._graph, Graph()
        if graph.rows:
            self._flow.add(graph, self.task_of, self._call, joined=self._joined)


def _stored_task(spec: TaskSpec) -> AnyTask:
    """Return the registered task with options that were stored."""
    task = registry.get(spec.task_type)
    wanted = {name: getattr(spec, name) for name in OF_ROWS}
    own = {name: value for name, value in wanted.items() if value is not None and hasattr(task, name)}
    return task.using(queue_name=spec.queue, **own)


def _id(call: StoredCall) -> uuid.UUID:
    return uuid.UUID(call.id)


def assert_workflow(
    flow: Any,
    state: str,
    tasks: Mapping[str, str | list[str]] | None = None,
    *,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> None:
    """Assert the state of a workflow (or of its id) and, by their names, of some of its tasks.

    ``{"charge": "completed", "resize": ["completed", "failed"]}``: of several tasks with one name, list all states. A
    compensation is called "undo" and the name of what it undoes. The error lists all tasks. Works with
    ``MemoryBackend`` and with rows.
    """
    found, nodes = _workflow(task_backends[backend], getattr(flow, "id", flow))
    wrong = [] if found == state else [f"it is {found}"]
    for name, wanted in (tasks or {}).items():
        states = sorted(status for each, status in nodes if each == name)
        if states != sorted([wanted] if isinstance(wanted, str) else wanted):
            wrong.append(f"{name} {', '.join(states) or 'is missing'}")
    if wrong:
        listed = "\n".join(f"  {name} {status}" for name, status in nodes)
        raise AssertionError(f"Expected the workflow to be {state}; {'; '.join(wrong)}. Its tasks:\n{listed}")


def _workflow(backend: BaseTaskBackend, workflow_id: Any) -> tuple[str, list[tuple[str, str]]]:
    """Return the state of a workflow, and (name, state) of its tasks."""
    if isinstance(backend, MemoryBackend):
        flow = backend.workflow(workflow_id)
        return flow.state.value, [(name, status.value) for name, status in flow.nodes]
    from queue_app.models import Workflow  # noqa: PLC0415 - needs the apps
    from queue_app.workflows.sql import nodes  # noqa: PLC0415

    found = {node.id: node for node in nodes(Workflow.objects.get(pk=workflow_id).id)}
    named = {each.id: each.name or each.task_type.rpartition(".")[2] for each in found.values()}
    undone = {each.id: f"undo {named[each.compensates]}" for each in found.values() if each.compensates is not None}
    state = Workflow.objects.values_list("state", flat=True).get(pk=workflow_id)
    return state, [((named | undone)[each.id], each.status) for each in found.values()]
