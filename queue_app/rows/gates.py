"""Gates in PostgreSQL: which a task must pass, and which claims look at again."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from queue_app.core.limits import FAIR, Scope, gate_of
from queue_app.core.records import TaskRef
from queue_app.index.keys import GateState, Placement
from queue_app.index.limits import GateLimits
from queue_app.models import Queue
from queue_app.rows.look import COUNTED
from queue_app.rows.tables import ask, translated
from queue_app.sql import snapshot
from queue_app.sql.database import alias, execute, fetch_all
from queue_app.sql.prepared import Row

#: Maximum number of holders that are named.
HOLDERS: Final = 20
#: Separates queue and user in the name of a user's gate.
_SEPARATOR: Final = "\x1e"

# The bucket of a rate is empty at first; one that began long ago is full.
_BEGIN: Final = """
INSERT INTO queue_app_rows_gate (gate, since)
SELECT gate, CASE WHEN %s THEN 0 ELSE EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 END
FROM unnest(%s::text[]) AS paced (gate) ORDER BY gate
ON CONFLICT (gate) DO NOTHING
"""
# A family's limit holds for its keys, and a queue's for its users.
_LOOK_AGAIN: Final = """
UPDATE queue_app_rows_gate AS closed SET opens = 0
WHERE closed.closed AND EXISTS (
    SELECT FROM unnest(%s::text[]) AS edited (gate) WHERE closed.gate = edited.gate
        OR left(edited.gate, 2) = 'k:' AND (
            closed.gate = 'f:' || substr(edited.gate, 3) OR starts_with(closed.gate, edited.gate || ':'))
        OR left(edited.gate, 2) = 'q:' AND starts_with(closed.gate, 'u' || substr(edited.gate, 2) || chr(30))
)
RETURNING 1
"""
_USED: Final = """
SELECT jsonb_build_object(%s::text, count(*), %s::text, count(*) FILTER (WHERE queue = %s),
    %s::text, count(*) FILTER (WHERE task_type = %s), %s::text, count(*) FILTER (WHERE concurrency_key = %s),
    %s::text, count(*) FILTER (WHERE queue = %s AND "user" = %s))::text
FROM queue_app_task WHERE status = 'executing'
"""
_STATES: Final = f"""
SELECT gate.name, r.room, r.opens, r.taken, r.cap, r.paused, r.throttled, r.burst, r."interval", r.delay,
    ARRAY(
        SELECT id FROM queue_app_task AS t WHERE status = 'executing' AND r.cap <= r.taken AND CASE left(gate.name, 1)
            WHEN 'a' THEN true WHEN 'q' THEN queue = substr(gate.name, 3) WHEN 't' THEN task_type = substr(gate.name, 3)
            WHEN 'k' THEN concurrency_key = substr(gate.name, 3)
            ELSE queue || chr(30) || "user" = substr(gate.name, 3) END
        LIMIT {HOLDERS}
    )
FROM unnest(%s::text[]) WITH ORDINALITY AS gate (name, n),
    LATERAL queue_app_gate_room_1(gate.name, %s::jsonb, EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS r
ORDER BY n
"""
_OWN_AHEAD: Final = f"""
SELECT count(*) FROM (
    SELECT FROM queue_app_task WHERE status = 'queued' AND queue = %s AND {{owner}} = %s AND (queued_at, id) < (%s, %s)
    LIMIT {COUNTED}
) AS ahead
"""
_SCOPES: Final = {"a": "everything", "q": "queue", "t": "type", "k": "key", "f": "key", "u": "user"}


def begin(gates: Iterable[GateLimits], *, full: bool = False) -> None:
    """Give rates and delays their buckets; ``full`` ones, for tests."""
    paced = [gate for gate, limits in gates if limits and (limits.rate_count or limits.min_delay_seconds)]
    if paced:
        execute(_BEGIN, [full, paced])


def look_again(gates: Iterable[GateLimits]) -> int:
    """Let claims look at gates again that were closed when they looked last; return how many were.

    Stands in line with claims, which change gates in another order: PostgreSQL takes 1 s to find a deadlock.
    """
    found = list(gates)
    with translated("set_limits"), snapshot.without_claims():
        begin(found)
        return len(fetch_all(_LOOK_AGAIN, [[gate for gate, _ in found]]))


def placement(state: str, task: TaskRef) -> Placement:
    """Return where a task stands, and the gates that it must pass to start."""
    key, user = task.concurrency_key, f"{task.queue}{_SEPARATOR}{task.user}"
    names = ["a", gate_of(Scope.QUEUE, task.queue), gate_of(Scope.TYPE, task.task_type)]
    if key:
        names += [f"f:{key.partition(':')[0]}"] * (":" in key) + [gate_of(Scope.KEY, key)]
    if task.user:
        names.append(f"u:{user}")
    counted = [names[0], names[1], task.queue, names[2], task.task_type, f"k:{key}", key]
    used = ask("explain", (_USED, [*counted, f"u:{user}", task.queue, task.user]))[0][0]
    states = [
        _state(row)
        for row in ask("explain", (_STATES, [names, used]))
        if row[0][0] in "aq" or row[4] is not None or any(row[5:10])
    ]
    turns = _turns(task.queue)
    own = {"user": ('"user"', task.user), "key": ("concurrency_key", task.concurrency_key)}.get(turns)
    ahead = 0
    if own:
        ahead = fetch_all(_OWN_AHEAD.format(owner=own[0]), [task.queue, own[1], task.queued_at, task.id])[0][0]
    return Placement(state, True, False, turns, ahead, tuple(states))


def _turns(queue: str) -> str:
    """Return who takes turns in a queue: user, key, or ''."""
    found = Queue.objects.using(alias()).filter(name=queue, order=FAIR).values_list("fair_by", flat=True).first()
    return found or ""


def _state(row: Row) -> GateState:
    gate, room, opens, used, cap, paused, throttled, burst, interval, delay, holders = row
    step = interval or delay
    return GateState(
        scope=_SCOPES[gate[0]],
        name=gate[2:].rpartition(_SEPARATOR)[2],
        room=room,
        next_at=_instant(opens),
        used=used,
        cap=cap,
        paused=paused,
        throttled_until=_instant(throttled),
        burst=burst,
        interval=None if step is None else float(step) / 1e6,
        holders=tuple(holders),
    )


def _instant(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(float(at) / 1e6, UTC)
