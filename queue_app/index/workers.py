"""Workers in the index: their profiles, and how they are woken."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import batched
from typing import Any, NamedTuple, Self, cast

from queue_app.index.calls import BLOCK_SECONDS, QUEUES, Calls, blocking, in_one_write, readable, translated
from queue_app.index.client import text
from queue_app.index.leases import SCANNED

#: Seconds until a notification that its worker did not read is deleted.
NOTIFICATION_SECONDS = 60
#: Answer of ``lua/register.lua``.
FORGET_FIRST = 2


@dataclass(frozen=True, slots=True)
class Profile:
    """What a worker can run: queues (none: all), task types, capabilities, slots; ``id`` names the combination.

    Workers with the same abilities share one profile and its heads.
    """

    id: str
    queues: tuple[str, ...]
    task_types: tuple[str, ...]
    capabilities: tuple[str, ...]
    slots: int | None = None  # it runs no heavier task; None: any weight

    @classmethod
    def of(
        cls, queues: Iterable[str], task_types: Iterable[str], capabilities: Iterable[str], slots: int | None = None
    ) -> Self:
        """Return the profile; the order of the names does not matter."""
        parts = tuple(tuple(sorted(set(names))) for names in (queues, task_types, capabilities))
        digest = hashlib.sha256(json.dumps([*parts, slots] if slots else parts).encode()).hexdigest()[:16]
        return cls(digest, parts[0], parts[1], parts[2], slots)


class WorkerMessage(Enum):
    """A message of the index to one worker; it ends the wait of a worker that has nothing to do."""

    WAKE_UP = "wake"  # there may be work
    NOTIFICATION = "tell"  # one of its rows changed


class Generation(NamedTuple):
    """The generation that the index carries; ``state`` is ready, loading, rebuilding or missing.

    While it is loading, claims are allowed, and a rebuild adds tasks.
    """

    number: int
    state: str
    owner: str = ""  # identity of the database to which the index belongs; empty: of none, or not asked for


class Audited(NamedTuple):
    """How many queues an audit has done, its cursor in the next one, and the queue in which something is wrong."""

    done: int
    cursor: int
    queue: str
    wrong: str  # empty: nothing


class Workers(Calls):
    """The part of the index that knows workers."""

    def queues(self) -> list[str]:
        """Return the queues that have, or had, tasks in the index."""
        with translated("queues", self.alias):
            names = set(cast("Iterable[bytes]", self._client.sscan_iter(self.keys.queues, count=SCANNED)))
        return sorted(self._names(self.keys.queues, names))

    def register(self, profile: Profile, worker_id: uuid.UUID) -> None:
        """Register a worker, and build the heads of its profile unless they are complete."""
        args: list[Any] = [profile.id, str(worker_id)]
        for names in (profile.queues, profile.task_types, profile.capabilities):
            args += (len(names), *names)
        while (answer := self._call("register", *args, profile.slots or "")) == FORGET_FIRST:
            self._forget_heads(profile.id)
        if answer:
            deque(self._walk("build_heads", profile.queues or self.queues(), profile.id), maxlen=0)
            self._call("build_heads", profile.id, 0)

    def unregister(self, profile_id: str, worker_id: uuid.UUID) -> None:
        """Forget a worker; its profile goes with the last worker that has it."""
        if self._call("unregister", profile_id, str(worker_id)):
            self._forget_heads(profile_id)

    def _forget_heads(self, profile_id: str) -> None:
        deque(self._walk("forget_heads", self.queues(), profile_id), maxlen=0)
        self._scan("forget_heads", profile_id)

    def registered(self) -> list[tuple[str, uuid.UUID]]:
        pairs: dict[tuple[str, bytes], uuid.UUID] = {}
        for profile, worker in batched(self._call("registered"), 2):
            try:
                pairs[profile.decode(), worker] = uuid.UUID(worker.decode())
            except ValueError:
                self._drop("SREM", self.keys.profile(text(profile), "workers"), [worker])
        return [(profile, worker_id) for (profile, _), worker_id in pairs.items()]

    def profiles(self) -> tuple[Generation, dict[str, bool]]:
        """Return the generation, the registered profiles, and whether all parts of each are there."""
        with translated("profiles", self.alias):
            names = cast("list[bytes]", list(self._client.smembers(self.keys.profiles)))
            with self._client.pipeline(transaction=False) as pipe:
                pipe.hmget(self.keys.generation, "number", "state")
                for name in names:
                    for part in ("queues", "types", "capabilities", "workers"):
                        pipe.smembers(self.keys.profile(text(name), part))
                    pipe.get(self.keys.profile(text(name), "slots"))
                (number, state), *found = pipe.execute()
        parts = zip(names, batched(found, 5), strict=True)
        with readable("profiles"):
            generation = Generation(int(number or 0), text(state or b"missing"))
        return generation, {text(name): _is_intact(name, each) for name, each in parts}

    def audit(self, profile: str, queues: Sequence[str], cursor: int) -> Audited:
        """Look for lanes that a profile can run and no claim would find, in some of the queues."""
        done, following, queue, wrong = self._call("audit", profile, cursor, *queues)
        return Audited(int(done), int(following), text(queue), text(wrong))

    def unserved_types(self, profile: Profile) -> set[str]:
        """Return the task types that wait in the profile's queues but are not among its types."""
        found = (
            self._call("unserved_types", profile.id, *batch)
            for batch in batched(profile.queues or self.queues(), QUEUES)
        )
        return {text(name) for reply in found for name in reply}

    def wait_for_call(self, worker_id: uuid.UUID, timeout: float) -> WorkerMessage | None:
        """Wait up to ``timeout`` seconds for a wake-up call or a notification; return which came, or ``None``.

        Raises ``IndexUnavailable`` soon after the server refuses writes: a call could not come then.
        """
        tell, wake = self.keys.tell(str(worker_id)), self.keys.wake(str(worker_id))
        until = time.monotonic() + timeout
        with translated("wait", self.alias):
            while (left := until - time.monotonic()) > 0:
                seconds = min(left, BLOCK_SECONDS)
                if found := blocking(self._client, seconds, self.keys.probe, ("BLPOP", tell, wake, seconds)):
                    return WorkerMessage.NOTIFICATION if text(found[0]) == tell else WorkerMessage.WAKE_UP
        return None

    def notify_workers(self, worker_ids: Iterable[uuid.UUID]) -> None:
        """Let workers read their rows now: one of their tasks was cancelled, or the index is new."""
        commands: list[Sequence[Any]] = []
        for key in (self.keys.tell(str(worker_id)) for worker_id in worker_ids):
            commands += (("RPUSH", key, "1"), ("EXPIRE", key, NOTIFICATION_SECONDS))
        if commands:
            with translated("tell", self.alias):
                in_one_write(self._client, *commands)

    def wake_idle(self) -> int:
        """Wake one idle worker of every profile that has work; return how many."""
        return int(self._call("wake_idle"))


def _is_intact(name: bytes, parts: Sequence[Any]) -> bool:
    """Whether the parts of a profile give its id, and it has a worker."""
    *sets, workers, slots = parts
    try:
        queues, types, capabilities = ([item.decode() for item in each] for each in sets)
        found = Profile.of(queues, types, capabilities, int(slots) if slots else None)
        return bool(workers) and found.id == name.decode()
    except ValueError:
        return False
