"""A backend that keeps tasks in memory and runs them when a test calls ``drain``."""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone

from queue_app import codecs, conf, encryption, registry
from queue_app.backend.results import RESULT_STATUS, Progress, QueueTaskResult, checked_timeout
from queue_app.core import rooms
from queue_app.core.graph import Graph, NewWorkflow, check_size
from queue_app.core.ids import Id, parse_id, uuid7
from queue_app.core.limits import ARRIVAL
from queue_app.core.options import Seconds
from queue_app.core.priorities import ARRIVAL_BAND, Band, effective_band
from queue_app.core.records import TaskRow, TaskSpec
from queue_app.core.signatures import check_arguments, check_calls, check_types
from queue_app.core.states import TERMINAL, WAITING, Status, predicate
from queue_app.exceptions import IdempotencyConflict, InvalidTransition, TaskNotFound, WorkflowNotFound
from queue_app.hooks import before_enqueue
from queue_app.registry import AnyTask
from queue_app.tasks import AnyResult, QueueTask
from queue_app.testing import attempt, steps
from queue_app.testing.limits import MemoryLimits
from queue_app.testing.override import current, freeze, metadata_of
from queue_app.testing.stored import StoredCall, as_json, existence
from queue_app.testing.unique import claim_of

if TYPE_CHECKING:
    from queue_app.workflows.testing import MemoryWorkflow

#: Seconds in a band after which a task rises to the next band; as in the migration.
PROMOTE_AFTER = {Band.NORMAL: 1200.0, Band.LOW: 600.0, Band.BACKGROUND: 600.0}
#: Retries and timeout of each band; as in the migration.
POLICIES = {
    Band.CRITICAL: (5, 300.0),
    Band.HIGH: (5, 300.0),
    Band.NORMAL: (3, 600.0),
    Band.LOW: (2, 900.0),
    Band.BACKGROUND: (2, 900.0),
}
_NEEDS_REAL = "use the real backend in this test, for example by @pytest.mark.task_queue(real=True)."
#: Maximum number of attempts of one ``drain``.
MAX_ATTEMPTS = 10_000


