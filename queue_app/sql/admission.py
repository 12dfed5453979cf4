"""Count what waits in queues and what users have pending, one submitter at a time.

Why a lock, and why this one: tasks of transactions under way are invisible, so two submitters
that count at the same time both find the last place free. A transaction-level advisory lock
for each queue and user lets the second one count only after the first has committed or rolled
back. It is taken where a limit applies only; nothing is written for it, and it is gone with
the transaction, however that ends, also behind a pooler. A counter in a row would be cheaper
to read, but every claim, end and retry would have to write it: a hot row for the whole queue.

The locks are taken in one order, by a statement of their own. So under READ COMMITTED, where
each statement has a snapshot of its own, the count sees whatever committed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from queue_app.sql.database import BY_KEYS_ONLY, execute, fetch_all, fetch_last, fetch_prepared, fetch_together
from queue_app.sql.insert import Stored, TaskRow, insert_where, stored_as, values

READ_COMMITTED = "read committed"
#: Tells these locks from others in the same database.
SEED = 0x7461736B_71000002


class QueueLimits(NamedTuple):
    """What the rows say about submissions to one queue; ``None`` where they say nothing."""

    queue: str
    max_length: int | None
    max_pending_per_user: int | None
    stale_after_seconds: float | None
    default_length: int | None
    default_pending_per_user: int | None


class UserScope(NamedTuple):
    """Whose pending tasks are counted: in one queue, or with an empty name in all that have no number of their own."""

    user: str
    queue: str


_LIMITS = """
SELECT current_setting('transaction_isolation'),
    CASE WHEN %s::text IS NOT NULL THEN set_config('lock_timeout', %s::text, true) END,
    name.name, queue.max_length, queue.max_pending_per_user, queue.stale_after_seconds,
    settings.max_length, settings.max_pending_per_user
FROM unnest(%s::text[]) AS name (name)
LEFT JOIN queue_app_queue AS queue ON queue.name = name.name
LEFT JOIN queue_app_runtimesettings AS settings ON settings.id = 1
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(name, %(seed)s)) FROM unnest(%(locks)s::text[]) AS name"

# The partial indexes taskqueue_length and taskqueue_user_pending answer these, up to the limit.
_COUNT = f"""
{_LOCK};
SELECT 0 AS kind, asked.n AS n, (
    SELECT count(*) FROM (
        SELECT FROM queue_app_task AS t WHERE t.queue = asked.queue AND t.status IN ('scheduled', 'queued')
        LIMIT asked.most
    ) AS t
)
FROM unnest(%(queues)s::text[], %(lengths)s::int[]) WITH ORDINALITY AS asked (queue, most, n)
UNION ALL
SELECT 1, asked.n, CASE WHEN asked.queue = '' THEN (
    SELECT count(*) FROM (
        SELECT FROM queue_app_task AS t
        WHERE t."user" = asked.name AND t."user" <> '' AND t.status IN ('scheduled', 'queued', 'executing')
            AND t.queue NOT IN (SELECT name FROM queue_app_queue WHERE max_pending_per_user IS NOT NULL)
        LIMIT asked.most
    ) AS t
) ELSE (
    SELECT count(*) FROM (
        SELECT FROM queue_app_task AS t
        WHERE t."user" = asked.name AND t."user" <> '' AND t.status IN ('scheduled', 'queued', 'executing')
            AND t.queue = asked.queue
        LIMIT asked.most
    ) AS t
) END
FROM unnest(%(users)s::text[], %(scopes)s::text[], %(pendings)s::int[]) WITH ORDINALITY AS asked (name, queue, most, n)
ORDER BY kind, n
"""
_TAKEN = """
SELECT asked.name, asked.key FROM unnest(%s::text[], %s::text[]) AS asked (name, key)
WHERE EXISTS (
    SELECT FROM queue_app_task AS t WHERE t."user" = asked.name AND t.idempotency_key = asked.key
        AND t.created_at >= statement_timestamp() - make_interval(secs => %s)
)
"""


def read_limits(queues: Iterable[str], lock_seconds: float | None = None) -> tuple[str, list[QueueLimits]]:
    """Return the isolation of the transaction, and the limits of the queues.

    With ``lock_seconds`` the transaction gives up after waiting so long for a lock.
    """
    wait = lock_wait(lock_seconds)
    found = fetch_prepared(_LIMITS, [wait, wait, sorted(queues)])
    return found[0][0], [QueueLimits(*row[2:]) for row in found]


def lock_wait(seconds: float | None) -> str | None:
    """Return how long to wait for a lock, as PostgreSQL's ``lock_timeout``."""
    return None if seconds is None else f"{max(1, round(seconds * 1000))}ms"


def be_read_committed() -> None:
    """Let the transaction that has just begun see what others commit."""
    execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def lock(names: Iterable[str]) -> None:
    """Wait for the turns of these names, which last until the transaction ends."""
    fetch_all(_LOCK, {"seed": SEED, "locks": list(names)})


