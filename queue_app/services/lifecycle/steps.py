"""Durable steps: store what a task has done, so that later attempts need not repeat it; send the signals of steps.

A signal (an approval, an answer of another service, a message of a person) is stored, and a task that waits for it is
queued, in one transaction. Signals that arrive early wait for the task. Each is taken by one step, in order of arrival.

Crash points: before the commit of a step, the next attempt runs the step again; what the step itself wrote is rolled
back with ``atomic_step``, and stays without. After the commit, the next attempt reads the stored result. Before
the commit of a signal nothing was sent; after it, the reconciler pushes the queued task into the index.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from queue_app import conf, registry
from queue_app.core.ids import Id, parse_id
from queue_app.core.payload import dump_json
from queue_app.core.records import ClaimedTask
from queue_app.core.redaction import is_sealed
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.core.steps import Fields, Step, check_declared, check_payload, listed
from queue_app.encryption import SHARED, applies_to, is_on, opened_if, seal, sealed_if
from queue_app.exceptions import AttemptLost, InvalidTransition, StepRefused, TaskNotFound
from queue_app.models import Workflow
from queue_app.services.advance import advance, changing, share
from queue_app.services.control import audit
from queue_app.services.enqueue.validate import check_reason, check_signal_name
from queue_app.services.lifecycle.claim import keep
from queue_app.services.notify import events
from queue_app.sql import steps as rows
from queue_app.sql.claim import statuses
from queue_app.sql.database import alias, atomic, is_in_transaction
from queue_app.sql.snapshot import types_of
from queue_app.sql.steps import Awaited, awaited
from queue_app.sql.workflow_advance import lock


def stored_steps(task: ClaimedTask) -> list[Step]:
    """Return the steps that attempts of the task have stored, in order."""
    return [_opened(step) for step in rows.load(task.id)]


def record_step(task: ClaimedTask, step: Step) -> None:
    """Store a step durably; raise ``AttemptLost`` if the attempt no longer holds the task.

    Raises ``StepRefused`` inside a transaction, with which the step would be rolled back.
    """
    check_no_transaction(step.name)
    _record(task, step)


def atomic_step(task: ClaimedTask, run: Callable[[], Step]) -> Step:
    """Run a step and store it in one transaction; raise ``AttemptLost``, and roll back, as ``record_step`` does."""
    with atomic():
        step = run()
        _record(task, step)
    return step


def await_signal(task: ClaimedTask, step: Step, schema: Fields | None) -> Step:
    """Take the oldest signal for a step, or store that it waits, or that its time is over; return the step as stored.

    Raises ``AttemptLost`` and ``StepRefused`` as ``record_step`` does.
    """
    check_no_transaction(step.name)
    with atomic():
        share([task.workflow_id])
        fields = None if schema is None else json.dumps(listed(schema))
        found = rows.take(task, step, fields) or (rows.take(task, step, fields) if keep([task]) else None)
    if found is None:  # it was stored before, and the answer was lost
        found = next((one for one in rows.load(task.id) if one.name == step.name and one.is_done), None)
    if found is None:
        raise _lost(step.name)
    return _opened(found)


def check_no_transaction(name: str) -> None:
    """Raise ``StepRefused`` inside a transaction."""
    if is_in_transaction():
        raise StepRefused(
            f"The step {name!r} was called inside a transaction. If that is rolled back, the task forgets the step, but"
            " what the step did elsewhere stays. Call the step outside; with atomic=True it opens a transaction itself."
        )


def _record(task: ClaimedTask, step: Step) -> None:
    value = step.value if is_sealed(step.value) else sealed_if(step.value, task.task_type, SHARED)
    stored = step._replace(value=value)
    if not rows.record(task, stored) and not (keep([task]) and rows.record(task, stored)):
        raise _lost(step.name)


def _opened(step: Step) -> Step:
    return step._replace(value=opened_if(step.value, SHARED)) if is_sealed(step.value) else step


def _lost(name: str) -> AttemptLost:
    return AttemptLost(f"The attempt no longer holds the task, so the step {name!r} was not stored.")


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that was stored: its id, and whether the task waited for it and continues now."""

    id: int
    is_awaited: bool


