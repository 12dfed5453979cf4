"""Give a worker tasks to run: the index proposes, the rows decide.

Crash points: after the index leased and before the rows accepted, the leases are of rows
that are still queued, and the reconciler puts them back, no attempt spent. After the rows
accepted, the tasks are executing under a worker that is gone, and the reaper returns them.
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
from queue_app.index import Lease, Profile, get_index
from queue_app.services.notify import events
from queue_app.services.notify.index import breaker, notify_index
from queue_app.sql import claim as claim_rows
from queue_app.sql import snapshot

#: A proposal that took longer than this to reach the rows is given up: by then the
#: reconciler may be about to hand its leases to somebody else.
PROPOSAL_SECONDS = 10.0
#: So many proposals of which the rows refuse everything are asked for in one call. An index that was told late of tasks
#: that have ended meanwhile proposes them all, and what waits behind them must not have to wait for a call.
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
    """Return tasks for up to ``want`` slots that are now this worker's, most urgent first.

    With ``register_idle`` the worker is woken when more arrives, should there be fewer.
    ``on_wait`` is told in how many seconds a limit lets something start again, when it is
    this worker that shall look then.
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
    """Return what the rows grant of one proposal; ``None`` when they refuse all of it, which is gone from the index."""
    index = get_index()
    asked_at = time.monotonic()
    proposal = index.claim(profile, worker_id, want, register_idle=register_idle)
    breaker.reset()  # the index answers again: slots that are held back now would be missing
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
            if not granted:  # else they must reach the worker; the reconciler ends the other leases
                raise
    if not granted:
        return None if in_time else []
    events.started(granted)
    return granted


def _withdraw(proposal: Proposal, granted: set[uuid.UUID]) -> None:
    """End the leases of what the rows refused.

    Rows that are executing keep their lease: another worker was granted them, and it counts
    for it. A row that is queued was refused because the proposal is of another generation
    than the rows: then nothing was granted, and all of it goes back to its place. Else its
    row became queued just now, or cannot be claimed at all; such a lease stays, so that the
    task is out of the way of others until the reconciler puts it back.
    """
    refused = [(task_id, queue) for task_id, queue in proposal.tasks if task_id not in granted]
    statuses = claim_rows.statuses([task_id for task_id, _ in refused])
    outdated = not granted and snapshot.generation() != proposal.generation
    kept = {Status.EXECUTING} if outdated else {Status.EXECUTING, Status.QUEUED}
    index = get_index()
    index.withdraw(
        Lease(task_id, queue, proposal.leased_at) for task_id, queue in refused if statuses.get(task_id) not in kept
    )
    if outdated:
        index.push(snapshot.refs([task_id for task_id, status in statuses.items() if status is Status.QUEUED]))
        raise IndexNotReady("The index is of another generation than the rows.")


def withdraw_last(worker_id: uuid.UUID) -> int:
    """End what a worker was proposed but not granted, and put it back; return how many tasks.

    It claims no more: its row says that it is dead, or it is the caller. The grants that began
    before that are waited for, so none can be granted to it any more (``sql.claim``), and
    what is queued now stays so.
    """
    index = get_index()
    leases = index.last_proposal(worker_id)
    if not leases:
        return 0
    snapshot.wait_for_grants()
    statuses = claim_rows.statuses([lease.id for lease in leases])
    index.withdraw(lease for lease in leases if statuses.get(lease.id) is not Status.EXECUTING)
    return index.push(snapshot.refs([lease.id for lease in leases]))


def give_back(tasks: list[ClaimedTask]) -> int:
    """Return claimed tasks to their places, for others to run; return how many were still this worker's.

    One that was asked to stop meanwhile ends as cancelled.
    """
    leased_at = {task.id: task.leased_at for task in tasks}
    return _return_to_index(claim_rows.give_back(tasks), leased_at) if tasks else 0


def give_back_unacknowledged(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Return what was granted to the worker by a claim whose answer it never saw; ``known`` is what it holds."""
    return _return_to_index(claim_rows.give_back_unacknowledged(worker_id, known))


def recover(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Undo a claim whose answer the worker never saw; as ``give_back_unacknowledged``.

    A connection may break while its grant is still under way in the server, behind a lock: that is waited for. What
    was only proposed goes back to its place at once.
    """
    snapshot.wait_for_grants()
    returned = give_back_unacknowledged(worker_id, known)
    notify_index(lambda _index: withdraw_last(worker_id), "withdraw")
    return returned


def _return_to_index(returned: list[tuple[Status, TaskRef]], leased_at: Mapping[uuid.UUID, int] = NO_LEASES) -> int:
    """Free the slots, each only if it is still the lease that the worker held, and put back what is queued."""
    if returned:
        leases = [Lease(task.id, task.queue, leased_at.get(task.id, ANY_LEASE)) for _, task in returned]
        notify_index(lambda index: index.release_leases(leases), "release")
        queued = [task for status, task in returned if status is Status.QUEUED]
        notify_index(lambda index: index.push(queued), "push")
        events.returned(returned)
    return len(returned)
