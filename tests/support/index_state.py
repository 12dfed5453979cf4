"""Read the whole index as plain Python, and check that its parts agree with each other."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import redis

from queue_app import conf
from queue_app.core.limits import BAND_WIDTH, lane_name
from queue_app.core.priorities import Band
from queue_app.index import Index
from queue_app.index.keys import KINDS

SEPARATOR = "\x1f"
FAMILY = "\x1e"  # begins the key in the name of a lane that the pause or throttle of a family has opened


def band_of(score: float) -> Band:
    """Return the band of a score."""
    return Band(int(score // BAND_WIDTH))


@dataclass(slots=True)
class IndexState:
    """Everything that the index holds, decoded."""

    lanes: dict[str, dict[uuid.UUID, float]] = field(default_factory=dict)  # lane -> id -> score
    members: dict[str, dict[uuid.UUID, str]] = field(default_factory=dict)  # lane -> id -> user and key that follow it
    lane_sets: dict[str, set[str]] = field(default_factory=dict)  # queue -> lanes
    types: dict[str, dict[str, int]] = field(default_factory=dict)  # queue -> task type -> number of its lanes
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
    groups: dict[tuple[str, str, str], dict[str, float]] = field(default_factory=dict)  # profile, queue, gate -> same
    turns: dict[tuple[str, str, str, str], dict[str, float]] = field(
        default_factory=dict
    )  # ... and who -> lane -> score
    at: dict[str, dict[str, str]] = field(default_factory=dict)  # profile -> lane -> gate
    nodes: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)  # profile, queue -> gate -> entry
    spots: dict[str, set[str]] = field(default_factory=dict)  # gate -> profile, queue
    gates: set[str] = field(default_factory=set)
    gate_limits: dict[str, dict[str, str]] = field(default_factory=dict)  # gate of a type or key -> limits
    limited: set[str] = field(default_factory=set)  # gates in the set of limits
    held: dict[str, set[uuid.UUID]] = field(default_factory=dict)  # gate -> leased ids
    lease_lanes: dict[uuid.UUID, str] = field(default_factory=dict)
    refills: dict[str, float] = field(default_factory=dict)  # gate -> when (us)
    slots: dict[str, int] = field(default_factory=dict)  # profile -> slots
    idle: dict[str, set[str]] = field(default_factory=dict)  # profile -> workers
    short: dict[str, dict[str, int]] = field(default_factory=dict)  # profile -> worker -> free slots
    reservations: dict[str, str] = field(default_factory=dict)  # lane -> when it lapses (us), and the worker
    watchers: dict[str, str] = field(default_factory=dict)  # profile -> worker
    calls: dict[str, int] = field(default_factory=dict)  # worker -> wake-up calls that wait

    @property
    def waiting(self) -> set[uuid.UUID]:
        """Every id that waits in a lane."""
        return {task_id for lane in self.lanes.values() for task_id in lane}

    @property
    def addresses(self) -> dict[str, dict[uuid.UUID, float]]:
        """Every id that waits, by its address: the lane, with the user and key that a member has beside its id."""
        found: dict[str, dict[uuid.UUID, float]] = defaultdict(dict)
        for lane, entries in self.lanes.items():
            queue, task_type, capabilities, user, key, weight = parts_of(lane)
            for task_id, score in entries.items():
                of_user, _, of_key = self.members[lane][task_id].rpartition(SEPARATOR)
                names = user or of_user, of_key if not key or key.startswith(FAMILY) else key
                found[lane_name(queue, task_type, capabilities.split(","), *names, weight)][task_id] = score
        return dict(found)

    def runs(self, profile: str, lane: str) -> bool:
        """Whether workers of the profile can run the lane."""
        queue, task_type, capabilities, _user, _key, weight = parts_of(lane)
        parts = self.profile_parts[profile]
        queues = parts.get("queues", set())
        return (
            task_type in parts.get("types", set())
            and (not queues or queue in queues)
            and set(filter(None, capabilities.split(","))) <= parts.get("capabilities", set())
            and weight <= self.slots.get(profile, weight)
        )

    def paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return self.limits.get(queue, {}).get("paused") == "1"

    def full(self, queue: str) -> bool:
        """Whether the queue is at its cap."""
        cap = self.limits.get(queue, {}).get("max_concurrent")
        return cap is not None and len(self.queue_leases.get(queue, {})) >= int(cap)

    def timed(self, gate: str) -> bool:
        """Whether time alone may open or close a gate: then what is shown of it depends on the instant."""
        gate = f"k:{gate[2:]}" if gate[0] == "f" else gate
        own = [gate, ":".join(gate.split(":", 2)[:2])] if gate[0] == "k" else [gate]
        found = [self.limits.get(gate[2:], {})] if gate[0] == "q" else [self.gate_limits.get(name, {}) for name in own]
        return any(limits.keys() & {"interval", "delay", "throttled"} for limits in found)

    def gates_of(self, lane: str) -> list[str]:
        """Return the gates of a lane that have limits, besides its queue."""
        queue, task_type, _, user, key, _ = parts_of(lane)
        family = key.partition(":")[0] if ":" in key else key
        found = [f"t:{task_type}"] if f"t:{task_type}" in self.limited else []
        if key.startswith(FAMILY):
            found.append(f"f:{key[1:]}")
        elif key and {f"k:{key}", f"k:{family}"} & self.limited:
            found.append(f"k:{key}")
        if user and f"u:{queue}" in self.limited:
            found.append(f"u:{queue}\x1e{user}")
        return found

    def closed(self, gate: str) -> bool:
        """Whether a gate that time has no part in lets nothing pass."""
        used = len(self.held.get(gate, set()))
        if gate[0] == "u":
            cap = self.limits.get(gate[2:].split("\x1e", maxsplit=1)[0], {}).get("per_user")
            return cap is not None and used >= int(cap)
        if gate[0] == "f":
            return self.gate_limits.get(f"k:{gate[2:]}", {}).get("paused") == "1"
        own = self.gate_limits.get(gate, {})
        family = self.gate_limits.get(gate.rsplit(":", 1)[0], {}) if gate.count(":") > 1 else {}
        numbers = own if own.keys() & {"max_concurrent", "interval", "delay"} else family
        cap = numbers.get("max_concurrent")
        return "1" in (own.get("paused"), family.get("paused")) or (cap is not None and used >= int(cap))


def client_of(index: Index) -> redis.Redis:
    """Return the client of the index, to look at its keys and to damage them as another program could."""
    return index._client


def read(index: Index) -> IndexState:  # noqa: C901, PLR0912, PLR0915 - one case for each kind of key
    """Return what the index holds."""
    index.flush()
    state = IndexState()
    client, prefix = client_of(index), index.keys.prefix
    keys = sorted(client.scan_iter(match=index.keys.everything, count=1000))
    names = [key.decode().removeprefix(f"{prefix}:").partition(":") for key in keys]
    pages = client.pipeline(transaction=False)
    for key in keys:
        found = KINDS.get(index.keys.kind_of(key) or "")
        assert found, f"an unknown key: {key!r}"
        match found.type:
            case "zset":
                pages.zrange(key, 0, -1, withscores=True)
            case "set":
                pages.smembers(key)
            case "hash":
                pages.hgetall(key)
            case "list":
                pages.llen(key)
            case "string":
                pages.get(key)
            case _:
                pages.exists(key)
    for (kind, _, name), page in zip(names, pages.execute(), strict=True):
        if page is None:  # a text that has expired or was deleted meanwhile
            continue
        match kind:
            case "lane":
                state.lanes[name] = {uuid.UUID(bytes=member[:16]): score for member, score in page}
                state.members[name] = {uuid.UUID(bytes=member[:16]): member[16:].decode() for member, _ in page}
            case "lanes":
                state.lane_sets[name] = _names(page)
            case "types":
                state.types[name] = {member.decode(): int(count) for member, count in page.items()}
            case "queues":
                state.queues = _names(page)
            case "leases" if not name:
                state.lease_lanes = {uuid.UUID(bytes=task_id): lane.decode() for task_id, lane in page.items()}
                state.leases = set(state.lease_lanes)
            case "leases":
                state.queue_leases[name] = {uuid.UUID(bytes=task_id): int(at) for task_id, at in page}
            case "queue":
                state.limits[name] = _texts(page)
            case "settings":
                state.overall = _texts(page)
            case "profiles":
                state.profiles = _names(page)
            case "profile" if name.endswith(":slots"):
                state.slots[name.partition(":")[0]] = int(page)
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
            case "group":
                profile, _, rest = name.partition(":")
                queue, gate = rest.split(SEPARATOR)
                state.groups[profile, queue, gate] = {member.decode(): score for member, score in page}
            case "turn":
                profile, _, rest = name.partition(":")
                queue, gate, who = rest.split(SEPARATOR)
                state.turns[profile, queue, gate, who] = {member.decode(): score for member, score in page}
            case "at":
                state.at[name] = _texts(page)
            case "nodes":
                profile, _, queue = name.partition(":")
                state.nodes[profile, queue] = _texts(page)
            case "spots":
                state.spots[name] = _names(page)
            case "gates":
                state.gates = _names(page)
            case "held":
                state.held[name] = {uuid.UUID(bytes=task_id) for task_id in page}
            case "limit":
                state.gate_limits[name] = _texts(page)
            case "limits":
                state.limited = _names(page)
            case "refills":
                state.refills = {member.decode(): at for member, at in page}
            case "short":
                state.short[name] = {member.decode(): int(free) for member, free in page}
            case "reservations":
                state.reservations = _texts(page)
            case "watch":
                state.watchers[name] = page.decode()
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
    - the set of all leases is the union of the queues' leases; those that passed a gate with limits are its held ones;
    - a lane that a profile runs stands once: among the lanes of its queue, or behind one of its gates;
    - a group stands among the lanes of its queue with its lowest score, if its gate has room; else it does not.
    """
    if index.way == conf.ROWS:
        return IndexState()  # a lane may say too much, and its tasks are the rows
    state = read(index)
    by_queue: dict[str, set[str]] = defaultdict(set)
    for lane in state.lanes:
        by_queue[lane.split(SEPARATOR)[0]].add(lane)
    assert state.lane_sets == dict(by_queue), "the lanes of a queue are those that hold tasks"
    counted = {queue: dict(Counter(parts_of(lane)[1] for lane in lanes)) for queue, lanes in by_queue.items()}
    assert state.types == counted, "the types that wait are counted by their lanes"
    assert state.queues >= set(by_queue) | set(state.queue_leases), "every queue with tasks or leases is known"
    assert state.leases == {i for page in state.queue_leases.values() for i in page}, "leases are the queues' leases"
    assert sum(map(len, state.queue_leases.values())) == len(state.leases), "an id is leased in one queue only"
    held: dict[str, set[uuid.UUID]] = defaultdict(set)
    for task_id, lane in state.lease_lanes.items():
        assert task_id in state.queue_leases.get(parts_of(lane)[0], {}), "the lane of a lease is one of its queue"
        for gate in state.gates_of(lane):
            held[gate].add(task_id)
    assert state.held == dict(held), "leases that passed a gate are counted there"
    spots: dict[str, set[str]] = defaultdict(set)
    for profile, queue, gate in state.groups:
        spots[gate].add(profile + SEPARATOR + queue)
    assert state.spots == dict(spots), "each group has its spot"
    assert state.gates == set(spots), "gates are those with groups"
    for profile in state.profiles:
        _check_profile(state, profile)
    owners = {owner for owner, _ in state.queue_heads} | set(state.heads) | set(state.idle) | set(state.profile_parts)
    assert owners <= state.profiles, "nothing is left of a profile without workers"
    return state


