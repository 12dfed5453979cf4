"""Read the queued rows for a rebuild, part by part: a part holds the tasks of one queue and band, oldest first."""

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from queue_app.core.priorities import Band
from queue_app.core.records import PackedLane
from queue_app.sql.comparison import PACKED, packed_lanes
from queue_app.sql.database import BY_KEYS_ONLY, fetch_together

#: A queue and a band.
type Part = tuple[str, Band]


class ReadPosition(NamedTuple):
    """How far a part has been read."""

    queued_at: datetime
    id: uuid.UUID
    is_last: bool = False  # no queued row followed when the place was looked up


BEGINNING: Final = ReadPosition(datetime(1, 1, 1, tzinfo=UTC), uuid.UUID(int=0))
END: Final = ReadPosition(datetime(9999, 12, 31, tzinfo=UTC), uuid.UUID(int=2**128 - 1))

# Reads the index taskqueue_length only, in as many steps as there are parts.
_PARTS: Final = """
WITH RECURSIVE part (queue, priority) AS (
    (SELECT queue, priority FROM queue_app_task WHERE status IN ('scheduled', 'queued')
     ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority FROM part, LATERAL (
        SELECT queue, priority FROM queue_app_task
        WHERE status IN ('scheduled', 'queued') AND (queue, priority) > (part.queue, part.priority)
        ORDER BY queue, priority LIMIT 1
    ) AS next
)
SELECT queue, priority FROM part
"""
_KINDS: Final = ("text", "smallint", "timestamptz", "uuid", "timestamptz", "uuid")
# Each column as one text: psycopg takes 10 µs for each item of a list, and there may be thousands of queues.
_SEPARATOR: Final = "\x1f"
_ASKED: Final = f"""
unnest({", ".join(f"string_to_array(%s, chr(31))::{kind}[]" for kind in _KINDS)})
    AS asked (queue, priority, queued_at, id, until_at, until_id)
"""
_FOLLOWS: Final = """
t.queue = asked.queue AND t.priority = asked.priority AND (t.queued_at, t.id) > (asked.queued_at, asked.id)
"""
# The last row of the next ``limit`` ones; the present time if fewer follow. Reads the index only.
_ENDS: Final = f"""
SELECT asked.queue, asked.priority, COALESCE(last.queued_at, clock_timestamp()), COALESCE(last.id, asked.until_id),
    last.id IS NULL
FROM {_ASKED} LEFT JOIN LATERAL (
    SELECT t.queued_at, t.id FROM queue_app_task AS t WHERE t.status IN ('scheduled', 'queued') AND {_FOLLOWS}
    ORDER BY t.queued_at, t.id OFFSET %s - 1 LIMIT 1
) AS last ON true
"""
# The statistics of PostgreSQL may be of a time when nothing waited. So the rows of each part are read alone (OFFSET),
# and the `|| ''` hides other indexes of waiting rows from the planner.
_BETWEEN: Final = PACKED.format(
    user='"user"',  # always: the limits that say whether it matters may change during the rebuild
    task=f"""(
        SELECT waiting.* FROM {_ASKED}, LATERAL (
            SELECT t.* FROM queue_app_task AS t
            WHERE t.status IN ('scheduled', 'queued') AND t.status || '' = 'queued'
                AND {_FOLLOWS} AND (t.queued_at, t.id) <= (asked.until_at, asked.until_id) OFFSET 0
        ) AS waiting
    ) AS task""",
)
_BY_INDEX: Final = (f"SELECT {BY_KEYS_ONLY}, set_config('enable_bitmapscan', 'off', true)", ())


def parts() -> list[Part]:
    """Return the queues and bands in which tasks may wait, most urgent band first."""
    found = fetch_together(_BY_INDEX, (_PARTS, ()))
    return sorted(((queue, Band(priority)) for queue, priority in found), key=lambda part: (part[1], part[0]))


def ends(after: Mapping[Part, ReadPosition], limit: int) -> dict[Part, ReadPosition]:
    """Return where the next ``limit`` rows of each part end; the present time if fewer follow."""
    found = fetch_together(_BY_INDEX, (_ENDS, [*_asked(after, dict.fromkeys(after, END)), limit]))
    return {(queue, Band(priority)): ReadPosition(*place) for queue, priority, *place in found}


def between(after: Mapping[Part, ReadPosition], until: Mapping[Part, ReadPosition]) -> list[PackedLane]:
    """Return the queued tasks of each part behind one place, up to the other."""
    return packed_lanes(fetch_together(_BY_INDEX, (_BETWEEN, _asked(after, until))))


def _asked(after: Mapping[Part, ReadPosition], until: Mapping[Part, ReadPosition]) -> list[str]:
    ends = [until[part] for part in after]
    columns: Iterable[Iterable[str]] = (
        (queue for queue, _ in after),
        (str(int(band)) for _, band in after),
        (place.queued_at.isoformat() for place in after.values()),
        (str(place.id) for place in after.values()),
        (place.queued_at.isoformat() for place in ends),
        (str(place.id) for place in ends),
    )
    return [_SEPARATOR.join(column) for column in columns]
