"""Count the waiting tasks of queues and the pending tasks of users, one submitter at a time.

Tasks of open transactions are invisible, so two submitters that count at the same time would both find the last
place free. A transaction-level advisory lock for each queue and user lets the second submitter count only after the
first has committed or rolled back. Submitters take the locks only where a limit applies; PostgreSQL writes nothing for
them and releases them with the transaction, also behind a pooler. A counter in a row would be cheaper to read, but
every claim, end and retry would have to write it: a hot row for the whole queue.

All submitters take the locks in one order, by a statement of its own. Under READ COMMITTED each statement has a
snapshot of its own, so the count sees everything that committed before.

One user's submissions over the API would then wait for each other's commits. So a submission of one task
(``insert_if_room``) shares the lock of a large limit, and leaves as many places free as the server has connections.
That is exact: take the submission that counted last. Those that it did not see had begun and not ended, so there is
one in a connection at most, and the places left free are theirs. Near the limit submitters take turns again, because
an exclusive lock waits for the end of all shared ones.
"""

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Self

from queue_app import conf
from queue_app.core.records import Enqueued, TaskRef, TaskRow
from queue_app.core.states import Status
from queue_app.sql.columns import REF
from queue_app.sql.database import (
    BY_KEYS_ONLY,
    columns_of,
    execute,
    fetch_all,
    fetch_prepared,
    fetch_together,
    lock_rows,
)
from queue_app.sql.insert import insert_where, values

READ_COMMITTED: Final = "read committed"
#: Tells these locks from others in the same database.
SEED: Final = 0x7461736B_71000002


class QueueLimits(NamedTuple):
    """The limits of submissions to one queue; ``None`` for no limit."""

    queue: str
    length: int | None
    pending_per_user: int | None
    counts_users_apart: bool  # whether the queue has a limit of its own for users
    stale_after_seconds: float | None


class UserScope(NamedTuple):
    """A user's pending tasks in one queue, or with an empty name, in all queues without a limit of their own."""

    user: str
    queue: str


# The limits in force: a queue's own, else the runtime settings', else defaults. Parameters: the default length (twice),
# without which the length in the runtime settings does not apply either; the default for users; the queues.
_LIMITS: Final = """
SELECT name.name AS queue,
    COALESCE(queue.max_length, CASE WHEN %s::int IS NOT NULL THEN COALESCE(settings.max_length, %s::int) END)
        AS length,
    COALESCE(queue.max_pending_per_user, settings.max_pending_per_user, %s::int) AS pending,
    queue.max_pending_per_user IS NOT NULL AS apart, queue.stale_after_seconds
FROM unnest(%s::text[]) AS name (name)
LEFT JOIN queue_app_queue AS queue ON queue.name = name.name
LEFT JOIN queue_app_runtimesettings AS settings ON settings.id = 1
"""
_WAIT: Final = "CASE WHEN %s::text IS NOT NULL THEN set_config('lock_timeout', %s::text, true) END"
_READ_LIMITS: Final = f"SELECT current_setting('transaction_isolation'), {_WAIT}, limits.* FROM ({_LIMITS}) AS limits"
_TAKE: Final = f"pg_advisory_xact_lock(hashtextextended(name, {SEED}))"
_LOCK: Final = f"SELECT {_TAKE} FROM unnest(%s::text[]) AS name"
#: The most submissions that can share a lock at one time.
_IN_FLIGHT: Final = "current_setting('max_connections')::int"
#: Names of the settings that tell the second statement how many places to leave free; unset means none.
_SPARE: Final = ("taskqueue.spare_of_queue", "taskqueue.spare_of_user")
# Smaller limits are not shared: most submissions would find themselves near the limit, and try twice.
_LOCK_ONE: Final = f"""
SELECT {_WAIT}, {BY_KEYS_ONLY},
    set_config(setting, CASE WHEN is_shared THEN current_setting('max_connections') ELSE '0' END, true),
    CASE WHEN is_shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END
FROM (
    SELECT scope.setting, hashtextextended(scope.name, {SEED}) AS key, COALESCE(
        CASE scope.setting WHEN '{_SPARE[0]}' THEN limits.length ELSE limits.pending END > 4 * {_IN_FLIGHT}, true
    ) AS is_shared
    FROM ({_LIMITS}) AS limits, unnest(%s::text[], %s::text[]) WITH ORDINALITY AS scope (name, setting, n)
    ORDER BY scope.n
) AS scope
"""

#: The indexes that count waiting and pending tasks, and the least bytes of an entry: with its pointer and without, as
#: PostgreSQL keeps entries with the same user and queue as one.
LENGTHS: Final = ("taskqueue_length", 40)
PENDING: Final = ("taskqueue_user_pending", 6)