def _check_profile(state: IndexState, profile: str) -> None:  # noqa: C901 - one thought after the other
    """Assert that the heads of a profile are what its lanes make them."""
    wanted: dict[str, dict[str, float]] = defaultdict(dict)
    for lane, entries in state.lanes.items():
        if state.runs(profile, lane):
            wanted[parts_of(lane)[0]][lane] = min(entries.values())
    at = state.at.get(profile, {})
    assert set(at) <= {lane for lanes in wanted.values() for lane in lanes}, "only lanes with tasks are grouped"
    opening = any(name.startswith("s:") for name in state.refills)  # the gates of a family, in steps
    heads = state.heads.get(profile, {})
    assert set(heads) <= set(wanted), "no empty queue stands in the heads"
    lists = {queue for owner, queue in state.queue_heads if owner == profile}
    lists |= {queue for owner, queue, _ in state.groups if owner == profile}
    assert lists == set(wanted), "every lane stands somewhere, and nothing else does"
    for queue, lanes in wanted.items():
        fair = state.limits.get(queue, {}).get("fair")
        found: dict[str, dict[str, float]] = defaultdict(dict)
        root = dict(state.queue_heads.get((profile, queue), {}))
        groups = {g: dict(page) for (p, q, g), page in state.groups.items() if (p, q) == (profile, queue)}
        for gate, page in groups.items():
            entry = state.nodes.get((profile, queue), {}).get(gate) if fair else "\x1e" + gate
            if state.timed(gate) or opening:
                root.pop(entry, None)
            elif state.closed(gate):
                assert entry not in root, "nothing of a closed gate stands among the lanes"
            else:
                assert root.pop(entry) == min(page.values()), "a group stands where its first lane does"
        assert not [entry for entry in root if entry.partition("\x1e")[1] and entry.partition("\x1e")[2]]
        for gate, page in {"": root, **groups}.items():
            if fair:
                for entry in page:
                    found[gate] |= state.turns[profile, queue, gate, entry.removesuffix("\x1e")]
            else:
                found[gate] = page
        placed: dict[str, dict[str, float]] = defaultdict(dict)
        for lane, score in lanes.items():
            placed[at.get(lane, "")][lane] = score
        assert {g: page for g, page in found.items() if page} == dict(placed), (
            "each lane stands once, at its first score"
        )
        _check_queue(state, profile, queue, heads, lanes)


