"""End attempts and grant the next tasks in one transaction, so that a capped slot is not idle between the two."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from queue_app import conf
from queue_app.core.records import AttemptKey, ClaimedTask, Outcome, Proposal
from queue_app.core.states import Status
from queue_app.sql.claim import GRANT
from queue_app.sql.database import BY_KEYS_ONLY, GENERATION_LOCK, fetch_prepared
from queue_app.sql.finish import COMPLETE_WITH_RESULTS, completion

# As in ``sql.claim``, the shared lock comes first. This commit waits for the disk, as every end does.
_LOCK: Final = f"SELECT pg_advisory_xact_lock_shared(%s), set_config('lock_timeout', '1s', true), {BY_KEYS_ONLY}"
# The new tasks take the slots of those that end. So nothing is granted unless every attempt still held its task.
_TURN_OVER: Final = f"""
{COMPLETE_WITH_RESULTS.rsplit("SELECT id, attempt, status FROM done", 1)[0]}, granted AS (
    {GRANT.replace("RETURNING", "AND (SELECT count(*) FROM done) = %s RETURNING")}
)
SELECT (SELECT string_agg(id || ' ' || attempt || ' ' || status, ',') FROM done), granted.*
FROM (SELECT 1) AS once LEFT JOIN granted ON true
"""


def turn_over(
    outcomes: Sequence[Outcome], proposal: Proposal, worker_id: uuid.UUID
) -> tuple[dict[AttemptKey, Status], list[ClaimedTask]]:
    """Complete attempts and grant the proposed tasks; return the states as ``complete`` does, and the tasks.

    Grants nothing if one of the attempts no longer held its task.
    """
    ids = [task_id for task_id, _ in proposal.tasks]
    factor, stamp = conf.get().retry.timeout_factor, proposal.leased_at
    params = [*completion(outcomes), worker_id, stamp, factor, ids, ids, stamp, proposal.generation, worker_id]
    rows = fetch_prepared((_LOCK, [GENERATION_LOCK]), (_TURN_OVER, [*params, len(outcomes)]))
    ended = [part.split(" ") for part in (rows[0][0] or "").split(",") if part]
    granted = {row[1]: ClaimedTask.from_row(row[1:]) for row in rows if row[1] is not None}
    held = {(uuid.UUID(task_id), int(attempt)): Status(status) for task_id, attempt, status in ended}
    return held, [granted[task_id] for task_id in ids if task_id in granted]