def _waiting(queue: str, most: str) -> str:
    """Return the number of waiting tasks of a queue, up to ``most``, by the index taskqueue_length."""
    return _up_to(most, f"t.queue = {queue} AND t.status IN ('scheduled', 'queued')")


def _pending(user: str, most: str, queue: str = "") -> str:
    """Return the number of a user's pending tasks (``UserScope``), up to ``most``, by taskqueue_user_pending."""
    scope = "t.queue NOT IN (SELECT name FROM queue_app_queue WHERE max_pending_per_user IS NOT NULL)"
    return _up_to(
        most,
        f"""t."user" = {user} AND t."user" <> '' AND t.status IN ('blocked', 'scheduled', 'queued', 'executing')"""
        f" AND {f't.queue = {queue}' if queue else scope}",
    )


def _up_to(most: str, which: str) -> str:
    return f"(SELECT count(*) FROM (SELECT FROM queue_app_task AS t WHERE {which} LIMIT {most}) AS t)"


def _has_room(limit: str, count: str, index: str, entry: int) -> str:
    """Whether a limit is greater than a count, which is skipped if the index of its rows is too small for that number.

    A count takes 0.2 µs a row. The size of the file bounds the number of rows, whatever else the index holds: an entry
    takes ``entry`` bytes or more.
    """
    return f"CASE WHEN {limit} > pg_relation_size('{index}') / {entry} THEN true ELSE {limit} > {count} END"


def _without_spare(limit: str, setting: str) -> str:
    """Return a limit less the places that ``_LOCK_ONE`` leaves free."""
    spare = f"COALESCE(NULLIF(current_setting('{setting}', true), '')::int, 0)"  # unset, it may be an empty text
    return f"GREATEST({limit} - {spare}, 0) AS {limit}"


_COUNT: Final = f"""
SELECT 0 AS kind, asked.n AS n, {_waiting("asked.queue", "asked.most")}
FROM unnest(%s::text[], %s::int[]) WITH ORDINALITY AS asked (queue, most, n)
UNION ALL
SELECT 1, asked.n, CASE WHEN asked.queue = '' THEN {_pending("asked.name", "asked.most")}
    ELSE {_pending("asked.name", "asked.most", "asked.queue")} END
FROM unnest(%s::text[], %s::text[], %s::int[]) WITH ORDINALITY AS asked (name, queue, most, n)
ORDER BY kind, n
"""
# Under another isolation level the second statement sees the data that the first saw before it waited.
_ROOM: Final = f"""(
    SELECT current_setting('transaction_isolation') = '{READ_COMMITTED}'
        AND CASE WHEN length IS NULL THEN true ELSE {_has_room("length", _waiting("%s", "length"), *LENGTHS)} END
        AND CASE WHEN pending IS NULL OR %s = '' THEN true
            WHEN apart THEN {_has_room("pending", _pending("%s", "pending", "%s"), *PENDING)}
            ELSE {_has_room("pending", _pending("%s", "pending"), *PENDING)} END
    FROM (
        SELECT {_without_spare("length", _SPARE[0])}, {_without_spare("pending", _SPARE[1])}, apart
        FROM ({_LIMITS}) AS limits
    ) AS limits
)"""
_INSERT_PLAIN: Final = insert_where(_ROOM, with_key=False)
_INSERT_WITH_KEY: Final = insert_where(_ROOM, with_key=True)
_TAKEN: Final = """
SELECT asked.name, asked.key FROM unnest(%s::text[], %s::text[]) AS asked (name, key)
WHERE EXISTS (
    SELECT FROM queue_app_task AS t WHERE t."user" = asked.name AND t.idempotency_key = asked.key
        AND t.created_at >= statement_timestamp() - make_interval(secs => %s)
)
"""


class Defaults(NamedTuple):
    """Limits that apply where no row names one; ``None`` for no limit."""

    length: int | None = None
    pending_per_user: int | None = None
    lock_seconds: float | None = None  # how long the transaction waits for a lock

    @classmethod
    def of_outside(cls, *, is_own: bool) -> Self:
        """Return the defaults for tasks from outside; the caller's transaction (not ``is_own``) waits as it chooses."""
        settings = conf.get().admission
        return cls(settings.max_length, settings.max_pending_per_user, settings.lock_seconds if is_own else None)

    @property
    def lock_timeout(self) -> str | None:
        """``lock_seconds`` as PostgreSQL's ``lock_timeout``."""
        return None if self.lock_seconds is None else f"{max(1, round(self.lock_seconds * 1000))}ms"