def _check_queue(state: IndexState, profile: str, queue: str, heads: dict[str, float], lanes: dict[str, float]) -> None:
    """Assert that a queue stands where its first lane does that no gate holds back."""
    root = state.queue_heads.get((profile, queue), {})
    if state.timed("q:" + queue):
        return
    if state.paused(queue) or not root:
        assert queue not in heads, "no paused queue stands in the heads, nor one of which all is held back"
    elif state.limits.get(queue, {}).get("fair"):
        assert queue in heads or state.full(queue)
        starts = {score - score % BAND_WIDTH for score in lanes.values()}
        assert heads.get(queue, min(starts)) in {*lanes.values(), *starts}, "or where its band begins"
    elif not state.full(queue):
        assert heads.get(queue) == min(root.values()), "a queue stands where its first lane does"
    else:
        assert heads.get(queue, min(root.values())) == min(root.values())


def parts_of(lane: str) -> tuple[str, str, str, str, str, int]:
    """Return queue, task type, capabilities, user, key and weight."""
    queue, task_type, capabilities, user, key, weight = [*lane.split(SEPARATOR), *[""] * 5][:6]
    return queue, task_type, capabilities, user, key, int(weight or 1)


def _names(items: object) -> set[str]:
    return {item.decode() for item in items}  # type: ignore[attr-defined]


def _texts(mapping: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in mapping.items()}
