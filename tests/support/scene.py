"""A small stage for tests of the index: tasks and workers by name, instants in milliseconds."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from queue_app.core.limits import EVERYTHING, Limits, Scope, gate_of
from queue_app.core.priorities import Band
from queue_app.core.records import Proposal, TaskRef
from queue_app.index import Index, Profile
from tests.support import index_state
from tests.support.index_state import client_of
from tests.support.leases import release

START = datetime(2026, 1, 1, tzinfo=UTC)


def set_limits(index: Index, queue: str, **limits: Any) -> bool:
    """Copy limits of a queue (``""``: of everything); return whether anything changed."""
    return index.set_limits(gate_of(Scope.QUEUE, queue) if queue else EVERYTHING, Limits(**limits))


@dataclass(frozen=True, slots=True)
class Hand:
    """A worker as the index knows it."""

    id: uuid.UUID
    profile: Profile


class Scene:
    """Tasks are named; ids rise in the order in which names are first used."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.tasks: dict[str, TaskRef] = {}
        self.names: dict[uuid.UUID, str] = {}

    def open(self, generation: int = 1) -> Scene:
        """Make the index ready for claims."""
        self.index.begin_generation(generation)
        assert self.index.finish_generation(generation)
        return self

    def task(
        self,
        name: str,
        at: float = 0.0,
        *,
        band: Band = Band.NORMAL,
        queue: str = "default",
        kind: str = "a",
        needs: Iterable[str] = (),
    ) -> TaskRef:
        """Return the task ``name``, queued ``at`` milliseconds; the id stays when it is described again."""
        known = self.tasks.get(name)
        task_id = known.id if known else uuid.UUID(int=(0x018F << 112) + len(self.tasks) + 1)
        ref = TaskRef(task_id, kind, queue, band, tuple(sorted(needs)), START + timedelta(milliseconds=at))
        self.tasks[name], self.names[task_id] = ref, name
        return ref

    def push(self, *tasks: TaskRef) -> int:
        """Push tasks and check the index."""
        changed = self.index.push(tasks)
        self.check()
        return changed

    def worker(self, kinds: str = "a", *, queues: Iterable[str] = (), offers: Iterable[str] = ()) -> Hand:
        """Register a worker that runs the task types in ``kinds`` (separated by spaces)."""
        hand = Hand(uuid.uuid4(), Profile.of(queues, kinds.split(), offers))
        self.index.register(hand.profile, hand.id)
        self.check()
        return hand

    def propose(self, hand: Hand, want: int = 1, *, idle: bool = True) -> Proposal:
        """Claim, check the index, and return the raw proposal."""
        proposal = self.index.claim(hand.profile, hand.id, want, register_idle=idle)
        self.check()
        return proposal

    def claim(self, hand: Hand, want: int = 1, *, idle: bool = True) -> str:
        """Claim and return the names, in order, separated by spaces."""
        return " ".join(self.names[task_id] for task_id, _ in self.propose(hand, want, idle=idle).tasks)

    def release(self, *names: str) -> int:
        """Release tasks by name."""
        freed = release(self.index, [(self.tasks[name].id, self.tasks[name].queue) for name in names])
        self.check()
        return freed

    def rest(self, *hands: Hand) -> None:
        """Make workers idle without a claim, as if calls that they got were lost."""
        for rank, hand in enumerate(hands, 1):
            self.called(hand)
            client_of(self.index).zadd(f"{self.index.keys.prefix}:idle:{hand.profile.id}", {str(hand.id): rank})

    def called(self, hand: Hand) -> bool:
        """Return whether a wake-up call waits for the worker, and take it."""
        return client_of(self.index).lpop(self.index.keys.wake(str(hand.id))) is not None

    def who_was_called(self, **hands: Hand) -> str:
        """Return the names of the workers that a call waited for, separated by spaces; takes the calls."""
        return " ".join(name for name, hand in hands.items() if self.called(hand))

    def check(self) -> index_state.IndexState:
        """Assert that the index is consistent, and return it."""
        return index_state.check(self.index)

    def waiting(self) -> set[str]:
        """Return the names of all tasks in lanes."""
        return {self.names[task_id] for task_id in self.check().waiting}

    def leased(self) -> set[str]:
        """Return the names of all tasks that hold a lease."""
        return {self.names[task_id] for task_id in self.check().leases}
