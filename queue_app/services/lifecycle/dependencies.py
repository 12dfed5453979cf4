"""Decide about workflows as a whole: their end, what holds them, room under their caps, compensations.

The finish of a task calls ``settle`` after its commit, and the scheduler settles every open workflow again and again.
Each decision is one transaction that has the lock of the workflow alone, so no end of a task falls in between.

Crash points: before the commit of a decision nothing has happened, and the scheduler repeats it.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from django.db import DatabaseError

from queue_app.core.events import EventName, occasion_of
from queue_app.core.graph import Graph, NodeExtra, sharded
from queue_app.core.records import NewTask, TaskRef
from queue_app.core.states import Status
from queue_app.encryption import SHARED, opened_if
from queue_app.exceptions import in_one_line
from queue_app.index import Index
from queue_app.models import Workflow
from queue_app.models.workflow import Closed, Condition, OnFailure, WorkflowState
from queue_app.services.enqueue.store import announce, ensure_queues
from queue_app.services.enqueue.validate import check_task
from queue_app.services.notify import events
from queue_app.services.notify.index import on_commit, remove_on_commit
from queue_app.sql import workflow_advance, workflow_settle as rows, workflow_store
from queue_app.sql.database import alias, atomic, call_on_commit, clock
from queue_app.sql.search import traces
from queue_app.sql.waiting import cancel as cancel_rows
from queue_app.telemetry import tracing

#: Maximum number of tasks that one decision cancels, or lets go.
BATCH = 5000
#: Maximum number of gaps that a workflow names.
MAX_GAPS = 1000

logger = logging.getLogger("taskqueue")


def settle_later(workflows: Collection[uuid.UUID]) -> None:
    """Settle workflows after the caller's transaction has committed; a failure is left to the scheduler."""
    if workflows:
        call_on_commit(lambda: _settle_quietly(workflows))


def _settle_quietly(workflows: Collection[uuid.UUID]) -> None:
    try:
        settle_all(rows.wanted(workflows))
    except DatabaseError as error:  # the server is away, which is no fault of a workflow
        logger.warning("Workflows were not settled; the scheduler does it: %s", in_one_line(error))


def settle_all(workflows: Iterable[uuid.UUID]) -> None:
    """Decide about each workflow; log an error of one, so that the others have their turn. Raises database errors."""
    left = set(workflows)
    if len(left) > 1:
        with atomic():
            workflow_advance.lock(left)
            left -= rows.complete(left)
    for workflow_id in left:
        try:
            settle_one(workflow_id)
        except DatabaseError:
            raise
        except Exception:
            logger.exception("The workflow %s could not be settled; the scheduler tries again", workflow_id)


def settle_one(workflow_id: uuid.UUID) -> None:
    """Decide about one workflow."""
    with atomic():
        workflow_advance.lock([workflow_id])
        flow = Workflow.objects.using(alias()).select_for_update().filter(pk=workflow_id).first()
        if flow is None or flow.finished_at is not None:
            return
        idle, held, failed, cancelled = rows.verdict(workflow_id)
        if flow.state == WorkflowState.RUNNING:
            if failed and flow.on_failure == OnFailure.CANCEL and flow.cancel_requested_at is None:
                request_cancel(flow, "a task failed")
            if flow.cancel_requested_at is not None and not idle:
                cancel_batch(flow)
                return
        if not flow.paused:
            make_room(flow)
        if flow.state == WorkflowState.COMPENSATING:
            record_gaps(flow)
        _end(flow, failed=failed, cancelled=cancelled) if idle and not held else _hold(flow, held=held)


def queued_again(tasks: Sequence[TaskRef]) -> set[uuid.UUID]:
    """Let the workflows of tasks run again that staff queued again; return the tasks that must still wait.

    The caller holds the locks of the workflows alone.
    """
    workflows = {task.workflow_id for task in tasks if task.workflow_id is not None}
    if not workflows:
        return set()
    ids = [task.id for task in tasks if task.workflow_id is not None]
    rows.reopen(workflows)
    rows.close(ids, "", "")
    blocked = rows.block_unready(ids) | workflow_advance.close(ids, for_room=True)
    settle_later(workflows)
    return blocked


def request_cancel(flow: Workflow, reason: str) -> None:
    """Record the cancellation of a locked workflow; none of its tasks is opened after that."""
    flow.cancel_requested_at, flow.cancel_reason = clock(), reason
    flow.save(update_fields=["cancel_requested_at", "cancel_reason"])


def cancel_batch(flow: Workflow) -> int:
    """Cancel tasks of a locked workflow, startable ones first; return how many."""
    ids = rows.ids_in(flow.id, {Status.QUEUED, Status.SCHEDULED, Status.EXECUTING}, BATCH)
    ids += rows.ids_in(flow.id, {Status.BLOCKED}, BATCH - len(ids)) if len(ids) < BATCH else []
    cancelled = cancel_rows(sorted(ids))
    notify_cancelled(cancelled)
    return len(cancelled)


