"""The kinds of keys, and the keys that Python uses itself; ``lua/lib/keys.lua`` describes and builds the others."""

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """What the keys of a kind hold, and whether a rebuild keeps them."""

    type: str  # as Redis names it
    is_kept: bool = False


#: Every kind of key, by the part of its name after the prefix; a name that ends with ":" goes on. A rebuild keeps data
#: that no row holds, and the copies of limits: pushes during the rebuild need the limits to find the lane of a task.
KINDS: Final = {
    "generation": Kind("hash", is_kept=True),
    "settings": Kind("hash", is_kept=True),
    "counters": Kind("hash", is_kept=True),
    "events": Kind("stream", is_kept=True),
    "requests": Kind("stream", is_kept=True),
    "requests:poison": Kind("stream", is_kept=True),
    "queues": Kind("set"),
    "limited": Kind("set", is_kept=True),
    "limits": Kind("set", is_kept=True),
    "leases": Kind("hash"),
    "profiles": Kind("set"),
    "refills": Kind("zset"),
    "reservations": Kind("hash"),
    "gates": Kind("set"),
    "loading": Kind("hash", is_kept=True),
    "queue:": Kind("hash", is_kept=True),
    "limit:": Kind("hash", is_kept=True),
    "weights:": Kind("hash", is_kept=True),
    "bucket:": Kind("hash", is_kept=True),
    "lanes:": Kind("set"),
    "types:": Kind("hash"),
    "lane:": Kind("zset"),
    "leases:": Kind("zset"),
    "held:": Kind("set"),
    "profile:": Kind("set"),
    "profile:slots": Kind("string"),
    "heads:": Kind("zset"),
    "group:": Kind("zset"),
    "at:": Kind("hash"),
    "spots:": Kind("set"),
    "turns:": Kind("zset"),
    "turn:": Kind("zset"),
    "nodes:": Kind("hash"),
    "idle:": Kind("zset"),
    "short:": Kind("zset"),
    "watch:": Kind("string"),
    "wake:": Kind("list", is_kept=True),
    "tell:": Kind("list", is_kept=True),
    "lock:": Kind("string", is_kept=True),
    "throttle:": Kind("string", is_kept=True),
}


class Keys:
    """The keys under one prefix, all in one hash slot of a cluster."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{{{prefix}}}"
        self.everything = f"{self.prefix}:*"  # the pattern of all keys
        self.generation = f"{self.prefix}:generation"  # hash, with the stamp of the last claim
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
