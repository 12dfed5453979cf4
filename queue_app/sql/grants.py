"""Grant again what PostgreSQL has forgotten, and tell which workers have said what they hold since it last started.

The commit of a claim does not wait for the disk. If PostgreSQL crashes, or a standby without the last commits is
promoted, a task that runs may be queued again in the rows. Its lease still stands, so no other worker is proposed the
task. Every worker names the grants that it holds with each heartbeat, and gets those back.
"""

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from queue_app import conf
from queue_app.core.records import AttemptKey, Lease
from queue_app.sql.claim import DEADLINE
from queue_app.sql.columns import GRANTED, LANE
from queue_app.sql.database import GENERATION_LOCK, columns_of, fetch_all, fetch_together
from queue_app.sql.snapshot import lease_of

# The claim is forgotten, and perhaps also that the task had become due. The `|| ''` hides the partial indexes of tasks
# that wait from the planner.
_IS_FORGOTTEN: Final = "t.status || '' IN ('queued', 'scheduled') AND t.attempt = v.attempt - 1"
_QUEUED: Final = """
UPDATE queue_app_task AS t SET status = 'queued', queued_at = clock_timestamp()
FROM unnest(%s::uuid[], %s::int[]) AS v (id, attempt)
WHERE t.id IN (SELECT id FROM queue_app_task WHERE id = ANY(%s) AND status || '' = 'scheduled' FOR UPDATE SKIP LOCKED)
    AND t.id = v.id AND t.status || '' = 'scheduled' AND t.attempt = v.attempt - 1
"""
# The shared lock comes first, as in a claim: what takes it alone (a rebuild, the reconciler) then sees these grants.
# The stamp of the lease is not compared with `abandoned_until`, which newer proposals of other workers may have raised.
# It need not be: nobody abandons leases before every living worker has answered in this run of PostgreSQL.
# Locked rows are left to the next heartbeat, because a heartbeat must not wait for them.
_AGAIN: Final = f"""
WITH v AS (
    SELECT *, %s::uuid AS worker_id FROM unnest(%s::uuid[], %s::int[], %s::bigint[]) AS held (id, attempt, leased_at)
), forgotten AS (
    SELECT t.id FROM queue_app_task AS t
    WHERE t.id IN (SELECT t.id FROM v JOIN queue_app_task AS t ON t.id = v.id AND {_IS_FORGOTTEN})
    FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE queue_app_task AS t
    SET status = 'executing', attempt = v.attempt, worker_id = v.worker_id, started_at = now.clock,
        leased_at = COALESCE(NULLIF(v.leased_at, 0), (EXTRACT(EPOCH FROM now.clock) * 1000000)::bigint),
        deadline = {DEADLINE}
    FROM v, (SELECT clock_timestamp() AS clock) AS now
    WHERE t.id = v.id AND t.id IN (SELECT id FROM forgotten) AND {_IS_FORGOTTEN} AND t.status || '' = 'queued'
        AND EXISTS (SELECT FROM queue_app_worker WHERE id = v.worker_id AND status IN ('active', 'draining'))
    RETURNING v.id, v.attempt, v.leased_at, t.leased_at AS stamp, {LANE}
)
SELECT v.id, v.attempt, v.leased_at, {_IS_FORGOTTEN}, again.id IS NOT NULL, again.id, again.stamp, {{lane}}
FROM v LEFT JOIN again USING (id, attempt, leased_at)
    LEFT JOIN queue_app_task AS t ON t.id = v.id AND ({_IS_FORGOTTEN} OR {GRANTED} AND t.status = 'executing')
WHERE t.id IS NULL OR {_IS_FORGOTTEN}
""".format(lane=LANE.replace("t.", "again."))


class Comparison(NamedTuple):
    """What the rows say about the grants that a worker holds."""

    lost: frozenset[AttemptKey] = frozenset()  # the rows name them no more
    again: frozenset[AttemptKey] = frozenset()  # the rows had forgotten them, and have granted them again
    leases: tuple[Lease, ...] = ()  # of those
    is_complete: bool = True  # false: another transaction has locked a row, so ask again


def grant_again(worker_id: uuid.UUID, held: Sequence[AttemptKey]) -> Comparison:
    """Grant again those of the worker's grants that the rows have forgotten; return also what it has lost.

    A grant is forgotten if its task waits with one attempt less. Only a worker that lives gets it back.
    """
    if not held:
        return Comparison()
    columns = columns_of(held, 3)
    lock = ("SELECT pg_advisory_xact_lock_shared(%s)", [GENERATION_LOCK])
    queued = (_QUEUED, [*columns[:2], columns[0]])
    found = fetch_together(lock, queued, (_AGAIN, [worker_id, *columns, conf.get().retry.timeout_factor]))
    lost, again, leases, is_complete = set[AttemptKey](), set[AttemptKey](), list[Lease](), True
    for task_id, attempt, stamp, is_forgotten, is_granted, *lease in found:
        if is_granted:
            again.add((task_id, attempt, stamp))
            leases.append(lease_of(lease))
        elif is_forgotten:
            is_complete = False
        else:
            lost.add((task_id, attempt, stamp))
    return Comparison(frozenset(lost), frozenset(again), tuple(leases), is_complete)


#: The present run of PostgreSQL. A crash begins another, also one after which its main process continues: it discards
#: the statistics. A promoted standby is another, too.
RUN: Final = """(
    SELECT concat_ws(' ', EXTRACT(EPOCH FROM pg_postmaster_start_time()), EXTRACT(EPOCH FROM stats_reset))
    FROM pg_stat_bgwriter)"""
#: What a heartbeat that names all grants makes of ``answered_run``. Only the second one in a run counts as an answer:
#: the worker may have listed its grants for the first before PostgreSQL crashed.
NEXT_ANSWER: Final = f"CASE rtrim(answered_run, '?') WHEN {RUN} THEN {RUN} ELSE {RUN} || '?' END"
#: Condition for live workers that may hold forgotten grants. Workers of a former version never answer (NULL).
UNANSWERED: Final = f"status IN ('active', 'draining') AND answered_run <> {RUN}"


def unanswered() -> list[tuple[uuid.UUID, float, str]]:
    """Return the live workers that have not named their grants in this run of PostgreSQL.

    Each with its heartbeat interval (s) and its last heartbeat.
    """
    beat = "(last_heartbeat_at AT TIME ZONE 'UTC')::text"
    found = fetch_all(f"SELECT id, heartbeat_seconds, {beat} FROM queue_app_worker WHERE {UNANSWERED}")
    return [(worker_id, interval, beat) for worker_id, interval, beat in found]
