"""Read the tasks of a workflow and which waits for which; or the tasks next to one of them."""

import json
import sys
import uuid
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.core.states import Status
from queue_app.sql.database import fetch_all, fetch_column
from queue_app.sql.workflow_settle import HOLDING

#: For ``pending_work``.
ANY_OPEN: Final = "EXISTS (SELECT FROM queue_app_workflow WHERE finished_at IS NULL)"
#: The letter of each state in the answer.
_LETTERS: Final = {status.value: chr(ord("a") + place) for place, status in enumerate(Status)}
_LETTER: Final = "CASE status {} END".format(" ".join(f"WHEN '{name}' THEN '{_LETTERS[name]}'" for name in _LETTERS))

# A hundred thousand tasks, in one snapshot: numbers instead of ids, and columns instead of rows, which Python reads at
# the speed of memory. A task's number is its place among the ids. Times that are missing are infinite.
_GRAPH: Final = f"""
WITH own AS MATERIALIZED (
    SELECT id, row_number() OVER (ORDER BY id) - 1 AS number, task_type, status, started_at, finished_at
    FROM queue_app_task WHERE workflow_id = %s
), kinds AS (
    SELECT task_type, row_number() OVER () - 1 AS kind FROM (SELECT DISTINCT task_type FROM own) AS known
), tasks AS (
    SELECT * FROM own JOIN kinds USING (task_type) ORDER BY number
), edges AS (
    SELECT after.number AS after, before.number AS before, edge.condition
    FROM queue_app_taskdependency AS edge JOIN own AS after ON after.id = edge.after_id
        JOIN own AS before ON before.id = edge.before_id
    ORDER BY after.number, before.number
)
SELECT
    (SELECT string_agg(uuid_send(id), ''::bytea) FROM tasks),
    (SELECT array_agg(task_type ORDER BY kind) FROM kinds),
    (SELECT string_agg(int4send(kind::int), ''::bytea) FROM tasks),
    (SELECT string_agg({_LETTER}, '') FROM tasks),
    (SELECT string_agg(float8send(COALESCE(EXTRACT(EPOCH FROM started_at)::float8, 'Infinity')), ''::bytea) FROM tasks),
    (SELECT string_agg(float8send(COALESCE(EXTRACT(EPOCH FROM finished_at)::float8, 'Infinity')), ''::bytea)
        FROM tasks),
    edge.after, edge.before, edge.conditions,
    (SELECT jsonb_agg(jsonb_build_array(own.number, node.name, node.compensates IS NOT NULL, undone.number))::text
        FROM own JOIN queue_app_workflownode AS node ON node.task_id = own.id
            LEFT JOIN own AS undone ON undone.id = node.compensates)
FROM (
    SELECT string_agg(int4send(after::int), ''::bytea) AS after, string_agg(int4send(before::int), ''::bytea) AS before,
        string_agg(left(condition, 2), '') AS conditions FROM edges
) AS edge
"""
_NODES: Final = """
SELECT t.id, t.task_type, COALESCE(node.name, ''), t.status, node.compensates
FROM queue_app_task AS t LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
WHERE t.workflow_id = %s ORDER BY t.id
"""
# Counted only so far: a list of workflows must not read a million rows.
_PENDING: Final = """
SELECT flow.id, (SELECT count(*) FROM (
    SELECT FROM queue_app_task AS t WHERE t.workflow_id = flow.id
        AND t.status IN ('blocked', 'executing', 'queued', 'scheduled') LIMIT %s) AS first)
FROM unnest(%s::uuid[]) AS flow (id)
"""
_WAITS_FOR: Final = """
SELECT before.id, before.task_type, COALESCE(node.name, ''), before.status, edge.condition
FROM queue_app_taskdependency AS edge JOIN queue_app_task AS before ON before.id = edge.before_id
    LEFT JOIN queue_app_workflownode AS node ON node.task_id = before.id
WHERE edge.after_id = %s AND NOT edge.met AND NOT (before.status = 'completed' AND edge.condition <> 'failure')
ORDER BY before.id LIMIT %s
"""
_STATES: Final = {letter: name for name, letter in _LETTERS.items()}
_CONDITIONS: Final = {name[:2]: name for name in ("hold", "cancel", "continue", "failure")}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The tasks of a workflow by their numbers, which rise with their ids, and its edges ordered by ``after``."""

    ids: bytes
    kinds: list[str]  # task types
    kind_of: array[int]
    states: list[str]
    started: array[float]  # seconds since 1970; infinite: not yet
    finished: array[float]
    after: array[int]
    before: array[int]
    conditions: list[str]
    names: dict[int, str]
    undoing: dict[int, int | None]  # compensation -> the task that it undoes

    def id_of(self, number: int) -> uuid.UUID:
        return uuid.UUID(bytes=self.ids[16 * number : 16 * number + 16])


def read(workflow_id: uuid.UUID) -> Nodes:
    """Return the tasks of a workflow, and which waits for which."""
    [row] = fetch_all(_GRAPH, [workflow_id])
    ids, kinds, kind_of, letters, started, finished, after, before, conditions, extras = row
    named = json.loads(extras or "[]")
    return Nodes(
        ids=bytes(ids or b""),
        kinds=kinds or [],
        kind_of=_numbers("i", kind_of),
        states=[_STATES[letter] for letter in letters or ""],
        started=_numbers("d", started),
        finished=_numbers("d", finished),
        after=_numbers("i", after),
        before=_numbers("i", before),
        conditions=[_CONDITIONS[text] for text in map("".join, zip(*[iter(conditions or "")] * 2, strict=True))],
        names={number: name for number, name, *_ in named if name},
        undoing={number: undone for number, _, undoes, undone in named if undoes},
    )


def _numbers(code: str, sent: Any) -> array[Any]:
    """Return numbers that PostgreSQL has sent, the most significant byte first."""
    found: array[Any] = array(code, bytes(sent or b""))
    if sys.byteorder == "little":
        found.byteswap()
    return found


class GraphNode(NamedTuple):
    """A task of a workflow."""

    id: uuid.UUID
    task_type: str
    name: str
    status: str
    compensates: uuid.UUID | None


def nodes(workflow_id: uuid.UUID) -> list[GraphNode]:
    """Return the tasks of a small workflow, oldest first."""
    return [GraphNode(*row) for row in fetch_all(_NODES, [workflow_id])]


def pending(workflow_ids: Collection[uuid.UUID], limit: int) -> dict[uuid.UUID, int]:
    """Return {workflow: number of tasks that have not ended, at most ``limit``}."""
    return dict(fetch_all(_PENDING, [limit, list(workflow_ids)]))


def waits_for(task_id: uuid.UUID, limit: int) -> list[tuple[uuid.UUID, str, str, str, str]]:
    """Return (id, type, name, status, condition) of at most ``limit`` tasks for which a task waits."""
    return fetch_all(_WAITS_FOR, [task_id, limit])


_TASK: Final = """
SELECT t.id, COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')), t.status, {}
FROM {} LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id WHERE {} ORDER BY t.id LIMIT %s
"""
_EDGE: Final = "queue_app_taskdependency AS edge JOIN queue_app_task AS t ON t.id = edge.{end}_id"
_NODE: Final = "queue_app_workflownode AS node_of JOIN queue_app_task AS t ON t.id = node_of.{other}"
#: Kind of neighbours -> (the condition of the edge, where the neighbours are, how the task names them).
_NEIGHBOURS: Final = {
    "parents": ("edge.condition", _EDGE.format(end="before"), "edge.after_id = %s"),
    "children": ("edge.condition", _EDGE.format(end="after"), "edge.before_id = %s"),
    "undoes": ("''", _NODE.format(other="compensates"), "node_of.task_id = %s"),
    "undone_by": (
        "''",
        """queue_app_task AS own
        JOIN queue_app_workflownode AS undoable ON undoable.task_id = own.id AND undoable.compensation IS NOT NULL
        JOIN queue_app_task AS t ON t.workflow_id = own.workflow_id
        JOIN queue_app_workflownode AS undo ON undo.task_id = t.id AND undo.compensates = own.id""",
        "own.id = %s",
    ),
    "added_by": ("''", _NODE.format(other="added_by"), "node_of.task_id = %s"),
}


class Link(NamedTuple):
    """A task next to another; ``condition`` says what one must do for the other to run."""

    id: uuid.UUID
    name: str
    status: str
    condition: str


def neighbours(task_id: uuid.UUID, limit: int) -> dict[str, list[Link]]:
    """Return at most ``limit`` neighbours of each kind, by kind, without the kinds that have none."""
    links = {
        kind: [Link(*row) for row in fetch_all(_TASK.format(*parts), [task_id, limit])]
        for kind, parts in _NEIGHBOURS.items()
    }
    return {kind: some for kind, some in links.items() if some}


def members(workflow_id: uuid.UUID, ids: Collection[str]) -> list[uuid.UUID]:
    """Return those of the tasks that belong to a workflow."""
    sql = "SELECT id FROM queue_app_task WHERE id = ANY(%s::uuid[]) AND workflow_id = %s"
    return fetch_column(sql, [list(ids), workflow_id])


# Find workflows that a failed task holds, and the tasks that hold them.

_HELD: Final = f"""
SELECT flow.id, flow.name, EXTRACT(EPOCH FROM statement_timestamp() - flow.held_at)::float8, flow.number,
    COALESCE(holding.name, ''), COALESCE(holding.status, '')