def stop_compensations(flow: Workflow, reason: str) -> int:
    """Give up all compensations of a locked workflow that have not completed; return how many tasks stay as they are.

    The running one is asked to stop.
    """
    undoing = rows.compensations_of(flow.id)
    rows.close(undoing, Closed.STOPPED, reason)
    for start in range(0, len(undoing), BATCH):
        notify_cancelled(cancel_rows(undoing[start : start + BATCH], undoing=True))
    record_gaps(flow)
    return len(rows.not_undone(flow.id))


def record_gaps(flow: Workflow) -> None:
    """Record which completed tasks of a locked workflow stay as they are."""
    gaps = [
        {"task_id": str(task_id), "name": name, "reason": why}
        for task_id, name, status, closed, why in rows.not_undone(flow.id)
        if closed or status is Status.CANCELLED
    ][:MAX_GAPS]
    if gaps != flow.gaps:
        flow.gaps = gaps
        flow.save(update_fields=["gaps"])


def notify_cancelled(cancelled: Sequence[tuple[Status, uuid.UUID | None, TaskRef]]) -> None:
    """Notify index, workers and listeners of cancelled tasks, each with its status before and its worker, on commit."""
    queued = [task for before, _, task in cancelled if before is Status.QUEUED]
    if queued:
        remove_on_commit(queued)
    workers = {worker for before, worker, _ in cancelled if before is Status.EXECUTING and worker is not None}
    if workers:
        on_commit(Index.notify_workers, "tell", workers)
    ended = [task for before, _, task in cancelled if before is not Status.EXECUTING]
    if ended:
        events.publish_on_commit((occasion_of(EventName.CANCELLED, task, Status.CANCELLED), task.id) for task in ended)


def make_room(flow: Workflow) -> int:
    """Release tasks of a locked workflow that a pause or its cap held back; return how many."""
    room = BATCH
    if flow.max_concurrent is not None:
        room = min(BATCH, flow.max_concurrent - rows.running(flow.id))
    if room <= 0:
        return 0
    released = rows.release(flow.id, room)
    events.push_queued_again([task for status, task in released if status is Status.QUEUED])
    return len(released)


def _hold(flow: Workflow, *, held: bool) -> None:
    held_at = (flow.held_at or clock()) if held else None
    if held_at != flow.held_at:
        flow.held_at = held_at
        flow.save(update_fields=["held_at"])


def _end(flow: Workflow, *, failed: bool, cancelled: bool) -> None:
    """End a locked workflow that has no pending task; if it failed or was cancelled, first add its compensations."""
    if flow.state == WorkflowState.COMPENSATING:
        decided = {Closed.SKIPPED, Closed.DONE}
        is_done = all(closed in decided for *_, closed, _ in rows.not_undone(flow.id))
        state = WorkflowState.COMPENSATED if is_done else WorkflowState.FAILED
    elif flow.cancel_requested_at is not None and not failed:
        state = WorkflowState.CANCELLED
    elif failed:
        state = WorkflowState.FAILED
    else:
        state = WorkflowState.CANCELLED if cancelled else WorkflowState.COMPLETED
    flow.held_at = None
    if state != WorkflowState.COMPLETED and _compensate(flow):
        return
    flow.state, flow.finished_at = state, clock()
    flow.save(update_fields=["state", "finished_at", "held_at"])


def _compensate(flow: Workflow) -> bool:
    """Add the compensations of the completed tasks as a chain, newest first; return whether there are any."""
    calls = rows.undoable(flow.id)
    if not calls:
        return False
    graph = undoing(calls)
    flow.state = WorkflowState.COMPENSATING
    flow.save(update_fields=["state", "held_at"])
    at: datetime = clock()
    queues = ensure_queues(graph.rows)
    blocked = {after: False for after, _ in graph.edges} | ({graph.rows[0].id: True} if flow.paused else {})
    undone = calls[0][0]
    with tracing.continuing(traces([undone]).get(undone)):  # what undoes the workflow belongs to its trace
        announce(workflow_store.insert_graph(graph, flow.id, blocked, at, sharded(graph.edges)), queues)
    return True


def undoing(calls: Iterable[tuple[uuid.UUID, str]]) -> Graph:
    """Return a chain of new tasks, of (the task that one undoes, its stored call)."""
    graph = Graph()
    for task_id, text in calls:
        row = check_task(NewTask(**json.loads(opened_if(text, SHARED))))
        if graph.rows:
            graph.edges[row.id, graph.rows[-1].id] = Condition.HOLD.value
        graph.rows.append(row)
        graph.extras[row.id] = NodeExtra(compensates=task_id)
    return graph
