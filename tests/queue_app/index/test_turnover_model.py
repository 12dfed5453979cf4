"""Turn-overs of several workers and queues against a model of them, while caps are edited and time passes.

The model knows which tasks run by their rows, which the index does not: a turn-over may be under way, refused, or
committed without its release. So each turn-over gets exactly the slots that no task can need, and never more tasks run
than a cap allowed when they were claimed. ``INDEX_MODEL_EXAMPLES=5000`` searches at random.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from hypothesis import note, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queue_app.core.limits import EVERYTHING, Limits
from queue_app.core.priorities import Band
from queue_app.core.records import TaskRef
from queue_app.index import Index, Lease, Profile, get_index
from tests.queue_app.index.test_limits_model import CLOCK, SETTINGS, STEP, clocked
from tests.support import index_state
from tests.support.index_state import client_of
from tests.support.leases import restore
from tests.support.limits_model import Model, TurnOver
from tests.support.scene import Hand

GATES = [EVERYTHING, "q:p", "q:q", "t:a", "k:c", "k:c:1"]
PROFILES = [Profile.of((), ["a", "b"], ()), Profile.of(["p"], ["a", "b"], ())]

kinds = st.tuples(
    st.sampled_from(["p", "q"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "u"]),
    st.sampled_from(["", "c:1", "c:2"]),
)
caps = st.sampled_from([None, 0, 1, 2, 3, 6])
paces = st.sampled_from([{}, {}, {}, {"paused": True}, {"rate_count": 2, "rate_seconds": 3.0}])
numbers = st.integers(0, 99)


class TurnOverMachine(RuleBasedStateMachine):
    """Four workers, two queues, and gates of every kind."""

    def __init__(self) -> None:
        super().__init__()
        shared = get_index()
        for key in client_of(shared).scan_iter(match=shared.keys.everything):
            client_of(shared).delete(key)
        self.index = clocked(Index(shared.alias, shared.keys.prefix.strip("{}")))
        self.model, self.generation, self.count = Model(), 0, 0
        client_of(self.index).set(CLOCK, self.model.now)
        self.hands = [Hand(uuid.UUID(int=n + 1), profile) for n, profile in enumerate(PROFILES * 2)]

    @initialize(per_user=st.sampled_from([None, 1, 3]), most=st.integers(2, 6))
    def open(self, per_user, most):
        """Begin with full slots."""
        self.per_user = per_user
        self.rebuild()
        self._set("q:p", Limits(max_concurrent=most))
        self.enqueue([(queue, kind, "", "") for queue in "pq" for kind in "ab"] * 6)
        for who in range(3):
            self.claim(who, 3)

    def _set(self, gate: str, found: Limits) -> None:
        if gate == EVERYTHING:
            found = Limits(max_concurrent=found.max_concurrent, paused=found.paused)
        if gate == "q:p":
            found = Limits(**{name: getattr(found, name) for name in ("max_concurrent", "paused")})
            object.__setattr__(found, "max_concurrent_per_user", self.per_user)
        self.index.set_limits(gate, found)
        self.model.limits[gate] = found
        if not found.rate_count:
            self.model.since.pop(gate, None)
        elif gate not in self.model.since:
            self.model.since[gate] = self.model.now

    # -- what workers do -----------------------------------------------------------------

    @rule(many=st.lists(kinds, min_size=1, max_size=6))
    def enqueue(self, many):
        """Some tasks in one push."""
        new = []
        for queue, kind, user, key in many:
            self.count += 1
            at = datetime(2020, 1, 1, tzinfo=UTC) + self.count * timedelta(seconds=1)
            new.append(TaskRef(uuid.UUID(int=self.count), kind, queue, Band.CRITICAL, (), at, user, key))
        self.model.waiting |= {task.id: task for task in new}
        assert self.index.push(new) == len(new)

    @rule(who=st.integers(0, 3), want=st.integers(1, 4))
    def claim(self, who, want):
        """A worker with free slots; the rows accept what it gets."""
        before = self._running()
        self._claim(self.hands[who], want)
        self._has_not_risen(before, self._caps())

    def _claim(self, hand: Hand, want: int, exchange: Iterable[Lease] = ()) -> set[uuid.UUID]:
        proposal = self.index.claim(hand.profile, hand.id, want, reserve=False, exchange=list(exchange))
        note(f"{hand.id.int} wants {want}: {[task_id.int for task_id, _ in proposal.tasks]}")
        for task_id, _ in proposal.tasks:
            candidates = self.model.next_of(hand.profile, hand.id, 1)
            assert self.model.waiting[task_id] in candidates, "no gate refuses what it proposes"
            self.model.start(self.model.waiting[task_id], hand.id)
        if len(proposal.tasks) < want:
            assert not self.model.next_of(hand.profile, hand.id, 1), "it refuses only what a gate refuses"
        return {task_id for task_id, _ in proposal.tasks}

    @precondition(lambda self: self.model.holder)
    @rule(choice=numbers, count=st.integers(1, 3), answer=st.sampled_from(["none", "committed", "released"]))
    def turn_over(self, choice, count, answer):
        """A worker ends some of its tasks and claims for their slots; the transaction may come at once or later."""
        holder = list(self.model.holder.values())[choice % len(self.model.holder)]
        self._settle(holder)
        mine = sorted(task_id for task_id, worker in self.model.holder.items() if worker == holder)
        if not mine:
            return
        ends = frozenset((mine * 2)[choice % len(mine) :][: min(count, len(mine))])
        leases = [lease for queue in "pq" for lease in self.index.leases(queue) if lease.id in ends]
        caps, self.model.offered, self.model.before = self._caps(), ends, frozenset(self.model.leases)
        hand = next(each for each in self.hands if each.id == holder)
        new = self._claim(hand, len(ends), leases)
        self.model.offered = frozenset()
        self.model.turn_overs[holder] = TurnOver(ends, set(ends), new, caps)
        if answer != "none":
            self._commit(holder)
        if answer == "released":
            self._settle(holder)

    @rule(count=st.integers(1, 3))
    def meet(self, count):
        """All workers turn over at the same time."""
        for holder in sorted(set(self.model.holder.values())):
            if holder in self.model.holder.values():
                self.turn_over(list(self.model.holder.values()).index(holder), count, "none")

    @precondition(lambda self: self.model.turn_overs)
    @rule(choice=numbers, step=st.sampled_from(["commit", "refuse", "settle"]))
    def go_on(self, choice, step):
        """The transaction of a turn-over commits, or is refused; or its release comes."""
        holder = sorted(self.model.turn_overs)[choice % len(self.model.turn_overs)]
        if step == "commit":
            self._commit(holder)
        else:
            self._settle(holder)

    def _commit(self, holder: uuid.UUID) -> None:
        turn_over = self.model.turn_overs[holder]
        if turn_over.is_committed or turn_over.old != turn_over.offered:
            return  # an attempt no longer holds its task
        before = self._running()
        turn_over.is_committed = True
        self._has_not_risen(before, turn_over.caps)

    def _settle(self, holder: uuid.UUID) -> None:
        """Release the old leases after the commit; without one, give back the new tasks."""
        turn_over = self.model.turn_overs.pop(holder, None)
        if turn_over is not None:
            self.model.turn_overs[holder] = turn_over  # ``end`` finds it
            self._release(turn_over.old if turn_over.is_committed else turn_over.new, back=not turn_over.is_committed)
            del self.model.turn_overs[holder]

    @precondition(lambda self: self.model.leases)
    @rule(choices=st.lists(numbers, min_size=1, max_size=3), back=st.booleans())
    def release(self, choices, back):
        """Leases end, or go back, whatever a turn-over does with them."""
        ids = sorted(self.model.leases)
        self._release({ids[choice % len(ids)] for choice in choices}, back=back)

    def _release(self, ids: Iterable[uuid.UUID], *, back: bool) -> None:
        held = {lease.id: lease for queue in "pq" for lease in self.index.leases(queue)}
        assert self.index.release([held[task_id] for task_id in ids]) == len(list(ids))
        tasks = [self.model.end(task_id) for task_id in list(ids)]
        if back:
            self.model.waiting |= {task.id: task for task in tasks}
            self.index.push(tasks)

    # -- what others do --------------------------------------------------------------------

    @rule(gate=st.sampled_from(GATES), cap=caps, pace=paces)
    def edit(self, gate, cap, pace):
        """Staff change the limits of a gate."""
        self._set(gate, Limits(max_concurrent=cap, **pace))

    @precondition(lambda self: self.model.leases)
    @rule(choice=numbers, fewer=st.integers(1, 3))
    def lower(self, choice, fewer):
        """Staff lower a cap below what runs."""
        used = sorted((gate, len(self.model.behind(gate))) for gate in GATES if self.model.behind(gate))
        gate, count = used[choice % len(used)]
        self._set(gate, Limits(max_concurrent=max(0, count - fewer)))

    @rule(steps=st.integers(1, 12))
    def wait(self, steps):
        """Time passes."""
        self.model.now += steps * STEP
        client_of(self.index).set(CLOCK, self.model.now)

    @rule()
    def rebuild(self):
        """A new generation grants nothing of what was proposed before."""
        for holder in list(self.model.turn_overs):
            turn_over = self.model.turn_overs[holder]
            ended = turn_over.old if turn_over.is_committed else turn_over.new
            tasks = [self.model.end(task_id) for task_id in list(ended)]
            if not turn_over.is_committed:
                self.model.waiting |= {task.id: task for task in tasks}
        self.model.turn_overs.clear()
        self.generation += 1
        assert self.index.begin_generation(self.generation)
        client_of(self.index).delete(f"{self.index.keys.prefix}:exchanges")  # as the wipe does
        for queue in "pq":
            self._forget(queue)
        restore(self.index, [(task.id, task.lane) for task in self.model.leases.values()])
        self.index.push(self.model.waiting.values())
        assert self.index.finish_generation(self.generation)
        for hand in self.hands:
            self.index.register(hand.profile, hand.id)

    def _forget(self, queue: str) -> None:
        stale = [lease for lease in self.index.leases(queue) if lease.id not in self.model.leases]
        self.index.release(stale)

    # -- judgement -------------------------------------------------------------------------

    def _caps(self) -> dict[str, float]:
        found = {gate: self.model.policy(gate)[0].max_concurrent for gate in self._gates()}
        return {gate: cap for gate, cap in found.items() if cap is not None}

    def _gates(self) -> set[str]:
        return {gate for task in self.model.leases.values() for gate in self.model.gates(task)} | set(GATES)

    def _running(self) -> dict[str, int]:
        running = self.model.executing().keys()
        return {gate: len(self.model.behind(gate) & running) for gate in self._gates()}

    def _has_not_risen(self, before: dict[str, int], caps: dict[str, float]) -> None:
        for gate, count in self._running().items():
            assert count <= max(caps.get(gate, math.inf), before.get(gate, 0)), f"more run than {gate} allows"

    @invariant()
    def agrees(self):
        """The index holds what the model holds."""
        state = index_state.check(self.index)
        assert (state.waiting, state.leases) == (set(self.model.waiting), set(self.model.leases))


TestTurnOverMachine = TurnOverMachine.TestCase
TestTurnOverMachine.settings = SETTINGS