FROM (
    SELECT *, count(*) OVER () AS number FROM queue_app_workflow
    WHERE held_at IS NOT NULL AND {{chosen}} ORDER BY held_at LIMIT %s
) AS flow LEFT JOIN LATERAL (
    SELECT COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')) AS name, t.status
    FROM queue_app_task AS t LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
    WHERE {HOLDING} ORDER BY t.finished_at LIMIT 1
) AS holding ON true
ORDER BY flow.held_at
"""
_LONG_HELD: Final = _HELD.format(chosen="held_at <= statement_timestamp() - make_interval(secs => %s)")
_HELD_AMONG: Final = _HELD.format(chosen="id = ANY(%s)")
_AWAITED: Final = """
SELECT t.workflow_id, t.id, COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')),
    step.signal, step.until
FROM queue_app_task AS t JOIN queue_app_stepresult AS step ON step.task_id = t.id
    LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
WHERE t.workflow_id = ANY(%s) AND t.status = 'blocked' AND t.attempt > 0 AND step.done_at IS NULL AND step.signal <> ''
ORDER BY t.id LIMIT %s
"""
_HOLDING: Final = f"""
SELECT t.id, COALESCE(NULLIF(node.name, ''), substring(t.task_type FROM '[^.]*$')), t.status, t.finished_at,
    letter.id, letter.exception_class, letter.message, node.compensates IS NOT NULL
