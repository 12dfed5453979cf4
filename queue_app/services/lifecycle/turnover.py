"""End attempts and claim the next tasks in one transaction, where a cap leaves the worker no other slots.

A capped slot is idle from the end of an attempt until the next task is granted. Two transactions and two calls of the
index would lie between; here it is one transaction, and the index proposes before it.

The index counts the slots of the attempts that end as free, and proposes that many tasks. The transaction ends the
attempts and grants the tasks only if every attempt still held its task. So never more tasks run than a cap allows.

Crash points: before the commit nothing has ended and nothing is granted; the new leases are abandoned as after a claim.
Between the commit and the release, old leases stay, so slots are missing, until the reconciler ends them.
"""

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import DatabaseError

from queue_app.core.records import ClaimedTask, Lease, Outcome
from queue_app.encryption import opened_task
from queue_app.exceptions import IndexNotReady, IndexUnavailable
from queue_app.index import Index, Profile, get_index
from queue_app.services.lifecycle.claim import abandon, return_refused, with_start_by
from queue_app.services.lifecycle.finish import call_after_end, finish
from queue_app.services.notify import events
from queue_app.services.notify.index import breaker, notify_index
from queue_app.sql import finish as rows


def turn_over(  # noqa: PLR0913, PLR0917 - the parts of a claim and of an end
    profile: Profile,
    worker_id: uuid.UUID,
    outcomes: Sequence[Outcome],
    want: int,
    start: Callable[[list[ClaimedTask]], object],
    on_wait: Callable[[float | None, bool], object],
) -> set[uuid.UUID]:
    """Record completions and claim up to ``want`` tasks; return the ids of the tasks that the attempts still held.

    Only for completions outside workflows, each of another task. ``start`` gets the tasks when they are granted.
    Raises what ``claim`` raises; the outcomes are then not recorded.
    """
    index = get_index()
    proposal = index.claim(profile, worker_id, want, reserve=False, exchange=[one.task.lease for one in outcomes])
    breaker.reset()
    if proposal.wait is not None or proposal.is_loading:
        on_wait(proposal.wait, proposal.is_loading)
    if not proposal.tasks:
        start([])
        return finish(outcomes)
    in_order = sorted(outcomes, key=lambda outcome: outcome.task.id.int)
    held, granted = rows.turn_over(in_order, proposal, worker_id)
    granted = [opened_task(task) for task in with_start_by(granted, proposal)]
    start(granted)
    first = {one.task.key: one for one in in_order}
    notify_index(Index.post_release, "release", [first[attempt].task.lease for attempt in held])
    with suppress(IndexUnavailable, IndexNotReady, DatabaseError):  # else the reconciler ends these leases
        if len(held) < len(outcomes):  # their slots were not free after all
            abandon([Lease(task_id, queue, proposal.leased_at) for task_id, queue in proposal.tasks])
        elif len(granted) < len(proposal.tasks):
            return_refused(proposal, {task.id for task in granted}, worker_id)
    if held:
        events.finished(first, held)
    if granted:
        events.started(granted)
    call_after_end(first, held)
    refused = [outcome for key, outcome in first.items() if key not in held]
    return {task_id for task_id, *_ in held} | (finish(refused) if refused else set())
