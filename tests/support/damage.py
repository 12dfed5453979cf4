"""Damage keys of the index, as a hand, a bug or another program may."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import redis

from queue_app.index import Index
from tests.support.index_state import client_of

#: Members that are no id, no name and no number; and an id that no task has.
JUNK = (b"junk", b"\xff\xfe", b"\x1e\x1f", b"7", b"\x01" * 16)
#: Scores that no task, lease or turn can have.
ABSURD = ("-inf", "-5", "1e300", "inf", "0.5")


def by_kind(index: Index) -> dict[str, list[bytes]]:
    """Return the keys of the index by kind, in order."""
    index.flush()
    found: dict[str, list[bytes]] = defaultdict(list)
    for key in sorted(client_of(index).scan_iter(match=index.keys.everything, count=1000)):
        kind = index.keys.kind_of(key)
        assert kind, f"{key!r} is of no kind in queue_app/index/keys.py"
        found[kind].append(key)
    return dict(found)


def dump(index: Index, keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return a copy of keys."""
    return {key: copy for key in keys if (copy := client_of(index).dump(key)) is not None}


def restore(index: Index, copies: dict[bytes, bytes]) -> None:
    """Put copies in the place of keys."""
    for key, copy in copies.items():
        client_of(index).restore(key, 0, copy, replace=True)


def delete(client: redis.Redis, key: bytes) -> None:
    """Delete a key."""
    client.delete(key)


def change_type(client: redis.Redis, key: bytes) -> None:
    """Replace a key by one of another type."""
    is_string = client.type(key) == b"string"
    client.delete(key)
    client.rpush(key, b"junk") if is_string else client.set(key, b"junk")


def add_junk(client: redis.Redis, key: bytes) -> None:
    """Add members without sense."""
    match client.type(key).decode():
        case "string":
            client.set(key, b"\xff junk")
        case "list":
            client.rpush(key, *JUNK)
        case "set":
            client.sadd(key, *JUNK)
        case "zset":
            client.zadd(key, dict(zip(JUNK, ABSURD, strict=True)))
        case "hash":
            client.hset(key, mapping=dict.fromkeys(JUNK, b"\xff junk"))
        case "stream":
            client.xadd(key, {b"\xff": b"junk"})


def change_values(client: redis.Redis, key: bytes) -> None:
    """Give the present members scores and values without sense."""
    match client.type(key).decode():
        case "string":
            client.set(key, b"-1")
        case "zset":
            if members := client.zrange(key, 0, -1):
                client.zadd(key, {member: ABSURD[at % len(ABSURD)] for at, member in enumerate(members)})
        case "hash":
            values = (b"\xff junk", b"-1", b"1e300", b"")
            if fields := client.hkeys(key):
                client.hset(key, mapping={field: values[at % len(values)] for at, field in enumerate(fields)})
        case _:
            add_junk(client, key)


def halve(client: redis.Redis, key: bytes) -> None:
    """Remove every other member, the first one too."""
    match client.type(key).decode():
        case "set":
            if members := sorted(client.smembers(key))[::2]:
                client.srem(key, *members)
        case "zset":
            if members := client.zrange(key, 0, -1)[::2]:
                client.zrem(key, *members)
        case "hash":
            if fields := sorted(client.hkeys(key))[::2]:
                client.hdel(key, *fields)
        case "stream":
            client.xdel(key, *[entry for entry, _ in client.xrange(key)][::2])
        case "list":
            client.lpop(key)
        case _:
            client.delete(key)


MANNERS: dict[str, Callable[[redis.Redis, bytes], None]] = {
    "deleted": delete,
    "of another type": change_type,
    "with junk": add_junk,
    "with absurd values": change_values,
    "cut to half": halve,
}


def inflict(index: Index, manner: str, keys: Iterable[bytes], old: dict[bytes, bytes]) -> None:
    """Damage keys; ``old`` are copies of an earlier moment."""
    index.flush()
    for key in keys:
        if manner == "an old copy":
            restore(index, {key: old[key]} if key in old else {})
        else:
            MANNERS[manner](client_of(index), key)
