"""The steps and signals of tasks in memory."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from queue_app import conf
from queue_app.core.payload import dump_json
from queue_app.core.signals import Fields, check_payload
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.core.steps import Step, StepKind
from queue_app.exceptions import InvalidTransition
from queue_app.services.enqueue.validate import check_signal_name
from queue_app.task_result import Progress
from queue_app.testing.stored import StoredCall
from queue_app.workers.context import MESSAGE_LENGTH, QueueTaskContext
from queue_app.workers.steps import AttemptSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryContext(QueueTaskContext):  # type: ignore[misc] # frozen in Django, not in its stubs
    """The context of an attempt in memory."""

    steps: AttemptSteps
    call: StoredCall

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the task has come."""
        QueueTaskContext.progress(self, fraction, message)
        self.call.progress = Progress(float(fraction), str(message)[:MESSAGE_LENGTH], timezone.now())

    def extend(self, seconds: float | timedelta) -> None:
        """Move the deadline of this attempt."""
        QueueTaskContext.extend(self, seconds)
        self.call.extended += seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)

    def _steps(self) -> AttemptSteps:
        return self.steps


class MemorySteps:
    """The steps of one task, in its ``StoredCall``."""

    def __init__(self, call: StoredCall) -> None:
        self._call = call

    def load(self) -> list[Step]:
        """Return the steps."""
        return list(self._call.steps.values())

    def record(self, step: Step) -> None:
        """Store a step."""
        self._call.steps[step.name] = step

    def run_atomic(self, run: Callable[[], Step]) -> Step:
        """Run a step in a transaction."""
        with transaction.atomic(using=conf.get().database_alias):
            step = run()
        self.record(step)
        return step

    def wait_for(self, step: Step, schema: Fields | None) -> Step:
        """Take a signal for a step, or let it wait until its time is over."""
        sent = [one for one in self._call.signals if one[0] == step.signal]
        if sent:
            self._call.signals.remove(sent[0])
            step = step._replace(is_done=True, value=sent[0][1])
        elif step.until is not None and step.until <= timezone.now():
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
    step = awaited(call)
    is_awaited = step is not None and step.signal == name
    if is_awaited:
        check_payload(call.schema, None if text is None else json.loads(text))
    call.signals.append((name, text))
    if is_awaited and call.status is Status.BLOCKED:
        call.status, call.queued_at, call.run_after = Status.QUEUED, timezone.now(), None
    return is_awaited


def wait(call: StoredCall) -> None:
    """Let a task wait for the signal of its open step."""
    step = awaited(call)
    call.status, call.queued_at, call.run_after = Status.BLOCKED, None, None if step is None else step.until


def due_at(call: StoredCall, now: datetime) -> datetime | None:
    """Return when a waiting task may run by itself; ``None`` for one that waits for a signal without end."""
    if call.status is Status.BLOCKED:
        return call.run_after
    return call.queued_at or call.run_after or now
