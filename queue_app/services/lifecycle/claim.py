"""Claim tasks for a worker, and give claimed tasks back: the index proposes, the row decides.

Crash points: after the index leased and before the rows accepted, the leases belong to rows that
are still queued, and the reconciler puts them back; no attempt is spent. After the rows accepted,
the tasks are executing under a dead worker, and the reaper returns them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from django.db import DatabaseError

from queue_app.core.records import ANY_LEASE, ClaimedTask, Proposal, TaskRef
from queue_app.core.states import Status
from queue_app.exceptions import IndexNotReady, IndexUnavailable
from queue_app.index import Index, Lease, Profile, get_index
from queue_app.services.notify import events
from queue_app.services.notify.index import breaker, notify_index
from queue_app.sql import claim as claim_rows
from queue_app.sql import snapshot

#: Maximum time between the call of the index and that of the rows. A later proposal is given up, because the
#: reconciler may soon take its leases for abandoned.
PROPOSAL_SECONDS = 10.0
#: Maximum number of claim rounds per call. The rows may refuse a whole batch when the index is behind and proposes
#: tasks that have ended; the next round then reaches the tasks behind them.
REFUSED_ROUNDS = 100
NO_LEASES: Final[Mapping[uuid.UUID, int]] = MappingProxyType({})


def claim(
    profile: Profile,
    worker_id: uuid.UUID,
    want: int,
    *,
    register_idle: bool = True,
    on_wait: Callable[[float], object] | None = None,
) -> list[ClaimedTask]:
    """Return up to ``want`` tasks that now belong to this worker, most urgent first.

    With ``register_idle`` the index wakes the worker when more tasks arrive, if it got fewer. ``on_wait`` is
    called with the seconds until a limit allows another start, when this worker must then claim again.
    Raises ``IndexNotReady``, ``UnknownProfile`` and ``IndexUnavailable``.
    """
    for _ in range(REFUSED_ROUNDS):
        tasks = _claim_once(profile, worker_id, want, register_idle=register_idle, on_wait=on_wait)
        if tasks is not None:
            return tasks
    return []


def _claim_once(
    profile: Profile,
    worker_id: uuid.UUID,
    want: int,
    *,
    register_idle: bool,
    on_wait: Callable[[float], object] | None,
) -> list[ClaimedTask] | None:
    """Return the tasks that the rows grant of one proposal; ``None`` when the rows refuse all of it."""
    index = get_index()
    asked_at = time.monotonic()
    proposal = index.claim(profile, worker_id, want, register_idle=register_idle)
    breaker.reset()  # the index answers: held-back releases would now cost slots
    if proposal.wait is not None and on_wait is not None:
        on_wait(proposal.wait)
    if not proposal.tasks:
        return []
    granted: list[ClaimedTask] = []
    in_time = time.monotonic() - asked_at < PROPOSAL_SECONDS
    if in_time:
        granted = claim_rows.claim(
            [task_id for task_id, _ in proposal.tasks], worker_id, proposal.generation, proposal.leased_at
        )
    if len(granted) < len(proposal.tasks):
        try:
            _withdraw(proposal, {task.id for task in granted})
        except (IndexUnavailable, DatabaseError):
            if not granted:  # granted tasks must reach the worker; the reconciler then ends the other leases
                raise
    if not granted:
        return None if in_time else []
    events.started(granted)
    return granted


def _withdraw(proposal: Proposal, granted: set[uuid.UUID]) -> None:
    """End the leases of the tasks that the rows refused.

    An executing row keeps its lease: another worker was granted the task, and the lease counts for that worker.
    When nothing was granted because the index and the rows are of different generations, queued tasks go back to
    their places. Otherwise a queued row was queued only now or cannot be claimed at all: its lease stays, which keeps
    the task out of the way of others until the reconciler puts it back.
    """
    refused = [(task_id, queue) for task_id, queue in proposal.tasks if task_id not in granted]
    statuses = claim_rows.statuses([task_id for task_id, _ in refused])
    outdated = not granted and snapshot.generation() != proposal.generation
    kept = {Status.EXECUTING} if outdated else {Status.EXECUTING, Status.QUEUED}
    index = get_index()
    index.revoke(
        Lease(task_id, queue, proposal.leased_at) for task_id, queue in refused if statuses.get(task_id) not in kept
    )
    if outdated:
        index.push(snapshot.refs([task_id for task_id, status in statuses.items() if status is Status.QUEUED]))
        raise IndexNotReady("The index is of another generation than the rows.")


def withdraw_last(worker_id: uuid.UUID) -> int:
    """Put back the tasks that the index proposed to a worker and the rows did not grant; return how many.

    The worker must not claim any more: its row says that it is dead, or it is the caller. Grants under way are waited
    for; no later grant can succeed (``sql.claim``), so a task that is queued afterwards stays queued.
    """
    index = get_index()
    leases = index.last_proposal(worker_id)
    if not leases:
        return 0
    snapshot.wait_for_grants()
    statuses = claim_rows.statuses([lease.id for lease in leases])
    index.revoke(lease for lease in leases if statuses.get(lease.id) is not Status.EXECUTING)
    return index.push(snapshot.refs([lease.id for lease in leases]))


def give_back(tasks: list[ClaimedTask]) -> int:
    """Return claimed tasks to their places; return how many this worker still held.

    A task that was asked to stop in the meantime ends as cancelled.
    """
    leased_at = {task.id: task.leased_at for task in tasks}
    return _return_to_index(claim_rows.give_back(tasks), leased_at) if tasks else 0


def give_back_unacknowledged(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Return the tasks that the worker was granted by a claim whose answer it never saw: all but the ``known`` ones."""
    return _return_to_index(claim_rows.give_back_unacknowledged(worker_id, known))


def recover(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Undo a claim whose answer the worker never saw, as ``give_back_unacknowledged``.

    Waits for grants first, because a grant may still be under way in the server, behind a lock, after its connection
    broke. Tasks that were only proposed go back to their places at once.
    """
    snapshot.wait_for_grants()
    returned = give_back_unacknowledged(worker_id, known)
    notify_index(lambda _index: withdraw_last(worker_id), "withdraw")
    return returned


def _return_to_index(returned: list[tuple[Status, TaskRef]], leased_at: Mapping[uuid.UUID, int] = NO_LEASES) -> int:
    """Release the leases that the worker held, and push the tasks that are queued again."""
    if returned:
        leases = [Lease(task.id, task.queue, leased_at.get(task.id, ANY_LEASE)) for _, task in returned]
        notify_index(Index.release_leases, "release", leases)
        notify_index(Index.push, "push", [task for status, task in returned if status is Status.QUEUED])
        events.returned(returned)
    return len(returned)
