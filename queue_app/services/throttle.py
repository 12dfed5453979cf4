"""Task code was told to slow down: its task goes back to its place, and one of its gates closes for a while.

Crash points: before the commit nothing has happened, and the attempt still runs, or is
reaped. After it, the reconciler copies the limit, then puts the task back: so it does not
start before the time in the row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from queue_app.core.limits import Scope, gate_of
from queue_app.core.records import ClaimedTask, Outcome, TaskRef
from queue_app.core.states import Status
from queue_app.index import Index
from queue_app.rows import audit, throttle
from queue_app.rows import claim as claim_rows

type Attempt = tuple[uuid.UUID, int]
type Gate = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Throttled:
    """What went back to its place, and which gates closed."""

    held: dict[Attempt, Status] = field(default_factory=dict)
    tasks: list[TaskRef] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)


def write(outcomes: Sequence[Outcome]) -> Throttled:
    """Put the tasks back, and close the gates of those that were still held, in the caller's transaction."""
    by_id = {outcome.task.id: outcome for outcome in outcomes}
    returned = claim_rows.give_back([outcome.task for outcome in by_id.values()])
    longest: dict[Gate, float] = {}
    for _, ref in returned:
        outcome = by_id[ref.id]
        if outcome.throttle is not None:
            gate = _gate(outcome.task, outcome.throttle.scope)
            longest[gate] = max(longest.get(gate, 0.0), outcome.throttle.seconds)
    gates = sorted(longest)  # in the same order by everybody
    for gate in gates:
        throttle.close(*gate, longest[gate])
    return Throttled(
        {(ref.id, by_id[ref.id].task.attempt): status for status, ref in returned},
        [ref for status, ref in returned if status is Status.QUEUED],
        gates,
    )


def copy_gates(index: Index, throttled: Throttled) -> None:
    """Tell the index which gates closed: before the slots are free."""
    for scope, name in throttled.gates:
        index.copy_limits(gate_of(scope, name), audit.limits_of(scope, name))


def _gate(task: ClaimedTask, scope: str) -> Gate:
    names = {Scope.QUEUE: task.queue, Scope.TYPE: task.task_type, Scope.KEY: task.concurrency_key}
    return scope, names[Scope(scope)]