def lock_and_count(
    queues: Sequence[tuple[str, int]], users: Sequence[tuple[UserScope, int]]
) -> tuple[list[int], list[int]]:
    """Wait for the turn of these queues and users, then count what they have, each up to its limit.

    The turn lasts until the transaction ends. Needs READ COMMITTED.
    """
    params: dict[str, Any] = {
        "seed": SEED,
        "locks": lock_names((queue for queue, _ in queues), (scope for scope, _ in users)),
        "queues": [queue for queue, _ in queues],
        "lengths": [most for _, most in queues],
        "users": [scope.user for scope, _ in users],
        "scopes": [scope.queue for scope, _ in users],
        "pendings": [most for _, most in users],
    }
    counts = [int(row[2]) for row in fetch_last(_COUNT, params)]
    return counts[: len(queues)], counts[len(queues) :]


def lock_names(queues: Iterable[str], users: Iterable[UserScope]) -> list[str]:
    """Return the names of the locks, in the one order in which everybody takes them."""
    of_users = {f"user:{scope.queue}:{scope.user}" for scope in users}
    return sorted({f"queue:{queue}" for queue in queues}) + sorted(of_users)


def taken_keys(keys: Sequence[tuple[str, str]], seconds: float) -> set[tuple[str, str]]:
    """Return those of the (user, idempotency key) pairs that a task holds that was created within ``seconds``."""
    found = fetch_all(_TAKEN, [[user for user, _ in keys], [key for _, key in keys], seconds])
    return {(user, key) for user, key in found}


_LOCK_AND_WAIT: Final = f"""
SELECT CASE WHEN %s::text IS NOT NULL THEN set_config('lock_timeout', %s::text, true) END,
    pg_advisory_xact_lock(hashtextextended(name, {SEED})), {BY_KEYS_ONLY}
FROM unnest(%s::text[]) AS name
"""

_COUNT_UP_TO: Final = "(SELECT count(*) FROM (SELECT FROM queue_app_task AS t WHERE {which} LIMIT {most}) AS t)"
_WAITING: Final = _COUNT_UP_TO.format(which="t.queue = %s AND t.status IN ('scheduled', 'queued')", most="of_queue")
_PENDING: Final = """t."user" = %s AND t."user" <> '' AND t.status IN ('scheduled', 'queued', 'executing') AND """
_PENDING_HERE: Final = _COUNT_UP_TO.format(which=f"{_PENDING} t.queue = %s", most="of_user")
_PENDING_ELSEWHERE: Final = _COUNT_UP_TO.format(
    which=f"{_PENDING} t.queue NOT IN (SELECT name FROM queue_app_queue WHERE max_pending_per_user IS NOT NULL)",
    most="of_user",
)
# Under another isolation the second statement sees what the first saw, before it waited.
_ROOM: Final = f"""(
    SELECT current_setting('transaction_isolation') = '{READ_COMMITTED}'
        AND CASE WHEN of_queue IS NULL THEN true ELSE of_queue > {_WAITING} END
        AND CASE WHEN of_user IS NULL THEN true
            WHEN is_own THEN of_user > {_PENDING_HERE}
            ELSE of_user > {_PENDING_ELSEWHERE} END
    FROM (
        SELECT COALESCE(queue.max_length, CASE WHEN %s::int IS NOT NULL THEN COALESCE(settings.max_length, %s::int) END)
                AS of_queue,
            CASE WHEN %s <> '' THEN COALESCE(queue.max_pending_per_user, settings.max_pending_per_user, %s::int) END
                AS of_user,
            queue.max_pending_per_user IS NOT NULL AS is_own
        FROM (SELECT) AS one
        LEFT JOIN queue_app_queue AS queue ON queue.name = %s
        LEFT JOIN queue_app_runtimesettings AS settings ON settings.id = 1
    ) AS limits
)"""
_INSERT_PLAIN: Final = insert_where(_ROOM, with_key=False)
_INSERT_WITH_KEY: Final = insert_where(_ROOM, with_key=True)


def insert_if_room(
    row: TaskRow, *, default_length: int | None, default_pending: int | None, lock_seconds: float | None
) -> Stored | None:
    """Store a task under the limits of its queue and user, in a transaction of its own.

    The defaults hold where no row names a number; ``None`` for no limit. Returns ``None`` when
    there is no room, the idempotency key is taken, or it cannot be told: nothing was stored.
    """
    spec = row.spec
    users = [UserScope(spec.user, queue) for queue in ("", spec.queue)] if spec.user else []
    wait = lock_wait(lock_seconds)
    condition = (
        spec.queue, spec.user, spec.queue, spec.user,
        default_length, default_length, spec.user, default_pending, spec.queue,
    )  # fmt: skip
    found = fetch_together(
        (_LOCK_AND_WAIT, [wait, wait, lock_names([spec.queue], users)]),
        (_INSERT_PLAIN if spec.idempotency_key is None else _INSERT_WITH_KEY, values(row, *condition)),
    )
    return stored_as(row, *found[0]) if found else None