def read_limits(queues: Iterable[str], defaults: Defaults) -> tuple[str, list[QueueLimits]]:
    """Return the isolation level of the transaction, and the limits of the queues; set the lock timeout."""
    wait = defaults.lock_timeout
    params = [wait, wait, defaults.length, defaults.length, defaults.pending_per_user, sorted(queues)]
    found = fetch_prepared((_READ_LIMITS, params))
    return found[0][0], [QueueLimits(*row[2:]) for row in found]


def be_read_committed() -> None:
    """Let the transaction that has just begun see the commits of others."""
    execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def lock(names: Sequence[str]) -> None:
    """Wait for the locks of these names, which last until the transaction ends."""
    fetch_all(_LOCK, [names])


def lock_and_count(
    queues: Sequence[tuple[str, int]], users: Sequence[tuple[UserScope, int]]
) -> tuple[list[int], list[int]]:
    """Wait for the locks of these queues and users, then count their tasks, each up to its limit.

    The locks last until the transaction ends. Needs READ COMMITTED.
    """
    names = lock_names((queue for queue, _ in queues), (scope for scope, _ in users))
    columns = [
        [queue for queue, _ in queues],
        [most for _, most in queues],
        [scope.user for scope, _ in users],
        [scope.queue for scope, _ in users],
        [most for _, most in users],
    ]
    counts = [count for _kind, _n, count in fetch_together((_LOCK, [names]), (_COUNT, columns))]
    return counts[: len(queues)], counts[len(queues) :]


def lock_names(queues: Iterable[str], users: Iterable[UserScope]) -> list[str]:
    """Return the names of the locks, in the order in which all submitters take them."""
    of_users = {f"user:{scope.queue}:{scope.user}" for scope in users}
    return sorted({f"queue:{queue}" for queue in queues}) + sorted(of_users)


def taken_keys(keys: Sequence[tuple[str, str]], seconds: float) -> set[tuple[str, str]]:
    """Return the (user, idempotency key) pairs that belong to a task created within the last ``seconds``."""
    found = fetch_all(_TAKEN, [[user for user, _ in keys], [key for _, key in keys], seconds])
    return {(user, key) for user, key in found}


def insert_if_room(row: TaskRow, trace: str | None, defaults: Defaults) -> Enqueued | None:
    """Store a task of a trace under the limits of its queue and user, in a transaction of its own.

    Returns ``None`` and stores nothing if there is no room, the idempotency key is taken, or the
    isolation level does not allow an answer.
    """
    spec = row.spec
    users = [UserScope(spec.user, queue) for queue in ("", spec.queue)] if spec.user else []
    names = lock_names([spec.queue], users)
    settings = [_SPARE[0], *(_SPARE[1] for _ in users)]
    wait = defaults.lock_timeout
    limits = (defaults.length, defaults.length, defaults.pending_per_user, [spec.queue])
    condition = (spec.queue, spec.user, spec.user, spec.queue, spec.user, *limits)
    insert = _INSERT_PLAIN if spec.idempotency_key is None else _INSERT_WITH_KEY
    lock = (_LOCK_ONE, [wait, wait, *limits, names, settings])
    for created_at, queued_at in fetch_prepared(lock, (insert, values(row, trace, *condition))):
        status = Status.SCHEDULED if queued_at is None else Status.QUEUED
        return Enqueued(row.id, spec, status, created_at, queued_at, sent_trace=trace)
    return None


# Find the existing task of a unique key, and give it new arguments.
#
# Callers that enqueue the same key take turns until their transactions end, by an advisory lock. Such locks share a
# table in PostgreSQL that holds some thousands. So a caller with many keys locks their task types instead: every other
# caller shares the lock of its type, and this one takes it alone.

#: More keys than these are locked by their task types.
MANY: Final = 200

_SHARE: Final = f"SELECT pg_advisory_xact_lock_shared(hashtextextended(name, {SEED})) FROM unnest(%s::text[]) AS name"
_LOCK_NAMES: Final = _SHARE.replace("lock_shared", "lock")
# A key has few pending tasks, so its part of the index is short: pending tasks have no `finished_at`. Tasks that ended
# are read only as far back as `within` goes. The `|| ''` hides the index of ended tasks from the planner. A task
# that waits between its steps has begun: its arguments stay.
_STANDING: Final = """
SELECT asked.key, clock_timestamp(), current_setting('transaction_isolation'), t.id, t.status, t.created_at, t."user"
FROM unnest(%s::text[]) AS asked (key) LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT * FROM (
            SELECT id, CASE WHEN EXISTS (SELECT FROM queue_app_stepresult AS step WHERE step.task_id = one.id)
                THEN 'executing' ELSE status END AS status, created_at, "user"
            FROM queue_app_task AS one WHERE unique_key = asked.key AND finished_at IS NULL
        ) AS pending
        WHERE status = ANY(%s) OR created_at > statement_timestamp() - make_interval(secs => %s)
        UNION ALL
        SELECT id, status, created_at, "user" FROM queue_app_task
        WHERE unique_key = asked.key AND status || '' = 'completed'
            AND finished_at > statement_timestamp() - make_interval(secs => %s)
            AND created_at > statement_timestamp() - make_interval(secs => %s)
    ) AS each ORDER BY status = 'completed', status = 'executing', id LIMIT 1
) AS t ON true
"""


