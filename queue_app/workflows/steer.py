"""Steer workflows as a whole: cancel, pause, resume, retry, reprioritise.

Each command is one transaction that has the lock of the workflow alone. After its commit no task of a cancelled or
paused workflow starts. Running tasks finish, or are asked to stop. The audit log gets one record in the same
transaction: ``by`` whom, ``via`` which interface, and the ``reason``.

Crash points: before the commit nothing has happened. Between the commit and the index, the index proposes tasks that
the rows refuse, and the reconciler pushes queued tasks that it lacks. The scheduler continues a cancel of many tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from queue_app.core.ids import Id, parse_id
from queue_app.core.priorities import Band, parse_band
from queue_app.core.sentence import sentence
from queue_app.core.states import FAILURES, Status, predicate
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskNotFound, WorkflowNotFound
from queue_app.models import DeadLetter, Workflow
from queue_app.models.fields import USER_LENGTH
from queue_app.models.workflow import Closed, WorkflowState
from queue_app.services.advance import advance, give_up
from queue_app.services.control import audit
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.actions import discard_open, replay_open, requeue
from queue_app.services.lifecycle.dependencies import (
    BATCH,
    cancel_batch,
    make_room,
    record_gaps,
    request_cancel,
    settle_later,
    stop_compensations,
)
from queue_app.services.notify.index import push_on_commit, remove_on_commit
from queue_app.sql import waiting, workflow_advance, workflow_settle as rows
from queue_app.sql.database import alias, atomic, clock

_AGAIN = FAILURES | {Status.CANCELLED}


def cancel_workflow(workflow_id: Id, *, by: str = "", via: str = audit.CODE, reason: str = "") -> int:
    """Cancel every task that has not ended, then undo the completed ones; return how many tasks were cancelled.

    A second cancel changes nothing, nor does one of a workflow that is or was undone: only ``stop_undoing`` stops
    compensations. Before this returns, the tasks that could start have ended, or are asked to stop; of many blocked
    tasks, the scheduler cancels the rest. Raises ``WorkflowNotFound``, and ``InvalidTransition`` if the workflow has
    ended without a cancel. Without ``via`` the queue itself cancels, which is not recorded.
    """
    check_reason(reason)
    with _locked(workflow_id) as flow:
        if flow.cancel_requested_at is not None or rows.is_undone(flow.id):
            return 0
        _refuse_ended(flow, sentence("it can no longer be cancelled"))
        request_cancel(flow, reason)
        done = cancelled = cancel_batch(flow)
        while cancelled == BATCH and rows.ids_in(flow.id, {Status.QUEUED, Status.SCHEDULED}, 1):
            cancelled = cancel_batch(flow)
            done += cancelled
        if via:
            _record("cancel", flow, done, by, via, reason)
    settle_later([flow.id])
    return done


def stop_undoing(workflow_id: Id, *, by: str, via: str = audit.CODE, reason: str) -> int:
    """Give up the compensations that have not completed; return how many completed tasks stay as they are.

    The workflow then ends as failed, and its ``gaps`` name these tasks. Raises ``WorkflowNotFound``,
    ``InvalidTransition`` if the workflow is not being undone, and ``InvalidTaskData`` without a reason.
    """
    _require(reason)
    with _locked(workflow_id) as flow:
        if flow.state != WorkflowState.COMPENSATING:
            if not flow.gaps:
                _refuse(flow, sentence("nothing of it is being undone"))
            return len(flow.gaps)  # said twice
        left = stop_compensations(flow, reason)
        _record("stop_undoing", flow, left, by, via, reason)
    settle_later([flow.id])
    return left


def skip_task(  # noqa: PLR0913 - by name
    workflow_id: Id, task_id: Id, *, by: str, via: str = audit.CODE, reason: str = "", done: bool = False
) -> int:
    """Give up a task that failed and holds its workflow; return 1, or 0 if that changes nothing.

    What waits for the task is cancelled. But if it undoes another task, the other compensations go on, and ``gaps``
    names what was not undone. With ``done``, a person has undone it by hand, so it is no gap; this needs a reason. The
    task's dead letter is discarded. Raises ``WorkflowNotFound``, ``TaskNotFound``, ``InvalidTransition`` and
    ``InvalidTaskData``.
    """
    (_require if done else check_reason)(reason)
    found = parse_id(task_id)
    how = Closed.DONE if done else Closed.SKIPPED
    with _locked(workflow_id) as flow:
        status = rows.statuses_in(flow.id, [found]).get(found)
        if status is None:
            raise TaskNotFound(sentence("The task %(id)s is not in the workflow.", id=str(found)))
        if done and not rows.compensations_among([found]):
            raise InvalidTransition(sentence("The task undoes no other, so it cannot be done by hand."), status=status)
        if status not in (_AGAIN if done else FAILURES):
            why = sentence("only tasks that ended without success can be skipped")
            text = sentence("The task %(state)s; %(why)s.", state=predicate(status), why=why)
            raise InvalidTransition(text, status=status)
        letters = DeadLetter.objects.using(alias()).open().filter(task_id=found).values_list("id", flat=True)
        closed = discard_open(list(letters), by=by, reason=reason, how=how) or give_up([found], how, reason)
        if closed:
            record_gaps(flow)
            _record("skip", flow, 1, by, via, reason, task=str(found), how=how.value)
    settle_later([flow.id])
    return int(bool(closed))


def pause_workflow(workflow_id: Id, *, by: str, via: str = audit.CODE, reason: str = "") -> int:
    """Start no task of a workflow until it is resumed; return how many waiting tasks this holds back.

    Raises ``WorkflowNotFound``, and ``InvalidTransition`` if the workflow has ended.
    """
    check_reason(reason)
    held = 0
    with _locked(workflow_id) as flow:
        _refuse_ended(flow, sentence("it can no longer be paused"))
        flow.paused, flow.paused_by, flow.paused_reason = True, by[:USER_LENGTH], reason
        flow.paused_at = flow.paused_at or clock()
        flow.save(update_fields=["paused", "paused_by", "paused_reason", "paused_at"])
        while ids := rows.ids_in(flow.id, {Status.QUEUED, Status.SCHEDULED}, BATCH):
            tasks = rows.hold_back(ids)
            held += len(tasks)
            remove_on_commit(tasks)  # a resume may release them before: to their old places
            if not tasks:  # they began meanwhile
                break
        _record("pause", flow, held, by, via, reason)
    return held


def resume_workflow(workflow_id: Id, *, by: str = "", via: str = audit.CODE, reason: str = "") -> int:
    """Release the tasks of a paused workflow; return how many. Raises ``WorkflowNotFound``."""
    with _locked(workflow_id) as flow:
        flow.paused, flow.paused_by, flow.paused_reason, flow.paused_at = False, "", "", None
        flow.save(update_fields=["paused", "paused_by", "paused_reason", "paused_at"])
        released = batch = 0 if flow.finished_at is not None else make_room(flow)
        while batch == BATCH:
            batch = make_room(flow)
            released += batch
        _record("resume", flow, released, by, via, reason)
    settle_later([flow.id])
    return released


def retry_workflow(workflow_id: Id, *, by: str, via: str = audit.CODE, reason: str = "") -> int:
    """Run the tasks again that ended without success, in their order; return how many.

    Dead letters are replayed. Of a workflow that is or was undone, only compensations run again: never those that a
    person made by hand, and skipped ones only after the end. Raises ``WorkflowNotFound``, and ``InvalidTransition`` if
    the workflow was undone.
    """
    with _locked(workflow_id) as flow:
        ended = rows.ids_in(flow.id, _AGAIN, 2 * flow.nodes)
        ids = rows.without_skipped(ended)
        if rows.is_undone(flow.id):
            decided = {Closed.DONE} if flow.finished_at is not None else {Closed.DONE, Closed.SKIPPED}
            ids = ended = [one for one, how in rows.compensations_among(ids).items() if how not in decided]
            if not ids:
                raise InvalidTransition(
                    sentence("What had completed was undone; enqueue a new workflow."), status=flow.state
                )
        letters = DeadLetter.objects.using(alias()).open().filter(task_id__in=ids).order_by("id")
        replayed = replay_open(list(letters.select_for_update().values_list("id", flat=True)), by=by)
        again = {task.id for _, task in replayed} | requeue(ids)
        if skipped := set(ended) - set(ids):
            advance(dict.fromkeys(skipped, Status.CANCELLED))
        _record("retry", flow, len(again), by, via, reason)
    settle_later([flow.id])
    return len(again)


def reprioritise_workflow(
    workflow_id: Id, band: Band | str, *, by: str = "", via: str = audit.CODE, reason: str = ""
) -> int:
    """Move all waiting tasks of a workflow to a band, or its name; return how many. Raises ``WorkflowNotFound``."""
    priority = parse_band(band)
    done = 0
    with _locked(workflow_id) as flow:
        for ids in rows.waiting_in_other_bands(flow.id, priority, BATCH):
            changed = waiting.reprioritise(ids, priority)
            push_on_commit([task.entry for status, task in changed if status is Status.QUEUED])
            done += len(changed)
        _record("reprioritise", flow, done, by, via, reason, priority=Band(priority).label)
    return done


def _record(  # noqa: PLR0913, PLR0917 - the columns of a record
    action: str, flow: Workflow, tasks: int, by: str, via: str, reason: str, **more: str
) -> None:
    reason = check_reason(reason)
    audit.record(
        f"workflow.{action}", "workflow", [flow.pk], by=by, via=via, after={"tasks": tasks, **more}, reason=reason
    )


@contextmanager
def _locked(workflow_id: Id) -> Iterator[Workflow]:
    """Run a block in one transaction that has a workflow alone; raise ``WorkflowNotFound``."""
    found: uuid.UUID = parse_id(workflow_id)
    with atomic():
        workflow_advance.lock([found])
        flow = Workflow.objects.using(alias()).select_for_update().filter(pk=found).first()
        if flow is None:
            raise WorkflowNotFound(f"There is no workflow {workflow_id}.")
        yield flow


def _refuse_ended(flow: Workflow, why: str) -> None:
    if flow.finished_at is not None:
        _refuse(flow, why)


def _refuse(flow: Workflow, why: str) -> NoReturn:
    text = sentence("The workflow is %(state)s; %(why)s.", state=sentence(flow.state), why=why)
    raise InvalidTransition(text, status=flow.state)


def _require(reason: str) -> None:
    """Raise ``InvalidTaskData`` for a reason that is missing or too long."""
    if not check_reason(reason):
        raise InvalidTaskData("reason", "Give a reason: it tells the next person why.", code="required")
