"""Read the whole index as plain Python, and check that its parts agree with each other."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field

from queue_app.index import Index

SEPARATOR = "\x1f"


@dataclass(slots=True)
class IndexState:
    """Everything that the index holds, decoded."""

    lanes: dict[str, dict[uuid.UUID, float]] = field(default_factory=dict)  # lane -> id -> score
    lane_sets: dict[str, set[str]] = field(default_factory=dict)  # queue -> lanes
    queues: set[str] = field(default_factory=set)
    leases: set[uuid.UUID] = field(default_factory=set)
    queue_leases: dict[str, dict[uuid.UUID, int]] = field(default_factory=dict)  # queue -> id -> leased at
    limits: dict[str, dict[str, str]] = field(default_factory=dict)  # queue -> paused, max_concurrent
    overall: dict[str, str] = field(default_factory=dict)
    profiles: set[str] = field(default_factory=set)
    profile_parts: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(dict))
    heads: dict[str, dict[str, float]] = field(default_factory=dict)  # profile -> queue -> score
    queue_heads: dict[tuple[str, str], dict[str, float]] = field(
        default_factory=dict
    )  # profile, queue -> lane -> score
    idle: dict[str, set[str]] = field(default_factory=dict)  # profile -> workers
    calls: dict[str, int] = field(default_factory=dict)  # worker -> wake-up calls that wait

    @property
    def waiting(self) -> set[uuid.UUID]:
        """Every id that waits in a lane."""
        return {task_id for lane in self.lanes.values() for task_id in lane}

    def runs(self, profile: str, lane: str) -> bool:
        """Whether workers of the profile can run the lane."""
        queue, task_type, capabilities = lane.split(SEPARATOR)
        parts = self.profile_parts[profile]
        queues = parts.get("queues", set())
        return (
            task_type in parts.get("types", set())
            and (not queues or queue in queues)
            and set(filter(None, capabilities.split(","))) <= parts.get("capabilities", set())
        )

    def paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return self.limits.get(queue, {}).get("paused") == "1"

    def full(self, queue: str) -> bool:
        """Whether the queue is at its cap."""
        cap = self.limits.get(queue, {}).get("max_concurrent")
        return cap is not None and len(self.queue_leases.get(queue, {})) >= int(cap)


def read(index: Index) -> IndexState:  # noqa: C901, PLR0912 - one case for each kind of key
    """Return what the index holds."""
    index.flush()
    state = IndexState()
    client, prefix = index._client, index.keys.prefix
    keys = sorted(client.scan_iter(match=index.keys.everything, count=1000))
    names = [key.decode().removeprefix(f"{prefix}:").partition(":") for key in keys]
    pages = client.pipeline(transaction=False)
    for key, (kind, _, name) in zip(keys, names, strict=True):
        if kind in ("lane", "heads", "idle") or (kind == "leases" and name):
            pages.zrange(key, 0, -1, withscores=True)
        elif kind in ("lanes", "queues", "leases", "profiles", "profile"):
            pages.smembers(key)
        elif kind in ("queue", "settings"):
            pages.hgetall(key)
        elif kind == "wake":
            pages.llen(key)
        else:
            assert kind in ("generation", "lock", "counters", "tell", "events", "requests"), f"an unknown key: {key!r}"
            pages.exists(key)
    for (kind, _, name), page in zip(names, pages.execute(), strict=True):
        match kind:
            case "lane":
                state.lanes[name] = {uuid.UUID(bytes=task_id): score for task_id, score in page}
            case "lanes":
                state.lane_sets[name] = _names(page)
            case "queues":
                state.queues = _names(page)
            case "leases" if not name:
                state.leases = {uuid.UUID(bytes=task_id) for task_id in page}
            case "leases":
                state.queue_leases[name] = {uuid.UUID(bytes=task_id): int(at) for task_id, at in page}
            case "queue":
                state.limits[name] = _texts(page)
            case "settings":
                state.overall = _texts(page)
            case "profiles":
                state.profiles = _names(page)
            case "profile":
                profile, _, part = name.partition(":")
                state.profile_parts[profile][part] = _names(page)
            case "heads":
                profile, _, queue = name.partition(":")
                heads = {member.decode(): score for member, score in page}
                if queue:
                    state.queue_heads[profile, queue] = heads
                else:
                    state.heads[profile] = heads
            case "idle":
                state.idle[name] = {member.decode() for member, _ in page}
            case "wake":
                state.calls[name] = page
    return state


def check(index: Index) -> IndexState:
    """Assert that the parts of the index agree with each other, and return them.

    Guaranteed after every script:

    - the set of lanes of a queue names exactly its lanes that hold tasks;
    - a profile's heads of a queue are the first scores of the lanes that it can run;
    - a queue stands in a profile's heads with the lowest of those, unless it is empty or paused: then it does not;
    - a queue at its cap may stand there or not: the claim that fills it takes it out for the profiles that run the
      lanes it took from, and others find out when they meet it. Where it stands, its score is right;
    - the set of all leases is the union of the queues' leases.
    """
    state = read(index)
    by_queue: dict[str, set[str]] = defaultdict(set)
    for lane in state.lanes:
        by_queue[lane.split(SEPARATOR)[0]].add(lane)
    assert state.lane_sets == dict(by_queue), "the lanes of a queue are those that hold tasks"
    assert state.queues >= set(by_queue) | set(state.queue_leases), "every queue with tasks or leases is known"
    assert state.leases == {i for page in state.queue_leases.values() for i in page}, "leases are the queues' leases"
    assert sum(map(len, state.queue_leases.values())) == len(state.leases), "an id is leased in one queue only"
    for profile in state.profiles:
        wanted: dict[str, dict[str, float]] = defaultdict(dict)
        for lane, entries in state.lanes.items():
            if state.runs(profile, lane):
                wanted[lane.split(SEPARATOR)[0]][lane] = min(entries.values())
        found = {queue: heads for (owner, queue), heads in state.queue_heads.items() if owner == profile}
        assert found == dict(wanted), "lane heads are the first scores of the lanes that the profile runs"
        heads = state.heads.get(profile, {})
        assert set(heads) <= set(wanted), "no empty queue stands in the heads"
        for queue, lanes in wanted.items():
            if state.paused(queue):
                assert queue not in heads, "no paused queue stands in the heads"
            elif not state.full(queue):
                assert heads.get(queue) == min(lanes.values()), "a queue stands where its first lane does"
            else:
                assert heads.get(queue, min(lanes.values())) == min(lanes.values())
    owners = {owner for owner, _ in state.queue_heads} | set(state.heads) | set(state.idle) | set(state.profile_parts)
    assert owners <= state.profiles, "nothing is left of a profile without workers"
    return state


def _names(items: object) -> set[str]:
    return {item.decode() for item in items}  # type: ignore[attr-defined]


def _texts(mapping: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in mapping.items()}
