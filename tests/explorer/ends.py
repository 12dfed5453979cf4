"""What a run left behind, told so that two runs with the same end look the same.

Rows and keys decide alone what happens from there on. So an end is judged once. Times and ids are new in each run:
they count by their order, and times also by whether they lie ahead.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from django.db import connection

from queue_app.index import redis_index
from queue_app.index.streams import GROUP
from tests.explorer.gates import CLOCK_KEY
from tests.support.engine import redis_client

#: The tables by which transitions are decided; others only tell of them.
_TABLES: Final = (
    "task", "worker", "queue", "limit", "runtimesettings", "prioritypolicy", "indexgeneration", "deadletter",
    "operation", "schedule", "scheduletick", "rows_state", "rows_lane", "rows_gate", "rows_reservation",
)  # fmt: skip
_ROWS: Final = " UNION ALL ".join(
    f"SELECT '{table}', to_jsonb(each)::text FROM queue_app_{table} AS each"  # noqa: S608 - names of tables
    for table in _TABLES
)
_KEYS: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, value = redis.call('TYPE', key).ok, false
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'stream' and not string.find(key, ':events', 1, true) then
    value = {}
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      value[#value + 1] = entry[1] .. ' ' .. table.concat(entry[2], ' ')
    end
    local pending = redis.pcall('XPENDING', key, ARGV[3], '-', '+', 100)  -- an error when there is no group
    for _, entry in ipairs(pending.err and {} or pending) do
      value[#value + 1] = entry[1] .. ' taken ' .. entry[4]
    end
  end
  found[#found + 1] = { key, kind, value }
end
return { redis.call('GET', ARGV[2]), found }
"""
_TELLS_ONLY: Final = (b":events", b":counters", b":wake:", b":tell")
#: Times of which it only counts that they are set; two of one statement may be equal or not.
_ONLY_SET: Final = re.compile(r'"(finished_at|cancel_requested_at|updated_at)": "[^"]+"')
_TIME: Final = re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+(?:\+00:00|Z)?")
_NUMBER: Final = re.compile(r"(?<![\w.-])\d{13,17}(?:\.\d+)?(?![\w.])")
_ID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def digest(known: Collection[uuid.UUID]) -> str:
    """Return what the rows and the keys say, but for the values of times and of ids that are not known."""
    with connection.cursor() as cursor:
        cursor.execute(_ROWS)
        rows = sorted((table, text) for table, text in cursor.fetchall())
    index = redis_index()
    clock, keys = redis_client().eval(_KEYS, 0, index.keys.everything, CLOCK_KEY, GROUP)
    told = sorted(_line(*each) for each in keys if not any(part in each[0] for part in _TELLS_ONLY))
    text = "\n".join([str(clock), *(f"{table} {row}" for table, row in rows), *told])
    text = _ONLY_SET.sub(r'"\1": "set"', text)
    names = {str(each) for each in known}
    text = _ranked(text, _ID, lambda value: value in names or value.startswith("00000000-"))
    now = datetime.now(UTC).isoformat()
    text = _TIME.sub(lambda match: f"{'ahead' if match[0] > now else 'past'} {match[0]}", text)
    text = _ranked(text, _TIME)
    text = _ranked(text, _NUMBER)
    return hashlib.sha256("\n".join(sorted(text.split("\n"))).encode()).hexdigest()


def _ranked(text: str, pattern: re.Pattern[str], keeps: Any = lambda _: False) -> str:
    """Replace values by their order among all of them."""
    values = sorted({value for value in pattern.findall(text) if not keeps(value)}, key=_order)
    ranks = {value: f"<{number}>" for number, value in enumerate(values)}
    return pattern.sub(lambda match: ranks.get(match[0], match[0]), text)


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if value[:1].isdigit() and "-" not in value else (0.0, value)


def _line(key: bytes, kind: bytes, value: Any) -> str:
    """Return a key and what it holds, in an order that does not depend on the server."""
    parts = [_text(part) for part in value] if isinstance(value, list) else [_text(value)]
    if kind in (b"hash", b"zset"):
        parts = [f"{name}={content}" for name, content in zip(parts[::2], parts[1::2], strict=True)]
    if kind != b"zset":
        parts.sort()
    return json.dumps([_text(key), *parts])


def _text(part: Any) -> str:
    if isinstance(part, bytes) and len(part) == 16 and not part.isascii():
        return str(uuid.UUID(bytes=part))
    return part.decode(errors="backslashreplace") if isinstance(part, bytes) else str(part)
