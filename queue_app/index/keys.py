"""The kinds of keys, and the keys that Python uses itself; ``lua/lib/keys.lua`` describes and builds the others."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self


class KeyKind(NamedTuple):
    """What the keys of a kind hold, and whether a rebuild keeps them."""

    type: str  # as Redis names it
    is_kept: bool = False


#: Every kind of key, by the part of its name after the prefix; a name that ends with ":" has a suffix. A rebuild keeps
#: data that no row holds, and the copies of limits: pushes during the rebuild need them to find the lane of a task.
KINDS: Final = {
    "generation": KeyKind("hash", is_kept=True),
    "settings": KeyKind("hash", is_kept=True),
    "counters": KeyKind("hash", is_kept=True),
    "events": KeyKind("stream", is_kept=True),
    "requests": KeyKind("stream", is_kept=True),
    "requests:poison": KeyKind("stream", is_kept=True),
    "queues": KeyKind("set"),
    "limited": KeyKind("set", is_kept=True),
    "limits": KeyKind("set", is_kept=True),
    "leases": KeyKind("hash"),
    "profiles": KeyKind("set"),
    "refills": KeyKind("zset"),
    "reservations": KeyKind("hash"),
    "exchanges": KeyKind("hash"),
    "gates": KeyKind("set"),
    "loading": KeyKind("hash", is_kept=True),
    "queue:": KeyKind("hash", is_kept=True),
    "limit:": KeyKind("hash", is_kept=True),
    "weights:": KeyKind("hash", is_kept=True),
    "bucket:": KeyKind("hash", is_kept=True),
    "lanes:": KeyKind("set"),
    "types:": KeyKind("hash"),
    "lane:": KeyKind("zset"),
    "leases:": KeyKind("zset"),
    "held:": KeyKind("set"),
    "profile:": KeyKind("set"),
    "profile:slots": KeyKind("string"),
    "heads:": KeyKind("zset"),
    "group:": KeyKind("zset"),
    "at:": KeyKind("hash"),
    "spots:": KeyKind("set"),
    "turns:": KeyKind("zset"),
    "turn:": KeyKind("zset"),
    "nodes:": KeyKind("hash"),
    "idle:": KeyKind("zset"),
    "short:": KeyKind("zset"),
    "watch:": KeyKind("string"),
    "wake:": KeyKind("list", is_kept=True),
    "tell:": KeyKind("list", is_kept=True),
    "lock:": KeyKind("string", is_kept=True),
    "throttle:": KeyKind("string", is_kept=True),
}


class Keys:
    """The keys under one prefix, all in one hash slot of a cluster."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{{{prefix}}}"
        self.everything = f"{self.prefix}:*"  # the pattern of all keys
        self.generation = f"{self.prefix}:generation"  # hash, with the stamp of the last claim
        self.counters = f"{self.prefix}:counters"
        self.events = f"{self.prefix}:events"
        self.requests = f"{self.prefix}:requests"
        self.poison = f"{self.prefix}:requests:poison"
        self.queues = f"{self.prefix}:queues"
        self.profiles = f"{self.prefix}:profiles"
        self.leases = f"{self.prefix}:leases"
        self.limits = f"{self.prefix}:limits"
        self.limited = f"{self.prefix}:limited"

    def queue_leases(self, queue: str) -> str:
        """The sorted set of a queue's leases: id -> leased at (µs)."""
        return f"{self.prefix}:leases:{queue}"

    def limits_of(self, gate: str) -> str:
        """The hash of the limits of a queue, a type, a key or a family."""
        return f"{self.prefix}:queue:{gate[2:]}" if gate.startswith("q:") else f"{self.prefix}:limit:{gate}"

    def lanes(self, queue: str) -> str:
        """The set of a queue's lanes that hold tasks."""
        return f"{self.prefix}:lanes:{queue}"

    def profile(self, profile: str, part: str) -> str:
        """A part of a profile: its queues, types, capabilities, slots or workers."""
        return f"{self.prefix}:profile:{profile}:{part}"

    def held(self, gate: str) -> str:
        """The set of the leased ids that passed a gate."""
        return f"{self.prefix}:held:{gate}"

    def wake(self, worker_id: str) -> str:
        """The list on which a worker waits for its wake-up call."""
        return f"{self.prefix}:wake:{worker_id}"

    def tell(self, worker_id: str) -> str:
        """The list on which a worker is notified that one of its rows changed."""
        return f"{self.prefix}:tell:{worker_id}"

    def lock(self, name: str) -> str:
        """The token of the holder of a lock, with expiry."""
        return f"{self.prefix}:lock:{name}"

    @property
    def probe(self) -> tuple[str | int, ...]:
        """A command that a server refuses which refuses writes, as in ``refused_writes``. It writes nothing."""
        return "SET", self.lock("probe"), "", "XX", "PX", 1

    def throttle(self, name: str) -> str:
        """The number of API calls of one caller in one window."""
        return f"{self.prefix}:throttle:{name}"

    def kind_of(self, key: bytes) -> str | None:
        """Return the name of the key's kind in ``KINDS``; ``None`` for a key that no version up to this one writes."""
        name = key.removeprefix(self.prefix.encode() + b":").decode(errors="replace")
        if name in KINDS:
            return name
        kind = name.partition(":")[0] + ":"
        if kind == "profile:" and name.endswith(":slots"):
            return "profile:slots"
        return kind if kind in KINDS else None


