"""Advance workflows in the transaction in which their tasks change.

Every transition that ends a task of a workflow, or returns it to the queue, calls ``advance`` before it commits: the
end of a task and what follows from it are one. What follows for the workflow as a whole (its end, room under its cap,
compensations) is decided after the commit, by ``services.lifecycle.dependencies``.

Crash points: before the commit nothing has happened. Between the commit and the push, opened tasks are queued but not
indexed, and the reconciler pushes them. Before ``settle``, the workflow looks unfinished until the scheduler settles
it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from queue_app.core.events import EventName, occasion_of
from queue_app.core.states import FAILURES, TERMINAL, Status
from queue_app.models.workflow import Closed, Condition
from queue_app.services.notify import events
from queue_app.sql import workflow_advance as rows, workflow_settle
from queue_app.sql.database import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_app.core.records import AttemptKey, Outcome, Returned, TaskRef

type Changes = Mapping[uuid.UUID, Status]

#: Conditions that the end of a task in a state meets; all others it leaves waiting, or dooms.
MET: Final = {
    Status.COMPLETED: frozenset({Condition.HOLD, Condition.CANCEL, Condition.CONTINUE}),
    Status.CANCELLED: frozenset({Condition.CONTINUE}),
    **dict.fromkeys(FAILURES, frozenset({Condition.CONTINUE, Condition.FAILURE})),
}
DOOMING: Final = {
    Status.COMPLETED: frozenset({Condition.FAILURE}),
    Status.CANCELLED: frozenset({Condition.HOLD, Condition.CANCEL, Condition.FAILURE}),
    **dict.fromkeys(FAILURES, frozenset({Condition.CANCEL})),
}


@contextmanager
def changing(ids: Collection[uuid.UUID], *, alone: bool = False) -> Iterator[set[uuid.UUID]]:
    """Run a block in one transaction that holds the locks of the workflows of these tasks; yield the workflows.

    ``alone`` excludes other transactions that end their tasks; otherwise these share the locks. For tasks in no
    workflow there is no transaction.
    """
    workflows = rows.workflows_of(ids) if ids else set()
    with atomic() if workflows else nullcontext():
        if workflows:
            (rows.lock if alone else rows.share)(workflows)
        yield workflows


def share(workflows: Iterable[uuid.UUID | None]) -> set[uuid.UUID]:
    """Share the locks of the workflows among these until the transaction ends; return the workflows."""
    found = {workflow_id for workflow_id in workflows if workflow_id is not None}
    if found:
        rows.share(found)
    return found


def advance(changes: Changes) -> set[uuid.UUID]:
    """Let workflows continue after their tasks changed to these states in this transaction.

    Returns the tasks that were queued or scheduled and must wait for the end of a pause. The caller holds the locks of
    the workflows. Tasks in no workflow may be among them.
    """
    held: set[uuid.UUID] = set()
    met: list[rows.Met] = []
    if undone := [task_id for task_id, status in changes.items() if status is not Status.COMPLETED]:
        met += rows.drop_added(undone)
    if again := [task_id for task_id, status in changes.items() if status in {Status.QUEUED, Status.SCHEDULED}]:
        held = rows.close(again, for_room=False)
    ended = {task_id: status for task_id, status in changes.items() if status in TERMINAL}
    while ended or met:
        edges = rows.edges_from(ended) if ended else []
        met += _met(edges, ended)
        if met:
            push_opened(rows.go_on(met))
        doomed = {after for before, after, _, condition, _ in edges if condition in DOOMING[ended[before]]}
        ended = _cancelled(rows.cancel_doomed(doomed)) if doomed else {}
        met.clear()
    return held


def complete(outcomes: Sequence[Outcome]) -> tuple[list[AttemptKey], set[uuid.UUID]]:
    """Complete tasks and continue their workflows in one statement; return the attempts, and the workflows.

    Of the workflows, only those are returned that may have ended, or have room under their cap: nothing was queued in
    them. Attempts that lost their task change nothing (``sql.workflow_advance.complete``).
    """
    workflows = {one.task.workflow_id for one in outcomes if one.task.workflow_id is not None}
    done, opened = rows.complete(workflows, outcomes)
    push_opened(opened)
    going_on = {task.workflow_id for status, task in opened if status is not Status.BLOCKED}
    return done, workflows - going_on


def advance_returned(returned: Iterable[Returned]) -> set[uuid.UUID]:
    """Advance after attempts ended without an outcome; take the locks of the workflows, and return these."""
    of_workflow = [each for each in returned if each.task.workflow_id is not None]
    workflows = share(each.task.workflow_id for each in of_workflow)
    if workflows:
        advance({each.task.id: each.status for each in of_workflow})
    return workflows


def advance_ended(tasks: Iterable[TaskRef], status: Status) -> None:
    """Advance after tasks ended in a state without having run; take the locks of the workflows."""
    of_workflow = [task for task in tasks if task.workflow_id is not None]
    if share(task.workflow_id for task in of_workflow):
        advance({task.id: status for task in of_workflow})


def give_up(ids: Collection[uuid.UUID], how: Closed = Closed.SKIPPED, reason: str = "") -> bool:
    """Cancel the tasks that wait for these, which failed for good; return whether anything changed.

    What waits for a compensation goes on: the others are still made.
    """
    undoing = set(workflow_settle.close(ids, how, reason))
    edges = [edge for edge in rows.edges_from(ids) if edge[3] == Condition.HOLD]
    if going_on := [edge for edge in edges if edge[0] in undoing]:
        rows.meet((after, before) for before, after, *_ in going_on)
        push_opened(rows.go_on([(after, shard, int(is_counted)) for _, after, shard, _, is_counted in going_on]))
    waiting = [edge[1] for edge in edges if edge[0] not in undoing]
    cancelled = rows.cancel_doomed(waiting) if waiting else []
    advance(_cancelled(cancelled))
    return bool(undoing or cancelled)


def push_opened(opened: Iterable[tuple[Status, TaskRef]]) -> int:
    """Push the queued ones among tasks that were opened; return how many."""
    queued = [task for status, task in opened if status is Status.QUEUED]
    events.push_queued_again(queued)
    return len(queued)


def _met(edges: Iterable[rows.EdgeRow], ended: Changes) -> list[rows.Met]:
    """Return the edges that the ends satisfy; mark the edges that another end than completion satisfies."""
    found = [edge for edge in edges if edge[3] in MET[ended[edge[0]]]]
    early = [(after, before) for before, after, *_ in found if ended[before] is not Status.COMPLETED]
    if early:
        rows.meet(early)
    return [(after, shard, int(is_counted)) for _, after, shard, _, is_counted in found]


def _cancelled(tasks: Collection[TaskRef]) -> dict[uuid.UUID, Status]:
    events.publish_on_commit((occasion_of(EventName.CANCELLED, task, Status.CANCELLED), task.id) for task in tasks)
    return {task.id: Status.CANCELLED for task in tasks}
