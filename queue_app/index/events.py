"""Read the stream of lifecycle events."""

from __future__ import annotations

from typing import Any

from queue_app.core.events import Event
from queue_app.index.lazy import redis


def read_events(client: redis.Redis, key: str, after_id: str, *, count: int, block_ms: int | None) -> list[Event]:
    """Return the events that follow ``after_id``; wait ``block_ms`` for the first, 0 and none do not wait."""
    try:
        reply: Any = client.xread({key: after_id}, count=count, block=block_ms or None)
    except redis.TimeoutError:  # a shorter socket timeout in CACHES
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1] if reply else []
    return [event for entry_id, fields in _entries(entries) for event in _events(entry_id, fields)]


def last_event_id(client: redis.Redis, key: str) -> str:
    """Return the id of the newest event."""
    newest: Any = client.xrevrange(key, count=1)
    return text(newest[0][0]) if newest else "0-0"


def _entries(entries: Any) -> Any:
    """Undo the extra list that some protocol versions wrap a stream's entries in."""
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _events(entry_id: bytes | str, fields: dict[Any, Any]) -> list[Event]:
    return Event.from_fields(text(entry_id), {text(name): text(value) for name, value in fields.items()})


def text(value: bytes | str) -> str:
    """Return what the client returned as text, whatever bytes it holds."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
