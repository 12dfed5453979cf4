"""Notifications: how queued tasks travel to ``lua/push.lua``, and events to ``lua/publish.lua`` and their readers."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import batched
from typing import Any, NamedTuple

from queue_app import conf
from queue_app.core.counters import ADAPTED
from queue_app.core.events import COUNTED, Event, EventName, Occasion, Run, traced_each
from queue_app.core.ids import as_texts
from queue_app.core.records import Entry, PackedLane
from queue_app.index.client import redis, text

#: Maximum number of tasks per entry. One entry per task would cost a busy worker a sixth of its speed, most of it in
#: the server; entries of unlimited size would leave the stream without a limit, as it is capped in entries.
IDS_PER_ENTRY = 16
#: Maximum ids of one lane per call, and about the number of ids of all its lanes.
CHUNK = 1000
#: A lane costs a script as much as this number of further ids.
IDS_A_LANE = 19


def pack(entries: Iterable[Entry]) -> list[Any]:
    """Return the arguments of ``lua/push.lua`` for these entries."""
    lanes: dict[str, tuple[list[bytes], list[float]]] = {}
    for lane, score, task_id in entries:
        found = lanes.get(lane)
        if found is None:
            found = lanes[lane] = [], []
        found[0].append(task_id.bytes)
        found[1].append(score)
    arguments: list[Any] = []
    for lane, (ids, scores) in lanes.items():
        places = scores if len(set(scores)) > 1 else scores[:1]
        arguments += (lane, b"".join(ids), struct.pack(f">{len(places)}d", *places))
    return arguments


def lane_arguments(lanes: Iterable[PackedLane]) -> Iterator[list[str | bytes]]:
    """Yield the arguments of ``lua/push.lua`` or ``lua/misplaced.lua``, for one call after another."""
    arguments: list[str | bytes] = []
    count = 0
    for lane in lanes:
        for start in range(0, lane.size, CHUNK):
            part = lane.part(start, start + CHUNK)
            arguments += part
            count += part.size + IDS_A_LANE
            if count >= CHUNK:
                yield arguments
                arguments, count = [], 0
    if arguments:
        yield arguments


def publish_arguments(runs: Iterable[Run]) -> list[Any]:
    """Return the arguments of ``lua/publish.lua`` for these events, and for what they count."""
    settings = conf.get()
    published: list[tuple[Occasion, list[str]]] = []
    counts: dict[str, int] = {}
    keeps_events = settings.events.max_length > 0
    for occasion, task_ids, traces in runs:
        if occasion.name == COUNTED:
            for name, count in batched(occasion.details, 2):
                counts[name] = counts.get(name, 0) + int(count)
            continue
        if keeps_events:
            texts = as_texts(task_ids) if len(task_ids) > 1 else map(str, task_ids)  # faster for many, or for one
            entries = list(batched(texts, IDS_PER_ENTRY))
            if any(traces):
                for ids, some in zip(entries, batched(traces, IDS_PER_ENTRY), strict=True):
                    published.append((traced_each(occasion, ids, some), [" ".join(ids)]))
            else:
                published.append((occasion, [" ".join(ids) for ids in entries] or [""]))
        name = _counter_of(occasion)
        counts[name] = counts.get(name, 0) + max(1, len(task_ids))
    return [
        settings.events.max_length,
        json.dumps(published),
        *((part for item in counts.items() for part in item) if settings.metrics.enabled else ()),
    ]


def _counter_of(occasion: Occasion) -> str:
    """Return the name under which such events are counted (``core.counters``)."""
    if occasion.name == EventName.LIMIT_ADAPTED:
        return ADAPTED
    details = occasion.details
    reason = details[1] if details[:1] == ("reason",) else ""
    return f"event:{occasion.name}:{occasion.queue}:{occasion.priority}:{occasion.status}:{reason}"


def split(runs: Iterable[Run], size: int) -> Iterator[list[Run]]:
    """Cut events into parts of at most ``size``; neighbours of one occasion are joined, and the order stays.

    Counts that belong to no event go with the last part.
    """
    part: list[Run] = []
    counts: list[Run] = []
    ids: list[uuid.UUID] = []  # of the last run in the part
    parents: list[str | None] = []
    room = size
    for run in runs:
        occasion, task_ids, traces = run
        if occasion.name == COUNTED:
            counts.append(run)
            continue
        if not task_ids:
            part.append(Run(occasion, []))
        at = 0
        while at < len(task_ids):
            taken, of_taken = task_ids[at : at + room], traces[at : at + room]
            last = part[-1] if part else None
            if last and last.task_ids is ids and last.occasion == occasion and bool(parents) == bool(traces):
                ids += taken
                parents += of_taken
            else:
                ids, parents = list(taken), list(of_taken)
                part.append(Run(occasion, ids, parents))
            at += len(taken)
            room -= len(taken)
            if not room:
                yield part
                part, room = [], size
    part += counts
    if part:
        yield part


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
