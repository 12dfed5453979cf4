"""A claimed attempt as its worker knows it, and as the task sees it: ``QueueTaskContext``."""

from __future__ import annotations

import inspect
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from django.tasks.base import TaskContext, TaskError

from queue_app.backend.results import earlier_attempts
from queue_app.core import rooms, trace
from queue_app.core.records import AttemptKey, ClaimedTask, Outcome
from queue_app.core.steps import Fields, Step
from queue_app.exceptions import Interruption, StepRefused, TaskCancelled, WorkflowNotFound
from queue_app.services.lifecycle import steps as step_service
from queue_app.workers.steps import AttemptSteps

if TYPE_CHECKING:
    from queue_app.workflows.builder import RunningWorkflow

    _TaskContext = TaskContext[..., Any]  # generic in the stubs only
else:
    _TaskContext = TaskContext

MESSAGE_LENGTH: Final = 200
#: Maximum run time of an attempt in seconds, with all its extensions: a year.
MAX_EXTENSION: Final = 365 * 86_400.0

#: Maximum characters of the name of what a step runs.
MAX_LABEL: Final = 150

#: Guards ``ClaimedAttempt.shielded`` of all attempts. Shields are rare and entered quickly, so one lock is enough.
shields = threading.Lock()


class AttemptStore(Protocol):
    """What running attempts read and write; every transport offers it.

    Methods with a body are for a worker that reaches the database over HTTP only.
    """

    def earlier_attempts(self, task_id: uuid.UUID) -> tuple[list[TaskError], list[str]]:
        """Return the errors and the worker ids of a task's earlier attempts."""
        return [], []

    def stored_steps(self, task: ClaimedTask) -> list[Step]:
        """Return the steps that attempts of the task have stored, in order."""

    def record_step(self, task: ClaimedTask, step: Step) -> None:
        """Store a step durably; raise ``AttemptLost`` if the attempt no longer holds the task."""

    def atomic_step(self, task: ClaimedTask, run: Callable[[], Step]) -> Step:
        """Run a step and store it in one transaction; raise ``AttemptLost`` as ``record_step`` does."""
        raise StepRefused(
            "An atomic step needs the database, which this worker reaches only over HTTP. Run the task on a worker with"
            " access to the database, or call the step without atomic=True."
        )

    def await_signal(self, task: ClaimedTask, step: Step, schema: Fields | None) -> Step:
        """Take a signal for a step, or store that it waits or that its time is over; return the step as stored."""


class LocalStore:
    """Reads and writes the rows in this process."""

    earlier_attempts = staticmethod(earlier_attempts)
    stored_steps = staticmethod(step_service.stored_steps)
    record_step = staticmethod(step_service.record_step)
    atomic_step = staticmethod(step_service.atomic_step)
    await_signal = staticmethod(step_service.await_signal)


LOCAL_STORE: Final = LocalStore()


class ProgressSink:
    """Receives what running attempts report; this base class drops it."""

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        """Record how far the attempt has come."""

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        """Record that the attempt needs more time."""

    def log(self, held: ClaimedAttempt, line: str) -> None:
        """Record a line that the attempt logged."""


NO_REPORTS: Final = ProgressSink()


@dataclass(slots=True, eq=False)
class ClaimedAttempt:
    """A task that this worker holds; ``claimed_at`` is when the claim's answer arrived (monotonic, s)."""

    task: ClaimedTask
    claimed_at: float
    store: AttemptStore = field(default=LOCAL_STORE, repr=False)
    extended: float = 0.0  # seconds beyond the timeout of the claim
    interruption: type[Interruption] | None = None  # why the attempt was asked to end
    interrupted_at: float = 0.0  # monotonic
    asked_at: float = 0.0  # monotonic; later than ``interrupted_at`` if it was asked again
    stuck_at: float = 0.0  # monotonic; when the worker gave up waiting for the end; 0: it has not
    shielded: int = 0  # depth of the shields that the attempt is inside of
    steps: AttemptSteps | None = field(default=None, repr=False)  # made by the first step

    @property
    def key(self) -> AttemptKey:
        """The grant that this worker holds."""
        return self.task.key

    def row_time(self, at: float) -> Any:
        """Return the monotonic time ``at`` by the database's clock."""
        return self.task.started_at + timedelta(seconds=at - self.claimed_at)

    def outcome(self, began: float, result: str | None = None, **fields: Any) -> Outcome:
        """Return the outcome of this attempt, which began at ``began`` (monotonic) and ends now."""
        return Outcome(self.task, self.row_time(began), self.row_time(time.monotonic()), result, **fields)

    @property
    def timeout(self) -> float:
        """Maximum run time of the attempt in seconds, with its extensions."""
        return self.task.timeout + self.extended


@contextmanager
def shield(held: ClaimedAttempt) -> Iterator[None]:
    """Delay an interruption of the attempt to the end of the block."""
    with shields:
        held.shielded += 1
    try:
        yield
    finally:
        with shields:
            held.shielded -= 1
            delayed = held.interruption if not held.shielded else None
    if delayed is not None:
        raise delayed


class _HeldSteps:
    """The stored steps of the task of one attempt; an interruption waits until a step is stored."""

    def __init__(self, held: ClaimedAttempt) -> None:
        self._held = held

    def load(self) -> list[Step]:
        return self._held.store.stored_steps(self._held.task)

    check_outside = staticmethod(step_service.check_no_transaction)

    def record(self, step: Step) -> None:
        with shield(self._held):
            self._held.store.record_step(self._held.task, step)

    def wait_for(self, step: Step, schema: Fields | None) -> Step:
        with shield(self._held):
            return self._held.store.await_signal(self._held.task, step, schema)

    def run_atomic(self, run: Callable[[], Step]) -> Step:
        return self._held.store.atomic_step(self._held.task, run)