# Where a task stands in the index, and the gates that it must pass to start.

_SCOPES = {"a": "everything", "q": "queue", "t": "type", "k": "key", "u": "user"}
#: Separates queue and user in the name of a user's gate.
_USER_SEPARATOR = "\x1e"


@dataclass(frozen=True, slots=True)
class GateState:
    """One gate: ``room`` tasks may start now (``None``: unlimited). ``next_at`` is set if time alone opens the gate."""

    scope: str  # everything, queue, type, key, user
    name: str
    room: int | None
    next_at: datetime | None
    used: int
    cap: int | None
    paused: bool
    throttled_until: datetime | None
    burst: int | None  # starts that a full bucket holds
    interval: float | None  # seconds between two starts
    holders: tuple[uuid.UUID, ...]  # some tasks that hold the slots of a gate at its cap

    @property
    def is_closed(self) -> bool:
        return self.room is not None and self.room <= 0

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> Self:
        name = reply[0].decode()
        room, next_at, used, cap = (_number(part) for part in reply[1:5])
        kind, _, rest = name.partition(":")
        return cls(
            scope=_SCOPES[kind],
            name=rest.rpartition(_USER_SEPARATOR)[2] if kind == "u" else rest,
            room=room,
            next_at=_instant(next_at),
            used=used or 0,
            cap=cap,
            paused=reply[5] == b"1",
            throttled_until=_instant(_number(reply[6])),
            burst=_number(reply[7]),
            interval=None if (interval := _number(reply[8])) is None else interval / 1e6,
            holders=tuple(uuid.UUID(bytes=task_id) for task_id in reply[9:] if len(task_id) == 16),  # noqa: PLR2004
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """What the index knows of one task: it ``waits`` in its lane, ``is_leased``, or is not indexed."""

    state: str  # of the generation: ready, loading, rebuilding, missing
    waits: bool
    is_leased: bool
    turns: str  # who takes turns in its queue: user, key, or ''
    own_ahead: int  # tasks of the same user or key before it
    gates: tuple[GateState, ...]

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> Self:
        """Return the placement that ``lua/explain.lua`` replied."""
        state, _number_of_it, place, leased, turns, own_ahead, *gates = reply
        states = tuple(map(GateState.from_reply, gates))
        return cls(state.decode(), place != b"", leased != b"", turns.decode(), own_ahead, states)


def _number(part: Any) -> int | None:
    return None if part in (b"", "") else int(part)


def _instant(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1e6, UTC)
