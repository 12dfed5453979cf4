"""Claim tasks for a worker, and give claimed tasks back: the index proposes, the row decides.

Crash points: after the index leased and before the rows accepted, the leases belong to rows that
are still queued, and the reconciler abandons them; no attempt is spent. After the rows accepted,
the tasks are executing under a dead worker, and the reaper returns them.
"""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from django.db import DatabaseError

from queue_app.core.process import QueryPauses
from queue_app.core.records import AttemptKey, ClaimedTask, Lease, Proposal, Returned
from queue_app.core.states import Status
from queue_app.encryption import opened_task
from queue_app.exceptions import IndexDamaged, IndexNotReady, IndexUnavailable
from queue_app.index import Index, Profile, get_index
from queue_app.services.advance import advance, advance_returned, share
from queue_app.services.lifecycle.dependencies import settle_later
from queue_app.services.notify import events
from queue_app.services.notify.index import breaker, condemn, notify_index
from queue_app.sql import claim as claim_rows, snapshot
from queue_app.sql.claim import Comparison
from queue_app.sql.database import atomic

# Let a worker keep the tasks that it runs, although PostgreSQL has forgotten that it granted them.
#
# The commit of a claim does not wait for the disk. After a crash of PostgreSQL, or the promotion of a standby, the row
# of a running task may be queued again, under a lease that still stands. A worker names the grants that it holds with
# each heartbeat, and sends two heartbeats as soon as it meets another run of PostgreSQL. Until every living worker has
# done so, the reconciler abandons no lease, and no rebuild reads the rows.
#
# Crash points: before the commit nothing has changed, and the next heartbeat repeats it. After it, the row executes
# under the lease that stands, as after a claim.

_log = logging.getLogger("taskqueue")


def compare(worker_id: uuid.UUID, held: Sequence[AttemptKey]) -> Comparison:
    """Grant again what the rows have forgotten of the grants that a worker holds; return also what it has lost."""
    found = claim_rows.grant_again(worker_id, held)
    if found.again:
        notify_index(Index.restore_leases, "restore", found.leases)
        events.count({"repair:granted_again": len(found.again)})
        _log.warning("PostgreSQL had forgotten %d grants of worker %s; it has them again", len(found.again), worker_id)
    return found


def keep(tasks: Sequence[ClaimedTask]) -> list[ClaimedTask]:
    """Return those of the tasks whose grants the rows had forgotten and have granted again."""
    held = sorted((task for task in tasks if task.worker_id is not None), key=lambda task: str(task.worker_id))
    kept = []
    for worker_id, group in groupby(held, key=lambda task: task.worker_id):
        mine = list(group)
        again = compare(worker_id, [task.key for task in mine]).again if worker_id is not None else frozenset()
        kept += [task for task in mine if task.key in again]
    return kept


#: Maximum number of claim rounds per call. PostgreSQL may refuse a whole batch when the index is behind and proposes
#: tasks that have ended; the next round then reaches the tasks behind them.
REFUSED_ROUNDS = 100

#: Time from the question to the index until the start of a task that passed a rate or a minimum delay (s). Later starts
#: would come on top of those that the limit allows by then.
START_SECONDS: Final = 1.0

#: Pauses the queries of all executing rows of a worker, or of a token's workers, after a slow one.
_pauses: Final = QueryPauses(1.0)


