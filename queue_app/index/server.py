"""Facts about the server of the index and its state, for ``taskqueue doctor`` and the health check."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from typing import Any, NamedTuple

from queue_app import conf
from queue_app.core.limits import Lane, parse_lane, queued_at_of
from queue_app.exceptions import IndexUnavailable
from queue_app.index.calls import readable, translated
from queue_app.index.client import describe, redis, text
from queue_app.index.index import Index


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Name, version, memory (bytes), persistence and clock (seconds) of a server."""

    product: str  # Redis or Valkey
    version: tuple[int, ...]  # of the compatible Redis
    displayed_version: str
    policy: str  # maxmemory-policy
    used: int
    limit: int  # maxmemory; 0: none
    machine: int  # memory of its machine; 0: unknown
    append_only: bool
    snapshots: str | None  # the `save` rules; None: unknown, empty: none
    last_save_failed: bool
    clock_ahead: float  # of this machine's clock
    clock_error: float  # uncertainty of clock_ahead


def server_facts(index: Index) -> ServerFacts:
    """Return the facts that the server reports. Raises ``IndexUnavailable``."""
    client = index._client  # noqa: SLF001 - of the same package
    with translated("info", index.alias):
        info: dict[str, Any] = client.info()
        before = time.time()
        seconds, microseconds = client.time()
        after = time.time()
    valkey = info.get("valkey_version")
    version = str(info.get("redis_version", "0"))
    return ServerFacts(
        product="Valkey" if valkey else "Redis",
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        displayed_version=str(valkey or version),
        policy=str(info.get("maxmemory_policy", "unknown")),
        used=int(info.get("used_memory", 0)),
        limit=int(info.get("maxmemory", 0)),
        machine=int(info.get("total_system_memory", 0)),
        append_only=bool(int(info.get("aof_enabled", 0))),
        snapshots=_snapshots(client),
        last_save_failed=info.get("rdb_last_bgsave_status") == "err" or info.get("aof_last_write_status") == "err",
        clock_ahead=int(seconds) + int(microseconds) / 1e6 - (before + after) / 2,
        clock_error=(after - before) / 2,
    )


def _snapshots(client: redis.Redis) -> str | None:
    """Return the rules of snapshots; ``None`` if the server refuses ``CONFIG GET``, as many hosted servers do."""
    try:
        found = client.config_get("save")
    except redis.RedisError:
        return None
    return text(next(iter(found.values()), "") or "")


class IndexHealth(NamedTuple):
    """The generation of the index and its state (ready, loading, rebuilding, missing).

    ``owner`` is the identity of the database to which the index belongs.
    ``refusal``: why the server refuses writes.
    """

    generation: int
    state: str
    refusal: str
    owner: str = ""


def index_health(index: Index) -> IndexHealth:
    """Return the health of the index, at a cost that does not grow with it. Raises ``IndexUnavailable``."""
    found = index.generation()
    return IndexHealth(found.number, found.state, refused_writes(index), found.owner)


def refused_writes(index: Index) -> str:
    """Return why the server refuses writes, empty if it accepts them. Raises ``IndexUnavailable``.

    A server that reads and does not write is a replica (READONLY), has no memory (OOM) or no disk (MISCONF). Then no
    index can be built, so it seems to be missing. The command writes nothing: XX sets only a key that exists, and this
    one never does.
    """
    if index.way == conf.ROWS:
        return ""
    try:
        with translated("set", index.alias):
            index._client.set(index.keys.lock("probe"), "", xx=True, px=1)  # noqa: SLF001 - of the same package
    except IndexUnavailable as error:
        cause = error.__cause__
        if not isinstance(cause, redis.ResponseError):
            raise
        return describe(cause)
    return ""


class WaitingLane(NamedTuple):
    """A lane with its number of waiting tasks, and the time at which the oldest of them was queued."""

    lane: Lane
    tasks: int
    oldest: datetime


def waiting_lanes(index: Index, queue: str) -> Iterator[WaitingLane]:
    """Yield the lanes of a queue in which tasks wait; a lane may come twice. Raises ``IndexUnavailable``."""
    with readable("waiting_lanes"):
        for page in index._scan("waiting_lanes", queue):  # noqa: SLF001 - of the same package
            for name, found in batched(page, 2):
                count, _, first = text(found).partition(" ")
                with suppress(ValueError):  # the name is damaged; the watchdog removes it
                    if first:
                        yield WaitingLane(parse_lane(name.decode()), int(count), queued_at_of(float(first)))