class MemoryBackend(BaseTaskBackend):
    """Keep tasks in memory; ``drain`` runs the due ones, the most urgent first.

    Retries, delays, bands, promotion, timeouts, idempotency keys, unique rules and limits work by the test's clock
    (``freeze``). A task disappears when its transaction or savepoint is rolled back. One task runs at a time, in the
    thread that drains. ``OPTIONS["LIMITS"]`` is {queue: {field of Queue: value}}; with ``OPTIONS["EAGER"]`` a task
    runs when it is enqueued.
    """

    task_class = QueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._calls: list[StoredCall] = []
        self._sequence = count()
        self._flows: dict[uuid.UUID, MemoryWorkflow] = {}
        self._is_eager = bool(self.options.get("EAGER"))
        self._limits = {
            queue: MemoryLimits.of(queue, options) for queue, options in self.options.get("LIMITS", {}).items()
        }

    def clear(self) -> None:
        """Forget all tasks."""
        self._calls.clear()
        self._flows.clear()

    # -- django.tasks ------------------------------------------------------------------------

    def enqueue(  # type: ignore[override] # the stubs derive the result from the function
        self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> AnyResult:
        """Store one task; raises the real backend's errors."""
        self.validate_task(task)
        check_arguments(task, args, kwargs)
        if conf.get().typed_arguments:
            check_types(task, args, kwargs)
        encryption.applies_to(registry.type_of(task))  # raises if it should be, and there is no key
        texts = as_json(args, kwargs)
        key, user = getattr(task, "idempotency_key", None), getattr(task, "user", "")
        if key is not None and (first := self._holder_of(key, user)) is not None:
            if (first.task.func, first.args, first.kwargs) != (task.func, *texts):
                raise IdempotencyConflict(f"The idempotency key {key!r} was used for another task or other parameters.")
            return self._result(first)
        metadata = metadata_of(task, *texts)
        claim = claim_of(task, *texts)
        if claim is not None and (existing := claim.existing(self.calls)) is not None:
            claim.repeat(existing, task, *texts, metadata)
            return self._result(existing)
        now, run_after = timezone.now(), task.run_after if claim is None else claim.run_after
        waits = run_after is not None and run_after > now
        call = StoredCall(
            task=task,
            args=texts[0],
            kwargs=texts[1],
            id=str(uuid7()),
            sequence=next(self._sequence),
            created_at=now,
            status=Status.SCHEDULED if waits else Status.QUEUED,
            queued_at=None if waits else now,
            run_after=run_after,
            exists=existence(),
            unique_key=None if claim is None else claim.key,
            metadata=metadata,
        )
        self._calls.append(call)
        result = self._result(call)
        task_enqueued.send(type(self), task_result=result)
        if self._is_eager and not waits:
            self._run(call)
            return self._result(call)
        return result

    def enqueue_many(self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], dict[str, Any]]]) -> list[AnyResult]:
        """Store one task for each (args, kwargs), all or none; return the results in order."""
        calls = list(calls)
        self.validate_task(task)
        check_calls(task, calls)
        for args, kwargs in calls if conf.get().typed_arguments else ():
            check_types(task, args, kwargs)
        for args, kwargs in calls:
            as_json(args, kwargs)
        return [self.enqueue(task, args, kwargs) for args, kwargs in calls]

    def get_result(self, result_id: Id) -> AnyResult:
        """Return the result of a task; raise ``TaskResultDoesNotExist`` for an unknown id."""
        call = self._found(str(result_id))
        if call is None:
            raise TaskResultDoesNotExist(result_id)
        return self._result(call)

    def signal(self, task_id: Id, name: str, payload: Any = None, *, by: str = "") -> bool:
        """Send a signal to a task; return whether the task waits for it. Raises the real backend's errors."""
        if flow := self._flows.get(parse_id(task_id)):
            return steps.send_to_workflow(flow, self.calls, name, payload)
        return steps.send(self._known(task_id), name, payload)

    def enqueue_workflow(
        self,
        flow: NewWorkflow,
        graph: Graph,
        deadline: datetime | timedelta | None,
        task_of_spec: Callable[[TaskSpec], AnyTask | None],
    ) -> None:
        """Store a workflow with all its tasks; raises the real backend's errors."""
        limits = conf.get().workflows
        flow = rooms.part("check_workflow")(flow, deadline, timezone.now)
        check_size(len(graph.rows), len(graph.edges), max_nodes=limits.max_tasks, max_edges=limits.max_dependencies)
        exists = existence()

        def add(task: AnyTask, row: TaskRow, of: "MemoryWorkflow") -> StoredCall:
            call = StoredCall(
                task=task,
                args=row.args,
                kwargs=row.parameters,
                id=str(row.id),
                sequence=next(self._sequence),
                created_at=timezone.now(),
                status=Status.BLOCKED,
                queued_at=None,
                run_after=row.spec.run_after,
                exists=exists,
                workflow=of,
                metadata=row.metadata,
            )
            self._calls.append(call)
            return call

        graph.rows[:] = map(before_enqueue, graph.rows)
        self._flows[flow.id] = rooms.part("MemoryWorkflow")(flow, graph, task_of_spec, add)
        if self._is_eager:
            self.drain()

    # -- QueueTaskResult -----------------------------------------------------------------------

    def wait_for(self, task_id: Id, seconds: Seconds | None) -> None:
        """Run tasks until this one has ended, with the clock if it must wait; raise ``TimeoutError`` if it cannot."""
        checked_timeout(seconds)
        call = self._known(task_id)
        if call.status not in TERMINAL:
            self.drain()
        if call.status not in TERMINAL:
            self.drain(to_the_end=True)
        if call.status not in TERMINAL:
            raise TimeoutError(f"The task {task_id} is still {call.status}, and nothing is left to run.")

    async def await_for(self, task_id: Id, seconds: Seconds | None) -> None:
        """``wait_for`` for coroutines."""
        await sync_to_async(self.wait_for)(task_id, seconds)

    def wait_for_workflow(self, workflow_id: Id, seconds: Seconds | None) -> None:
        """Run tasks until a workflow has ended, like ``wait_for``."""
        checked_timeout(seconds)
        for to_the_end in False, True:
            if not self.workflow(workflow_id).has_ended:
                self.drain(to_the_end=to_the_end)
        if not self.workflow(workflow_id).has_ended:
            raise TimeoutError(f"The workflow {workflow_id} has not ended, and nothing is left to run.")

    async def await_workflow(self, workflow_id: Id, seconds: Seconds | None) -> None:
        """``wait_for_workflow`` for coroutines."""
        await sync_to_async(self.wait_for_workflow)(workflow_id, seconds)

    def cancel(self, task_id: Id) -> Status:
        """Cancel a task that waits; raise ``InvalidTransition`` if it has ended."""
        call = self._known(task_id)
        if call.status in TERMINAL:
            raise InvalidTransition(
                f"The task {predicate(call.status)}; it can no longer be cancelled.", status=call.status
            )
        if call.workflow is not None and call.workflow.undoes(call):
            raise InvalidTransition("The task undoes another; stop undoing its workflow instead.", status=call.status)
        call.status, call.finished_at, call.is_cancelled = Status.CANCELLED, timezone.now(), True
        if call.workflow is not None:
            call.workflow.changed(call)
        return Status.CANCELLED

    def progress_of(self, task_id: Id) -> Progress | None:
        """Return what a task last reported."""
        return self._known(task_id).progress

    def children_of(self, task_id: Id) -> list[AnyResult]:
        """Return the results of the tasks that wait for a task in its workflow."""
        flow = self._known(task_id).workflow
        return [] if flow is None else [self._result(call) for call in flow.after(parse_id(task_id))]

    def explain(self, task_id: Id) -> Any:
        """Raise ``NotImplementedError``: tasks in memory wait for ``drain`` only."""
        raise NotImplementedError(f"The memory backend explains nothing: {_NEEDS_REAL}")

    def row_of(self, task_id: Id) -> Any:
        """Raise ``NotImplementedError``: tasks in memory are no rows."""
        raise NotImplementedError(f"The memory backend has no rows: {_NEEDS_REAL}")

    def _known(self, task_id: Id) -> StoredCall:
        call = self._found(str(parse_id(task_id)))
        if call is None:
            raise TaskNotFound(f"There is no task {task_id}.")
        return call

    # -- workflows, for tests ------------------------------------------------------------------

    def workflow(self, workflow_id: Id) -> "MemoryWorkflow":
        """Return a workflow, to look at it, or to cancel, pause, resume or retry it; raise ``WorkflowNotFound``."""
        found = self._flows.get(parse_id(workflow_id))
        if found is None:
            raise WorkflowNotFound(f"There is no workflow {workflow_id}.")
        return found

    def replay(self, task_id: Id) -> None:
        """Run a dead letter again."""
        call = self._letter(task_id)
        if call.workflow is not None:
            call.workflow.reopen(call)
        call.status, call.failures, call.finished_at, call.queued_at = Status.QUEUED, 0, None, timezone.now()
        if call.workflow is not None:
            call.workflow.changed(call)

    def discard(self, task_id: Id) -> None:
        """Close a dead letter for good."""
        call = self._letter(task_id)
        call.is_discarded = True
        if call.workflow is not None:
            call.workflow.give_up(call)

    def _letter(self, task_id: Id) -> StoredCall:
        call = self._known(task_id)
        if call.status is not Status.DEAD_LETTER or call.is_discarded:
            raise InvalidTransition(
                f"The task {predicate(call.status)}; it is no open dead letter.", status=call.status
            )
        return call

    # -- for tests -----------------------------------------------------------------------------

    @property
    def calls(self) -> list[StoredCall]:
        """The stored tasks, oldest first, without those that were rolled back."""
        self._calls = [call for call in self._calls if call.exists()]
        return self._calls

    @property
    def results(self) -> list[AnyResult]:
        """The results of all tasks, oldest first."""
        return [self._result(call) for call in self.calls]

    def in_state(self, *states: Status) -> list[AnyResult]:
        """Return the results of the tasks in these states, oldest first."""
        return [self._result(call) for call in self.calls if call.status in states]

    def drain(
        self, *, queue: str | None = None, capabilities: Collection[str] | None = None, to_the_end: bool = False
    ) -> list[AnyResult]:
        """Run the due tasks, the most urgent first; return the results in the order in which attempts ended.

        ``capabilities`` are those of the worker (default: all). With ``to_the_end``, the clock is frozen and moves
        forward to the next retry, delay or refill until no task waits. Raises ``RuntimeError`` after 10,000 attempts.
        """
        if to_the_end and current() is None:
            with freeze():
                return self.drain(queue=queue, capabilities=capabilities, to_the_end=True)
        ended: list[AnyResult] = []
        while True:
            found = self._next(queue, capabilities)
            if found is None:
                return ended
            call, at = found
            if at > timezone.now():
                clock = current()
                if not to_the_end or clock is None:
                    return ended
                clock.move_to(at)
            if len(ended) >= MAX_ATTEMPTS:
                raise RuntimeError(f"Tasks still wait after {MAX_ATTEMPTS} attempts: does a task enqueue itself?")
            self._run(call)
            ended.append(self._result(call))

    def _next(self, queue: str | None, capabilities: Collection[str] | None) -> tuple[StoredCall, datetime] | None:
        """Return the task that starts next, and when; among tasks that may start now, the most urgent one."""
        now = timezone.now()
        for flow in self._flows.values():
            flow.check_deadline(now)
        best: tuple[tuple[Any, ...], StoredCall, datetime] | None = None
        for call in self.calls:
            if call.status not in {*WAITING, Status.BLOCKED} or queue not in {None, call.task.queue_name}:
                continue
            if capabilities is not None and not set(call.option("capabilities", ())) <= set(capabilities):
                continue
            due = steps.due_at(call, now)
            if due is None:
                continue
            limits = self._limits.get(call.task.queue_name)
            free = now if limits is None else limits.free_at(now)
            if free is None:
                continue
            at = max(now, due, free)
            by_arrival = limits is not None and limits.order == ARRIVAL
            band = ARRIVAL_BAND if by_arrival else effective_band(call.band, due, at, PROMOTE_AFTER)
            place = (at, band, due, call.sequence)
            if best is None or place < best[0]:
                best = (place, call, at)
        return None if best is None else best[1:]

    def _run(self, call: StoredCall) -> None:
        limits = self._limits.get(call.task.queue_name)
        retries, timeout = POLICIES[call.band]
        if limits is not None:
            limits.start(timezone.now())
            retries = retries if limits.max_retries is None else limits.max_retries
            timeout = timeout if limits.timeout_seconds is None else limits.timeout_seconds
        attempt.run(call, retries, timeout, sender=type(self), result_of=self._result)
        call.ended_as = next(self._sequence)
        if call.workflow is not None:
            call.workflow.changed(call)

    def _found(self, task_id: str) -> StoredCall | None:
        return next((call for call in self.calls if call.id == task_id), None)

    def _holder_of(self, key: str, user: str) -> StoredCall | None:
        for call in self.calls:
            if (call.option("idempotency_key"), call.option("user", "")) == (key, user):
                return call
        return None

    def _result(self, call: StoredCall) -> AnyResult:
        result: AnyResult = QueueTaskResult(
            task=call.task,
            id=call.id,
            status=RESULT_STATUS[call.status],
            enqueued_at=call.created_at,
            started_at=call.first_started_at,
            finished_at=call.finished_at,
            last_attempted_at=call.started_at,
            args=json.loads(call.args),
            kwargs=json.loads(call.kwargs),
            backend=self.alias,
            errors=list(call.errors),
            worker_ids=list(call.worker_ids),
        )
        if call.status is Status.COMPLETED and call.value is not None:
            object.__setattr__(result, "_return_value", codecs.real_result(json.loads(call.value)))
        return result