FROM queue_app_workflow AS flow JOIN queue_app_task AS t ON {HOLDING}
    LEFT JOIN queue_app_workflownode AS node ON node.task_id = t.id
    LEFT JOIN queue_app_deadletter AS letter
        ON letter.task_id = t.id AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL
WHERE flow.id = %s AND flow.finished_at IS NULL ORDER BY t.finished_at, t.id LIMIT %s
"""

_HOLDS: Final = f"""
SELECT FROM queue_app_workflow AS flow JOIN queue_app_task AS t ON {HOLDING}
WHERE t.id = %s AND flow.id = %s AND flow.finished_at IS NULL
"""


class HeldWorkflow(NamedTuple):
    """A workflow that a failed task holds, for how long, and the task that has held it longest."""

    id: uuid.UUID
    name: str
    seconds: float
    number: int  # of held workflows in all
    task: str  # name of the task, empty if it no longer holds the workflow
    status: str


class Holding(NamedTuple):
    """A task that holds its workflow, and its open dead letter, if it has one. The message is not redacted."""

    id: uuid.UUID
    name: str
    status: str
    finished_at: datetime | None
    letter_id: uuid.UUID | None
    exception_class: str | None
    message: str | None
    undoes: bool  # it is a compensation


def held(limit: int, *, seconds: float = 0) -> list[HeldWorkflow]:
    """Return at most ``limit`` workflows that have been held for ``seconds``, the longest first."""
    return [HeldWorkflow(*row) for row in fetch_all(_LONG_HELD, [seconds, limit])]


def holding(workflow_id: uuid.UUID, limit: int) -> list[Holding]:
    """Return at most ``limit`` tasks that hold a workflow, the first to end first."""
    return [Holding(*row) for row in fetch_all(_HOLDING, [workflow_id, limit])]


def holds(task_id: uuid.UUID, workflow_id: uuid.UUID) -> bool:
    """Return whether a task holds its workflow."""
    return bool(fetch_all(_HOLDS, [task_id, workflow_id]))


def held_among(workflow_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, HeldWorkflow]:
    """Return those of the workflows that a failed task holds."""
    found = [HeldWorkflow(*row) for row in fetch_all(_HELD_AMONG, [list(workflow_ids), len(workflow_ids)])]
    return {each.id: each for each in found}


class AwaitedSignal(NamedTuple):
    """A task that waits for a signal."""

    workflow_id: uuid.UUID
    task_id: uuid.UUID
    task: str  # its name
    signal: str
    until: datetime | None


def awaited(workflow_ids: Collection[uuid.UUID], limit: int) -> list[AwaitedSignal]:
    """Return at most ``limit`` tasks of workflows that wait for a signal, oldest first."""
    return [AwaitedSignal(*row) for row in fetch_all(_AWAITED, [list(workflow_ids), limit])]
