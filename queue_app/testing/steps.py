"""The steps and signals of tasks in memory."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from queue_app import conf
from queue_app.backend.results import Progress
from queue_app.core import rooms
from queue_app.core.payload import dump_json
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.core.steps import Fields, Step, StepKind, check_declared, check_payload
from queue_app.exceptions import InvalidTransition, WorkflowNotFound
from queue_app.services.enqueue.validate import check_signal_name
from queue_app.testing.stored import StoredCall
from queue_app.workers.context import MESSAGE_LENGTH, QueueTaskContext
from queue_app.workers.steps import AttemptSteps

if TYPE_CHECKING:
    from queue_app.workflows.builder import RunningWorkflow
    from queue_app.workflows.testing import MemoryWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryContext(QueueTaskContext):  # type: ignore[misc] # frozen in Django, not in its stubs
    """The context of an attempt in memory."""

    steps: AttemptSteps
    call: StoredCall

    def progress(self, fraction: float, message: str = "") -> None:
        QueueTaskContext.progress(self, fraction, message)
        self.call.progress = Progress(float(fraction), str(message)[:MESSAGE_LENGTH], timezone.now())

    def extend(self, seconds: float | timedelta) -> None:
        QueueTaskContext.extend(self, seconds)
        self.call.extended += seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)

    @property
    def workflow(self) -> "RunningWorkflow":
        """The workflow of this task, to add tasks to it; raises ``WorkflowNotFound`` for a task of no workflow."""
        if self.call.workflow is None:
            raise WorkflowNotFound("This task is in no workflow; enqueue it with Workflow(…).add().")
        found: RunningWorkflow = rooms.part("RunningInMemory")(self.call.workflow, self.call)
        return found

    def _steps(self) -> AttemptSteps:
        return self.steps


class MemorySteps:
    """The steps of one task, in its ``StoredCall``."""

    def __init__(self, call: StoredCall) -> None:
        self._call = call

    def load(self) -> list[Step]:
        return list(self._call.steps.values())

    def check_outside(self, name: str) -> None:
        """Steps in memory outlive a transaction."""

    def record(self, step: Step) -> None:
        self._call.steps[step.name] = step

    def run_atomic(self, run: Callable[[], Step]) -> Step:
        """Run a step in a transaction."""
        with transaction.atomic(using=conf.get().database_alias):
            step = run()
        self.record(step)
        return step

    def wait_for(self, step: Step, schema: Fields | None) -> Step:
        """Take a signal for a step, or let it wait until its time is over."""
        flow = self._call.workflow
        for kept in (self._call.signals, [] if flow is None else flow.signals):
            sent = [one for one in kept if one[0] == step.signal]
            if sent:
                kept.remove(sent[0])
                step = step._replace(is_done=True, value=sent[0][1])
                break
        if not step.is_done and step.until is not None and step.until <= timezone.now():
            step = step._replace(is_done=True, kind=StepKind.TIMEOUT)
        self._call.schema = schema
        self.record(step)
        return step


def awaited(call: StoredCall) -> Step | None:
    """Return the step in which a task waits for a signal."""
    return next((step for step in call.steps.values() if not step.is_done), None)


def send(call: StoredCall, name: str, payload: Any) -> bool:
    """Send a signal; return whether the task waited for it. Raises what the real backend raises."""
    text = None if payload is None else dump_json(payload, field="payload", limits=conf.get().payload)
    check_signal_name(name)
    if call.status in TERMINAL:
        raise InvalidTransition(f"The task {predicate(call.status)}; it takes no more signals.", status=call.status)
    check_declared(call.option("signals"), name, payload)
    is_awaited = _check(call, name, text)
    call.signals.append((name, text))
    if is_awaited and call.status is Status.BLOCKED:
        _wake(call)
    return is_awaited


def send_to_workflow(flow: "MemoryWorkflow", calls: Iterable[StoredCall], name: str, payload: Any) -> bool:
    """Send a signal to a workflow; all of its tasks that wait for it wake, and one of them takes it."""
    text = None if payload is None else dump_json(payload, field="payload", limits=conf.get().payload)
    check_signal_name(name)
    if flow.has_ended:
        raise InvalidTransition("The workflow has ended; it takes no more signals.", status="")
    waiting = [call for call in calls if call.workflow is flow and _check(call, name, text)]
    flow.signals.append((name, text))
    for call in waiting:
        if call.status is Status.BLOCKED:
            _wake(call)
    return bool(waiting)


def _check(call: StoredCall, name: str, text: str | None) -> bool:
    """Return whether a task waits for a signal; raise ``InvalidTaskData`` for a payload that it does not take."""
    step = awaited(call)
    if step is None or step.signal != name:
        return False
    check_payload(call.schema, None if text is None else json.loads(text))
    return True


def _wake(call: StoredCall) -> None:
    call.status, call.queued_at, call.run_after = Status.QUEUED, timezone.now(), None
    if call.workflow is not None:
        call.workflow.changed(call)


def wait(call: StoredCall) -> None:
    """Let a task wait for the signal of its open step."""
    step = awaited(call)
    call.status, call.queued_at, call.run_after = Status.BLOCKED, None, None if step is None else step.until


def due_at(call: StoredCall, now: datetime) -> datetime | None:
    """Return when a waiting task may run by itself; ``None`` for one that waits for a signal without end."""
    if call.status is Status.BLOCKED:  # for a signal, else for other tasks
        return call.run_after if awaited(call) else None
    return call.queued_at or call.run_after or now
