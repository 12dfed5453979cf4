"""The streams of the index: the events that others read, and the requests of other services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import batched
from typing import Any, NamedTuple

from queue_app.core.events import Event
from queue_app.index.client import redis, text


def read_events(client: redis.Redis, key: str, after_id: str, *, count: int, block_ms: int | None) -> list[Event]:
    """Return the events after ``after_id``; wait up to ``block_ms`` for the first (0 and ``None``: do not wait)."""
    try:
        reply: Any = client.xread({key: after_id}, count=count, block=block_ms or None)
    except redis.TimeoutError:  # CACHES has a shorter socket timeout
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1] if reply else []
    if entries and isinstance(entries[0], list):  # some protocol versions wrap the entries in one more list
        entries = entries[0]
    return [
        event
        for entry_id, fields in entries
        for event in Event.from_fields(text(entry_id), {text(name): text(value) for name, value in fields.items()})
    ]


# The stream through which other services ask for tasks, read by one consumer group.

#: One name for all schedulers: it does not matter which of them took a request, only how long ago. So the list of
#: consumers does not grow with every restart.
GROUP = CONSUMER = "taskqueue"
#: Maximum requests per call of a script.
BATCH = 500


class Request(NamedTuple):
    """An entry of the stream, as its sender wrote it."""

    id: str
    fields: list[tuple[bytes, bytes]]


class TakenRequests(NamedTuple):
    """Requests to carry out now, taken for the ``times``-th time."""

    times: int
    requests: list[Request]


class Backlog(NamedTuple):
    """How many requests wait or are being carried out, and how many are quarantined."""

    waiting: int
    quarantined: int


class RequestStream:
    """The request stream of an index; ``call`` runs a script."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def take(self, idle_ms: int, count: int) -> TakenRequests:
        """Take one request that was taken ``idle_ms`` ago and not acknowledged, else up to ``count`` new ones.

        Creates the group when it is missing: at first, and after Redis was emptied.
        """
        times, *entries = self._call("take_requests", GROUP, CONSUMER, idle_ms, min(count, BATCH))
        pairs = ((entry_id.decode(), zip(parts[::2], parts[1::2], strict=True)) for entry_id, parts in entries)
        return TakenRequests(int(times), [Request(entry_id, list(fields)) for entry_id, fields in pairs])

    def acknowledge(self, ids: Iterable[str]) -> int:
        """Remove requests that are done from the stream; return how many were there."""
        return sum(int(self._call("acknowledge_requests", GROUP, *batch)) for batch in batched(ids, BATCH))

    def postpone(self, ids: Iterable[str], times: int, idle_ms: int) -> None:
        """Postpone requests, as if they had been tried ``times`` times, the last time ``idle_ms`` ago."""
        for batch in batched(ids, BATCH):
            self._call("postpone_requests", GROUP, CONSUMER, times, idle_ms, *batch)

    def quarantine(self, entry_id: str, why: Mapping[str, str], *, keep: int, max_bytes: int) -> bool:
        """Move a request to the quarantine, for an operator to look at; return whether it was there."""
        reasons = [part for pair in why.items() for part in pair]
        return bool(self._call("quarantine_request", GROUP, entry_id, keep, max_bytes, *reasons))

    def backlog(self) -> Backlog:
        return Backlog(*map(int, self._call("request_backlog")))