def signal(  # noqa: PLR0913 - by name
    task: Id, name: str, payload: Any = None, *, by: str = "", via: str = audit.CODE, reason: str = ""
) -> Sent:
    """Send a signal to a task, or by its id to a workflow, that has not ended; ``by`` names who sends it.

    The audit log records it, with the interface (``via``) and the reason, unless code sends it without ``by``.

    The task gets ``payload`` (JSON) from ``context.wait_for(name)``. If it does not wait for the signal yet, the signal
    is kept. A signal to a workflow is for the first of its tasks that waits for it; signals to the task itself come
    first. Raises ``TaskNotFound``, ``InvalidTransition`` when the task has ended, and ``InvalidTaskData`` for a payload
    that is no JSON or lacks what the waiting step declares.
    """
    task_id = parse_id(task)
    check_signal_name(name)
    text = None if payload is None else dump_json(payload, field="payload", limits=conf.get().payload)
    _check(awaited(task_id), name, payload)
    task_type = types_of([task_id]).get(task_id)
    check_declared(getattr(registry.find(task_type), "signals", None) if task_type else None, name, payload)
    text = _sealed(text, task_type)
    is_recorded = bool(by) or via != audit.CODE
    with atomic() if is_recorded else nullcontext(), changing([task_id]) as workflows:
        stored = rows.send(task_id, name, text, by)
        if stored is None and task_id in (found := statuses([task_id])):
            raise _refusal("task", found[task_id], is_over=found[task_id] in TERMINAL)
        if is_recorded:
            target = "workflow" if stored is None else "task"
            audit.record(
                f"{target}.signal", target, [task_id], by=by, via=via, after={"signal": name, "payload": payload},
                reason=check_reason(reason),
            )  # fmt: skip
        if stored is None:
            return _to_workflow(task_id, name, payload, text, by)
        signal_id, woken = stored
        is_held = woken is not None and bool(workflows) and bool(advance({woken.id: Status.QUEUED}))
    if woken is not None and not is_held:
        events.push_queued_again([woken])
    return Sent(signal_id, woken is not None)


def _to_workflow(workflow_id: uuid.UUID, name: str, payload: Any, text: str | None, by: str) -> Sent:
    """Send a signal to a workflow; all of its tasks that wait for it wake, and one of them takes it."""
    with atomic():
        lock({workflow_id})  # none of its tasks begins to wait meanwhile
        _check(awaited(workflow_id, in_workflow=True), name, payload)
        stored = rows.send_to_workflow(workflow_id, name, text, by)
        if stored is None:
            flow = Workflow.objects.using(alias()).filter(pk=workflow_id).first()
            if flow is None:
                raise TaskNotFound(f"There is no task or workflow {workflow_id}.")
            raise _refusal("workflow", flow.state, is_over=flow.finished_at is not None)
        signal_id, woken = stored
        held = advance({task.id: Status.QUEUED for task in woken}) if woken else set[uuid.UUID]()
        events.push_queued_again([task for task in woken if task.id not in held])
    return Sent(signal_id, bool(woken))


def _sealed(text: str | None, task_type: str | None) -> str | None:
    """Return an encrypted payload if the task is encrypted; for a workflow, if any task of the project may be."""
    if text is None or not is_on():
        return text
    return seal(text, SHARED) if task_type is None or applies_to(task_type) else text


def _check(waits: Sequence[Awaited], name: str, payload: Any) -> None:
    for one in waits:
        if one.signal == name:
            check_payload(one.fields, payload)


def _refusal(what: str, state: str, *, is_over: bool) -> InvalidTransition:
    if is_over:
        standing = predicate(state) if what == "task" else f"is {state}"
        return InvalidTransition(f"The {what} {standing}; it takes no more signals.", status=state)
    text = f"The {what} has {rows.MAX_UNTAKEN} signals that it has not taken; it takes no more until it does."
    return InvalidTransition(text, status=state)