async def _awaited(found: Awaitable[Any], then: Callable[[Any], Any]) -> Any:
    return then(await found)


def record_interruption(held: ClaimedAttempt, interruption: type[Interruption]) -> None:
    """Record why and when an attempt is asked to end."""
    held.interruption = interruption
    held.interrupted_at = held.asked_at = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskContext(_TaskContext):  # type: ignore[misc] # frozen in Django, not in its stubs
    """The object that a task with a ``context`` parameter receives: its attempt, progress and cancellation."""

    attempt_number: int = field(default=1)
    held: ClaimedAttempt = field(repr=False)
    reports: ProgressSink = field(default=NO_REPORTS, repr=False)

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first, 1 more after each failure."""
        return self.attempt_number

    @property
    def cancelled(self) -> bool:
        """Whether the task has been cancelled during this attempt."""
        return self.held.interruption is TaskCancelled

    @property
    def workflow(self) -> RunningWorkflow:
        """The workflow of this task, to add tasks to it; raises ``WorkflowNotFound`` for a task of no workflow."""
        task = self.held.task
        if task.workflow_id is None:
            raise WorkflowNotFound("This task is in no workflow; enqueue it with Workflow(…).add().")
        found: RunningWorkflow = rooms.part("RunningWorkflow")(task.workflow_id, task.key, user=task.user)
        return found

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of this attempt; tasks that it enqueues continue the trace."""
        return trace.current.get()

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the task has come, from 0 to 1, and what it does now.

        Call it as often as you like: a call costs microseconds, and the worker stores the last
        report of each half second. Raises ``ValueError`` for a fraction out of bounds.
        """
        fraction = float(fraction)
        if not 0.0 <= fraction <= 1.0:  # false for NaN too
            raise ValueError(f"progress must lie between 0 and 1, not {fraction!r}.")
        self.reports.progress(self.held, fraction, str(message)[:MESSAGE_LENGTH])

    def extend(self, seconds: float | timedelta) -> None:
        """Move the deadline of this attempt by ``seconds``, a number above 0 or a ``timedelta``."""
        more = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if not 0 < more <= MAX_EXTENSION:
            raise ValueError(f"seconds must lie between 0 and {MAX_EXTENSION:.0f}, not {seconds!r}.")
        more = min(more, max(0.0, MAX_EXTENSION - self.held.timeout))
        self.held.extended += more
        self.reports.extend(self.held, more)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Delay a timeout or cancellation to the end of the block.

        Inside the block, ``cancelled`` tells whether the task was cancelled. If the block runs for a minute
        after the timeout, the worker's process is replaced (a slot process: killed) anyway.
        """
        with shield(self.held):
            yield

    def step(self, name: str, function: Callable[..., Any], *args: Any, atomic: bool = False, **kwargs: Any) -> Any:
        """Call a function once per task and store its result; later attempts get the stored result.

        The result must be JSON, and is returned as JSON stores it. If the worker dies after the function and before
        the result is stored, the next attempt calls the function again. With ``atomic``, what the function writes to
        the database of the tasks and the result are one transaction, so it has happened exactly once. A step that
        raises stores nothing. In a coroutine, await it; the function may be a coroutine function.

        Raises ``StepsChanged`` unless each attempt calls the same steps in the same order, and ``StepRefused`` inside a
        transaction.
        """
        return self._steps().step(name, function, partial(function, *args, **kwargs), atomic=atomic)

    def run(self, what: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a task, a ``Workflow``, a chain or a group once per task, and return its result.

        It is enqueued once, in the transaction that stores the step. This attempt ends meanwhile, counts no failure and
        holds no slot; the task looks again after a second, then less often, after 30 s at most. The result of a
        workflow is that of its last task, or a list. If what runs ends without success, ``TaskFailed`` is raised. A
        later attempt then looks at it again, unless this one has called another step after the error. If this task is
        cancelled, what runs goes on. In a coroutine, await it.
        """
        label = getattr(what, "name", type(what).__name__.lower())[:MAX_LABEL]
        children: Any = rooms.part("children")
        found = self._steps().run(label, partial(children.start, what, args, kwargs), children.outcome, children.pause)
        return _awaited(found, children.value_of) if inspect.isawaitable(found) else children.value_of(found)

    def sleep(self, duration: float | timedelta | datetime) -> Any:
        """End the attempt; a new one, which repeats no step, begins after ``duration`` (or at an aware time).

        It counts no failure, and a sleeping task holds no slot. In a coroutine, await it. A sleep is a step: the time
        is stored. Code before it that is no step runs again.
        """
        return self._steps().sleep(duration)

    def wait_for(
        self,
        signal: str,
        *,
        timeout: float | timedelta | datetime | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the payload of the next signal of this name; end the attempt until it arrives.

        ``queue_app.signal``, the API and the page of the task send signals. Each is taken once, in order; signals that
        arrive early are kept. After ``timeout`` (seconds, or an aware time), ``SignalTimeout`` is raised. ``schema``
        declares the fields of the payload, such as ``{"approved": bool}``: the task's page shows a form with them. The
        option ``signals`` of the decorator is its default. Like ``sleep`` it counts no failure and holds no slot. In a
        coroutine, await it.
        """
        declared = getattr(self.task_result.task, "signals", None) or {}
        return self._steps().wait_for(signal, timeout, declared.get(signal) if schema is None else schema)

    def _steps(self) -> AttemptSteps:
        held = self.held
        if held.steps is None:
            is_first = held.task.attempt == 1  # nothing can be stored
            held.steps = AttemptSteps(_HeldSteps(held), lambda: held.row_time(time.monotonic()), is_first=is_first)
        return held.steps