class Existing(NamedTuple):
    """The existing task of a key."""

    id: uuid.UUID
    status: Status
    created_at: datetime
    user: str


class Lookup(NamedTuple):
    """The time, whether the transaction sees what others commit, and {key: its existing task}."""

    clock: datetime | None
    sees_all: bool
    existing: dict[str, Existing]


def lock_and_find(
    task_types: Sequence[str], keys: Sequence[str], states: Sequence[str], within: float | None
) -> Lookup:
    """Wait for the locks of the keys, which last until the transaction ends, and find the existing tasks."""
    types, names = [f"unique:{name}" for name in sorted(task_types)], [f"unique:{key}" for key in sorted(keys)]
    locks = [(_SHARE, [types]), (_LOCK_NAMES, [names])] if len(keys) <= MANY else [(_LOCK_NAMES, [types])]
    rows = fetch_together(*locks, (_STANDING, [list(keys), list(states), within, within, within]))
    found = {row[0]: Existing(row[3], Status(row[4]), *row[5:]) for row in rows if row[3] is not None}
    return Lookup(rows[0][1] if rows else None, all(row[2] == READ_COMMITTED for row in rows), found)


def lock_existing(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Lock tasks, so that they neither start nor end meanwhile; return their states now."""
    found = fetch_together(lock_rows(ids), ("SELECT id, status FROM queue_app_task WHERE id = ANY(%s)", [list(ids)]))
    return {task_id: Status(status) for task_id, status in found}


# A claim that already waits for the row would run the old arguments: it reads them as of its own beginning. So a queued
# row is deleted and stored again, under the same id and in the same place. The claim finds the old row gone, and the
# next one takes the new row with the new arguments.
_REWRITE: Final = f"""
WITH gone AS (DELETE FROM queue_app_task WHERE id = ANY(%s) AND status = 'queued' RETURNING *),
t AS (INSERT INTO queue_app_task SELECT * FROM gone RETURNING *)
SELECT {REF} FROM t
"""
_PAYLOADS: Final = """
UPDATE queue_app_taskpayload AS p
SET args = v.args::jsonb, parameters = v.parameters::jsonb, metadata = v.metadata::jsonb
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[]) AS v (id, args, parameters, metadata) WHERE p.task_id = v.id
RETURNING p.task_id
"""
# Returns the tasks that leave the index.
_POSTPONE: Final = """
WITH before AS (SELECT id, queued_at FROM queue_app_task WHERE id = ANY(%s)),
t AS (
    UPDATE queue_app_task AS t SET status = CASE WHEN t.status = 'queued' THEN 'scheduled' ELSE t.status END,
        run_after = CASE WHEN %s::float8 IS NULL THEN v.run_after
            ELSE LEAST(v.run_after, GREATEST(t.created_at + make_interval(secs => %s), clock_timestamp())) END,
        queued_at = NULL
    FROM unnest(%s::uuid[], %s::timestamptz[]) AS v (id, run_after)
    WHERE t.id = v.id AND t.finished_at IS NULL AND t.status <> 'executing'
    RETURNING t.*
)
SELECT t.id, t.task_type, t.queue, t.priority, t.capabilities, before.queued_at, t."user", t.concurrency_key, t.weight
FROM t JOIN before USING (id) WHERE before.queued_at IS NOT NULL
"""


def replace_arguments(payloads: Sequence[tuple[uuid.UUID, str, str, str | None]]) -> list[TaskRef]:
    """Store new (id, args, parameters, metadata) of locked tasks that wait; return the queued ones, stored again."""
    columns = columns_of(payloads, 4)
    fetch_all(_PAYLOADS, columns)
    return [TaskRef.from_row(row) for row in fetch_all(_REWRITE, columns[:1])]


def postpone(times: Sequence[tuple[uuid.UUID, datetime]], max_wait: float | None) -> list[TaskRef]:
    """Start the wait of locked tasks over, up to ``max_wait`` seconds after their enqueue; return those once queued."""
    ids, when = columns_of(times, 2)
    return [TaskRef.from_row(row) for row in fetch_all(_POSTPONE, [ids, max_wait, max_wait, ids, when])]
