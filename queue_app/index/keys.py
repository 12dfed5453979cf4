"""The kinds of keys, and the keys that Python uses itself; ``lua/lib/keys.lua`` describes and builds the others."""

from typing import Final, NamedTuple


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
