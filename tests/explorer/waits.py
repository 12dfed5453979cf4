"""Transitions of a task's own steps: to store a step, to wait for a signal, to send one, and to go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from queue_app.core.records import ClaimedTask
from queue_app.core.states import TERMINAL
from queue_app.core.steps import Step, StepKind
from queue_app.exceptions import AttemptLost, InvalidTransition
from queue_app.models import Signal, StepResult, Task
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.lifecycle.steps import atomic_step, await_signal, signal, stored_steps
from queue_app.services.repair import reap
from tests.support.engine import done

NAME: Final = "go"
STEP: Final = Step(1, "charge", StepKind.STEP, "1")
WAIT: Final = Step(1, f"wait for {NAME}", StepKind.SIGNAL, signal=NAME, is_done=False)
LATE: Final = timedelta(hours=1)


def begin_to_wait(task: ClaimedTask, step: Step = WAIT) -> bool | None:
    """Take the signal, or let the task wait; return whether it was taken, ``None`` if the attempt had lost the task."""
    try:
        found = await_signal(task, step, None)
    except AttemptLost:
        return None
    if not found.is_done:
        finish([replace(done(task), waits=True)])
    return found.is_done


def let_wait_too_long(task: ClaimedTask) -> None:
    """Let a task wait for a signal whose time is over."""
    begin_to_wait(task, WAIT._replace(until=datetime.now(UTC) + LATE))
    for rows, field in ((StepResult.objects, "until"), (Task.objects.filter(status="blocked"), "run_after")):
        rows.update(**{field: datetime.now(UTC) - LATE})


def waits_in_vain(task_id: Any) -> bool:
    """Return whether the task waits although its signal has been sent."""
    sent = Signal.objects.filter(task_id=task_id, name=NAME, taken_at=None)
    return sent.exists() and Task.objects.filter(pk=task_id, status="blocked").exists()


def answer(task_id: Any) -> None:
    """Send the signal to a task that waits for it, unless it was sent: then the task would wait for ever."""
    if Task.objects.filter(pk=task_id, status="blocked").exists() and not waits_in_vain(task_id):
        signal(task_id, NAME)


def send(world: Any, number: int) -> bool:
    """Send a signal."""
    return signal(world.x, NAME, number).is_awaited


def send_broken(world: Any, _value: Any, error: BaseException | None) -> Iterator[str]:
    """A signal that was sent is there, and wakes the task."""
    if isinstance(error, InvalidTransition) and not world.statuses_of(world.x) & {str(each) for each in TERMINAL}:
        yield f"a signal was refused ({error}), and x had not ended"
    if error is None and not Signal.objects.filter(task_id=world.x, name=NAME).exists():
        yield "a signal was sent, and is not there"
    yield from wait_broken(world, None, None)


def wait_broken(world: Any, value: Any, _error: BaseException | None) -> Iterator[str]:
    """A task does not wait for what has arrived; what it has taken is taken once."""
    if waits_in_vain(world.x):
        yield "x waits for a signal that was sent"
    taken = Signal.objects.filter(task_id=world.x, taken_at__isnull=False).count()
    if taken != StepResult.objects.filter(task_id=world.x, kind="signal", done_at__isnull=False).count():
        yield f"{taken} signals are taken, and not as many steps have one"
    if value and not taken:
        yield "a step got a signal that is not taken"


def store(world: Any, _number: int) -> bool:
    """Store an atomic step; return false if the attempt had lost the task."""
    try:
        atomic_step(world.held[0], lambda: STEP)
    except AttemptLost:
        return False
    return True


def store_broken(world: Any, value: Any, error: BaseException | None) -> Iterator[str]:
    """What was acknowledged is stored, and what was refused is not."""
    stored = StepResult.objects.filter(task_id=world.x, name=STEP.name).exists()
    if error is None and stored != value:
        yield f"a step was {'stored' if value else 'refused'}, and is {'there' if stored else 'not there'}"


def go_on(world: Any, _number: int) -> list[str] | None:
    """Take the task from its worker, run it on another, and read its steps."""
    reap.mark_dead(world.hands[0].id)
    tasks = claim(world.hands[1].profile, world.hands[1].id, 1)
    mine = [task for task in tasks if task.id == world.x]
    return [step.name for step in stored_steps(mine[0])] if mine else None


def go_on_broken(world: Any, value: Any, _error: BaseException | None) -> Iterator[str]:
    """The next attempt knows all that the one before has done."""
    if value is None:
        return
    stored = StepResult.objects.filter(task_id=world.x, attempt=world.held[0].attempt)
    for name in stored.values_list("name", flat=True):
        if name not in value:
            yield f"the attempt that had lost x stored {name!r} after the next attempt had read the steps"


#: Name -> what it does, in which states, and what it promises.
WAITS: Final[dict[str, tuple[Callable[[Any, int], Any], tuple[str, ...], Any]]] = {
    "signal": (send, ("blocked", "executing", "queued", "scheduled"), send_broken),
    "wait": (lambda world, _: begin_to_wait(world.held[0]), ("executing",), wait_broken),
    "step": (store, ("executing",), store_broken),
    "go_on": (go_on, ("executing",), go_on_broken),
}