def claim(
    profile: Profile,
    worker_id: uuid.UUID,
    want: int,
    *,
    reserve: bool = True,
    on_wait: Callable[[float | None, bool], object] | None = None,
) -> list[ClaimedTask]:
    """Return up to ``want`` tasks that now belong to this worker, most urgent first.

    If the worker got fewer, the index wakes it when more tasks arrive. ``on_wait`` is called with the seconds until a
    limit allows another start, when this worker must then claim again, and whether a rebuild still loads tasks, which
    this claim may have missed. With ``reserve`` the worker may drain for a task of more weight than ``want``: only if
    it will have that many slots free.
    Raises ``IndexNotReady``, ``UnknownProfile`` and ``IndexUnavailable``.
    """
    index = get_index()
    for _ in range(REFUSED_ROUNDS):
        try:
            proposal = index.claim(profile, worker_id, want, reserve=reserve)
        except IndexDamaged as error:
            if condemn(str(error)):
                raise IndexNotReady("The index is damaged and must be rebuilt from the rows.") from error
            raise
        breaker.reset()  # the index answers: held-back releases would now cost slots
        if on_wait is not None and (proposal.wait is not None or proposal.is_loading):
            on_wait(proposal.wait, proposal.is_loading)
        if not proposal.tasks and proposal.wait == 0:  # it stopped early, to let others have their turn
            continue
        if not proposal.tasks:
            return []
        if granted := _grant(proposal, worker_id):
            events.started(granted)
            return as_claimed(granted, proposal)
    return []


def as_claimed(granted: Sequence[ClaimedTask], proposal: Proposal) -> list[ClaimedTask]:
    """Return granted tasks decrypted, with the time until which those that passed a rate or a delay may start."""
    paced, start_by = proposal.paced, proposal.asked_at + START_SECONDS
    tasks = [replace(task, start_by=start_by) if task.id in paced else task for task in granted]
    return [opened_task(task) for task in tasks]


def _grant(proposal: Proposal, worker_id: uuid.UUID) -> list[ClaimedTask]:
    """Return the tasks that the rows grant of a proposal; end the leases of the others."""
    if proposal.granted is not None:
        return list(proposal.granted)
    began = time.monotonic()
    granted = claim_rows.claim(
        [task_id for task_id, _ in proposal.tasks], worker_id, proposal.generation, proposal.leased_at
    )
    if len(granted) < len(proposal.tasks):
        locked = time.monotonic() - began >= claim_rows.LOCK_SECONDS
        try:
            return_refused(proposal, {task.id for task in granted}, worker_id, locked=locked)
        except (IndexUnavailable, DatabaseError):
            if not granted:  # granted tasks must reach the worker; the reconciler ends the other leases
                raise
    return granted


def return_refused(proposal: Proposal, granted: set[uuid.UUID], worker_id: uuid.UUID, *, locked: bool = False) -> None:
    """End the leases of the tasks that the rows refused.

    - An executing row was granted to another worker; that worker's lease is restored.
    - If the proposal is outdated (another generation, or abandoned), its queued tasks go back to their places.
    - So does a queued row that the next claim can be granted: it was queued a moment ago, or its arguments were
      replaced while the claim waited for it.
    - If the claim found rows ``locked`` by another transaction, the leases of queued rows stay, so that the index does
      not propose the tasks again at once; the reconciler abandons them. Leases of rows that no worker can claim stay
      too.
    """
    refused = {task_id: queue for task_id, queue in proposal.tasks if task_id not in granted}
    found = snapshot.leases(list(refused))
    executing = [lease for status, lease in found.values() if status is Status.EXECUTING]
    waiting = {task_id for task_id, (status, _) in found.items() if status is Status.QUEUED}
    outdated = not granted and not snapshot.accepts(proposal.generation, proposal.leased_at)
    back = waiting
    if waiting and not outdated:
        back = set() if locked else claim_rows.grantable(list(waiting), worker_id)
    index = get_index()
    if executing:
        index.restore_leases(executing)
    kept = {lease.id for lease in executing} | (waiting - back)
    ended = [(task_id, queue) for task_id, queue in refused.items() if task_id not in kept]
    index.release(Lease(task_id, queue, proposal.leased_at) for task_id, queue in ended)
    if back:
        index.push(snapshot.refs(list(back)))
    if outdated and snapshot.generation() != proposal.generation:
        raise IndexNotReady("The index is of another generation than the rows.")


