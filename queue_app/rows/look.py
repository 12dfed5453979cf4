"""Questions about what waits: positions, lanes, types."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from queue_app.core.limits import lane_name
from queue_app.core.priorities import Band, effective_band, rises
from queue_app.models import PriorityPolicy, Queue
from queue_app.rows.tables import ADDRESS, ask
from queue_app.sql.database import alias, clock
from queue_app.sql.snapshot import BEGINNING, END

#: A position beyond this is not counted.
COUNTED: Final = 1000

# Reads the index taskqueue_length in steps: one for each band.
_AHEAD: Final = f"""
SELECT count(*) FROM unnest(%s::smallint[], %s::timestamptz[], %s::uuid[]) AS until (band, at, id), LATERAL (
    SELECT FROM queue_app_task AS t
    WHERE t.status IN ('scheduled', 'queued') AND t.status || '' = 'queued' AND t.queue = %s
        AND t.priority = until.band AND (t.queued_at, t.id) < (until.at, until.id) AND t.id <> %s
    LIMIT {COUNTED}
) AS ahead
"""


def position(task_id: uuid.UUID, queue: str, band: Band, queued_at: datetime) -> int | None:
    """Return the position of a task in its queue, from 1; ``None`` beyond ``COUNTED``."""
    own = (queued_at, task_id)
    if queue in Queue.by_arrival(alias()):
        ends = dict.fromkeys(Band, own)
    else:
        thresholds, now = PriorityPolicy.thresholds(alias()), clock()
        level = effective_band(band, queued_at, now, thresholds)
        ends = {}
        for each in Band:
            since = {each: END.queued_at} | {
                rise.to: now - timedelta(seconds=rise.after) for rise in rises(each, thresholds)
            }
            above = max((at for to, at in since.items() if to < level), default=BEGINNING.queued_at)
            beside = max((at for to, at in since.items() if to <= level), default=BEGINNING.queued_at)
            ends[each] = max((above, BEGINNING.id), min((beside, BEGINNING.id), own))
    at, ids = zip(*ends.values(), strict=True)
    ahead = ask("position", (_AHEAD, [[int(each) for each in ends], list(at), list(ids), queue, task_id]))[0][0]
    return ahead + 1 if ahead < COUNTED else None


def lane_sizes(queue: str | None) -> Iterator[tuple[str, int]]:
    """Yield each address in which tasks wait, of one queue or of all, with the number of its tasks."""
    where, params = ("", []) if queue is None else (" AND queue = %s", [queue])
    sql = f"SELECT {ADDRESS}, count(*) FROM queue_app_task WHERE status = 'queued'{where} GROUP BY {ADDRESS}"
    for *address, count in ask("lane_sizes", (sql, params)):
        yield lane_name(*address), count


def queues() -> list[str]:
    """Return the queues in which tasks wait, or have waited a moment ago."""
    return [name for (name,) in ask("queues", ("SELECT DISTINCT queue FROM queue_app_rows_lane ORDER BY 1", []))]


def unserved_types(among: Sequence[str], served: Sequence[str]) -> set[str]:
    """Return the task types that wait in the queues (none: all) and are not served."""
    sql = (
        "SELECT DISTINCT task_type FROM queue_app_rows_lane"
        " WHERE (queue = ANY(%s::text[]) OR cardinality(%s::text[]) = 0) AND task_type <> ALL(%s::text[])"
    )
    found = ask("unserved_types", (sql, [list(among), list(among), list(served)]))
    return {name for (name,) in found}


def executing() -> list[uuid.UUID]:
    """Return the tasks that hold slots."""
    return [task_id for (task_id,) in ask("leases", ("SELECT id FROM queue_app_task WHERE status = 'executing'", []))]


def generation() -> tuple[int, str]:
    """Return the generation of the tables and its state."""
    found = ask("generation", ("SELECT number, state FROM queue_app_rows_state WHERE id = 1", []))
    return found[0] if found else (0, "missing")
