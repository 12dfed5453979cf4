"""Store one task if there is room for it: lock, count and insert in one round trip.

The locks are those of ``rows.admission``, taken by a statement before the one that counts.
Both in one would be wrong: it would count by the snapshot that it had before it waited, in
which the task of whoever held the lock is missing.

Which limits hold is known only to the second statement, so the first takes the lock of the
queue and both that a user can have: nobody who counts for the same limit has his turn
meanwhile, whichever that is.
"""

from __future__ import annotations

from typing import Final

from queue_app.rows.admission import READ_COMMITTED, SEED, UserScope, lock_names, lock_wait
from queue_app.rows.database import BY_KEYS_ONLY, fetch_together
from queue_app.rows.insert import Stored, TaskRow, insert_where, stored_as, values

_LOCK: Final = f"""
SELECT CASE WHEN %s::text IS NOT NULL THEN set_config('lock_timeout', %s::text, true) END,
    pg_advisory_xact_lock(hashtextextended(name, {SEED})), {BY_KEYS_ONLY}
FROM unnest(%s::text[]) AS name
"""

_COUNT: Final = "(SELECT count(*) FROM (SELECT FROM queue_app_task AS t WHERE {which} LIMIT {most}) AS t)"
_WAITING: Final = _COUNT.format(which="t.queue = %s AND t.status IN ('scheduled', 'queued')", most="of_queue")
_PENDING: Final = """t."user" = %s AND t."user" <> '' AND t.status IN ('scheduled', 'queued', 'executing') AND """
_PENDING_HERE: Final = _COUNT.format(which=f"{_PENDING} t.queue = %s", most="of_user")
_PENDING_ELSEWHERE: Final = _COUNT.format(
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
        (_LOCK, [wait, wait, lock_names([spec.queue], users)]),
        (_INSERT_PLAIN if spec.idempotency_key is None else _INSERT_WITH_KEY, values(row, *condition)),
    )
    return stored_as(row, *found[0]) if found else None