def abandon(leases: Sequence[Lease], *, unless: str = "false") -> int:
    """Take back leases that the rows did not grant; return how many tasks went back to their places.

    First makes PostgreSQL refuse every later claim with such a stamp, ``unless`` this condition of the rows holds. So a
    slow worker cannot be granted the tasks after their slots have gone to other tasks.
    """
    if not leases:
        return 0
    index = get_index()
    # An incomplete lease (0) has lost its stamp, which is not larger than the present time of the index's clock. One
    # with a larger stamp is damaged, and abandoning it would forbid every grant from now on.
    now = index.now()
    if not snapshot.abandon(min(now, max(lease.leased_at or now for lease in leases)), unless):
        return 0
    found = snapshot.leases([lease.id for lease in leases])
    index.release(
        lease
        for lease in leases
        for status, granted in [found.get(lease.id, (None, None))]
        if status is not Status.EXECUTING or granted is None or granted.leased_at != lease.leased_at
    )
    return index.push(snapshot.refs([lease.id for lease in leases]))


def withdraw_last(index: Index, worker_id: uuid.UUID, known: Collection[uuid.UUID] = ()) -> int:
    """Put back the tasks that the index proposed to a worker and the rows did not grant; return how many.

    The ``known`` ones run: PostgreSQL may have forgotten their grants (``lifecycle.grants``).
    """
    return abandon([lease for lease in index.last_proposal(worker_id) if lease.id not in known])


def give_back(tasks: list[ClaimedTask]) -> set[uuid.UUID]:
    """Return claimed tasks to their places; return the ids of the tasks that this worker still held.

    A task that was asked to stop in the meantime ends as cancelled.
    """
    if any(task.workflow_id is not None for task in tasks):
        with atomic():
            workflows = share(task.workflow_id for task in tasks)
            returned = claim_rows.give_back(tasks)
            advance({each.task.id: each.status for each in returned})
        settle_later(workflows)
    else:
        returned = claim_rows.give_back(tasks) if tasks else []
    return_to_index(returned)
    return {each.task.id for each in returned}


def give_back_unacknowledged(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Return the tasks that the worker was granted by a claim whose answer it never saw: all but the ``known`` ones."""

    def give_back(among: list[uuid.UUID] | None) -> int:
        with atomic():
            returned = claim_rows.give_back_unacknowledged(worker_id, known, among)
            workflows = advance_returned(returned)
        settle_later(workflows)
        return return_to_index(returned)

    return among_executing("unacknowledged", give_back)


def among_executing[T](name: str, query: Callable[[list[uuid.UUID] | None], T]) -> T:
    """Query all executing rows (``None``); while that pauses (``core.process``), only tasks that hold a lease.

    Without the index it never pauses.
    """
    among = _leased() if name in _pauses else None
    began = time.monotonic()
    found = query(among)
    if among is None:
        _pauses.begin(name, time.monotonic() - began)
    return found


def _leased() -> list[uuid.UUID] | None:
    """Return the tasks that hold a lease; ``None`` while the index is away."""
    index, cursor, found = get_index(), 0, list[uuid.UUID]()
    try:
        while True:
            cursor, ids = index.leased(cursor)
            found += ids
            if cursor == 0:
                return found
    except IndexUnavailable:
        return None


def recover(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Undo a claim whose answer the worker never saw, like ``give_back_unacknowledged``.

    First returns the tasks that were proposed but not granted: after a broken connection PostgreSQL may still be
    executing the grant. Afterwards that grant is either visible or refused.
    """
    notify_index(withdraw_last, "withdraw", worker_id, known)
    return give_back_unacknowledged(worker_id, known)


def return_to_index(tasks: Sequence[Returned]) -> int:
    """Release the leases that the attempts held, and push the tasks that are queued again; return how many tasks."""
    if tasks:
        notify_index(Index.release, "release", [each.lease for each in tasks])
        notify_index(Index.push, "push", [each.task for each in tasks if each.status is Status.QUEUED])
        events.returned(tasks)
    return len(tasks)
