"""The limits of the index against a model of them, driven by Hypothesis, with a clock that the test sets.

The model finds the tasks that a claim must propose by asking every gate of every waiting task: it has neither groups
nor heads. So a claim refuses exactly the tasks that some gate refuses. And no worker is forgotten: once all workers
that were called, or that waited for a refill, have claimed, no idle worker could start a task.
``INDEX_MODEL_EXAMPLES=5000`` searches at random.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, Phase, note, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queue_app.core.limits import EVERYTHING, Limits
from queue_app.core.priorities import Band
from queue_app.core.records import TaskRef
from queue_app.index import Index, Lease, Profile, get_index
from queue_app.index.scripts import NAMES, source
from tests.support import index_state
from tests.support.index_state import band_of, client_of
from tests.support.leases import release, restore
from tests.support.limits_model import RESERVED, Model
from tests.support.scene import Hand

EXAMPLES = int(os.environ.get("INDEX_MODEL_EXAMPLES", "0"))
SETTINGS = settings(
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 25,
    stateful_step_count=30,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
CLOCK = "test:clock"
PROFILES = [Profile.of((), ["a", "b"], ()), Profile.of((), ["a"], (), 2), Profile.of(["p"], ["a", "b"], (), 3)]
GATES = ["a", "q:p", "q:q", "t:a", "t:b", "k:c", "k:c:1", "k:d"]
#: Steps of the clock; never a whole number of intervals, where a start is allowed a microsecond later.
STEP = 250_001

tasks = st.tuples(
    st.sampled_from(["p", "q"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "", "u", "v"]),
    st.sampled_from(["", "", "c:1", "c:2", "d"]),
    st.sampled_from([1, 1, 1, 2, 3, 5]),
    st.sampled_from([Band.CRITICAL, Band.NORMAL, Band.NORMAL, Band.LOW]),
)
rates = st.sampled_from([(None, None, None), (1, 1.0, None), (2, 3.0, 1), (3, 3.0, 2), (1, 2.0, 3)])
gates = st.sampled_from(GATES)
hands = st.integers(0, 2 * len(PROFILES) - 1)
limits = st.builds(
    lambda cap, rate, delay, paused: Limits(
        max_concurrent=cap,
        rate_count=rate[0],
        rate_seconds=rate[1],
        rate_burst=rate[2],
        min_delay_seconds=delay,
        paused=paused,
    ),
    st.sampled_from([None, None, 1, 2, 3]),
    rates,
    st.sampled_from([None, None, 1.0]),
    st.sampled_from([False, False, False, True]),
)


def clocked(index: Index) -> Index:
    """Return the index with scripts that read the test's clock."""
    time = "{ redis.call('GET', 'test:clock') / 1000000 - redis.call('GET', 'test:clock') / 1000000 % 1,"
    time += " redis.call('GET', 'test:clock') % 1000000 }"
    for name in NAMES:
        text = source(name).replace("redis.call('TIME')", time).replace("wait + 1000)", "600000)")
        index._scripts[name] = client_of(index).register_script(text)
    return index


class LimitsMachine(RuleBasedStateMachine):
    """Every rule does the same to the index and to the model."""

    def __init__(self) -> None:
        super().__init__()
        shared = get_index()
        for key in client_of(shared).scan_iter(match=shared.keys.everything):
            client_of(shared).delete(key)
        self.index = clocked(Index(shared.alias, shared.keys.prefix.strip("{}")))
        self.model = Model()
        client_of(self.index).set(CLOCK, self.model.now)
        self.generation = 0
        self.count = 0
        self.look_again_at: dict[uuid.UUID, float] = {}  # worker -> when it claims again
        self.hands = [Hand(uuid.UUID(int=n + 1), profile) for n, profile in enumerate(PROFILES * 2)]

    @initialize(
        many=st.lists(tasks, min_size=4, max_size=25),
        given=st.dictionaries(gates, limits, max_size=4),
        per_user=st.sampled_from([None, None, 1, 2]),
        fair=st.sampled_from([None, None, "user", "key"]),
        shares=st.sampled_from([{}, {"u": 2.0, "c:1": 0.5}]),
    )
    def open(self, many, given, per_user, fair, shares):
        """Begin with some tasks under some limits."""
        self.shape = {"max_concurrent_per_user": per_user, "fair_by": fair, "shares": shares if fair else {}}
        self._rebuild()
        self._set("q:p", Limits())
        for gate, found in given.items():
            self._set(gate, found)
        self.enqueue_many(many)

    def _rebuild(self) -> None:
        self.generation += 1
        assert self.index.begin_generation(self.generation)
        restore(self.index, [(task.id, task.lane) for task in self.model.leases.values()])
        self.index.push(self.model.waiting.values())
        assert self.index.finish_generation(self.generation)
        self.model.turns.clear()
        self.model.turn_now.clear()
        self.model.reservations.clear()
        for hand in self.hands:
            self.index.register(hand.profile, hand.id)

    def _set(self, gate: str, found: Limits) -> None:
        if gate == EVERYTHING:
            found = Limits(max_concurrent=found.max_concurrent, paused=found.paused)
        if gate == "q:p":
            found = replace(found, **self.shape)
        before = self.model.limits.get(gate, Limits())
        assert self.index.set_limits(gate, found) == (before.fields() != found.fields())
        assert not self.index.set_limits(gate, found)
        self.model.limits[gate] = found
        is_paced = found.rate_count or found.min_delay_seconds
        if not is_paced:
            self.model.since.pop(gate, None)
        elif gate not in self.model.since:
            self.model.since[gate] = self.model.now
        if self.index.generation().state != "ready":
            self._rebuild()

    def _new(self, queue, kind, user, key, weight, band) -> TaskRef:
        self.count += 1
        at = datetime(2020, 1, 1, tzinfo=UTC) + self.count * timedelta(seconds=1)
        return TaskRef(uuid.UUID(int=self.count), kind, queue, band, (), at, user, key, weight)

    def _pick(self, found: dict[uuid.UUID, TaskRef], choice: int) -> TaskRef:
        return found[sorted(found)[choice % len(found)]]

    # -- rules ---------------------------------------------------------------------------

    @rule(many=st.lists(tasks, min_size=1, max_size=8))
    def enqueue_many(self, many):
        """Some tasks in one push."""
        new = [self._new(*one) for one in many]
        self.model.waiting |= {task.id: task for task in new}
        assert self.index.push(new) == len(new)

    @rule(who=hands, want=st.integers(1, 6), idle=st.booleans())
    def claim(self, who, want, idle):
        """A worker with some free slots."""
        self._claim(self.hands[who], want, idle=idle)

    def _claim(self, hand: Hand, want: int, *, idle: bool) -> None:
        proposal = self.index.claim(hand.profile, hand.id, want, register_idle=idle)
        left, held, granted = want, self.model.holders(), False
        note(f"{hand.id.int} wants {want}: {[task_id.int for task_id, _ in proposal.tasks]}")
        for task_id, _queue in proposal.tasks:
            candidates = self.model.next_of(hand.profile, hand.id, left)
            task = self.model.waiting[task_id]
            assert task in candidates, "what it proposes is the next of its queue, and no gate refuses it"
            assert task.priority == min(each.priority for each in candidates), "bands are strict"
            if not self.model.limits.get("q:p", Limits()).fair_by:
                assert task == min(candidates, key=lambda each: (each.score, each.id))
            assert task.weight <= left
            left -= task.weight
            if (drained := self.model.lane(task)) in held:
                granted = granted or held[drained] == hand.id
            self.model.start(task, hand.id)
        if left and proposal.tasks != ():
            note(f"{left} slots left")
        rest = self.model.next_of(hand.profile, hand.id, left) if left else []
        if rest:
            first = min(each.priority for each in rest)
            heavy = {self.model.lane(each) for each in rest if each.weight > left and each.priority == first}
            assert heavy, "it refuses only what a gate refuses, or what is too heavy"
            if not self.model.limits.get("q:p", Limits()).fair_by:
                heavy = {self.model.lane(min(rest, key=lambda each: (each.score, each.id)))}
            reserved = self._reserved(index_state.read(self.index))
            mine = [lane for lane, held in reserved.items() if held == (hand.id, self.model.now + RESERVED)]
            assert len(mine) == 1, "it drains for one lane"
            assert mine[0] in heavy, "for the one at which it stopped"
            self.model.end_reservations(hand.id)
            self.model.reservations[mine[0]] = reserved[mine[0]]
        elif granted:
            self.model.end_reservations(hand.id)
        self.look_again_at.pop(hand.id, None)
        if proposal.wait is not None:
            self.look_again_at[hand.id] = self.model.now + proposal.wait * 1e6

    @rule(want=st.integers(1, 3))
    def answer_calls(self, want):
        """Let workers that were called, or have waited for a refill, claim until there are none."""
        for _ in range(200):
            calls = index_state.read(self.index).calls
            due = [hand for hand in self.hands if self.look_again_at.get(hand.id, math.inf) <= self.model.now]
            acting = [hand for hand in self.hands if calls.get(str(hand.id)) or hand in due]
            if not acting:
                break
            for hand in acting:
                self._claim(hand, want, idle=True)
        else:
            raise AssertionError("workers call each other for ever")
        assert not self._starving(index_state.read(self.index))

    def _starving(self, state: index_state.IndexState) -> list[Hand]:
        found = []
        for hand in self.hands:
            free = state.short.get(hand.profile.id, {}).get(str(hand.id))
            is_idle = str(hand.id) in state.idle.get(hand.profile.id, set())
            if free is None and not is_idle:
                continue
            rest = self.model.next_of(hand.profile, hand.id, free or 100)
            if rest and not self.model.limits.get("q:p", Limits()).fair_by:
                rest = [min(rest, key=lambda each: (each.score, each.id))]
            # A worker that lacks slots for the next task waits until it has them, or until another task comes first.
            if rest and (is_idle or (free is not None and all(task.weight <= free for task in rest))):
                found.append(hand)
        return found

    def _reserved(self, state: index_state.IndexState) -> dict[str, tuple[uuid.UUID, int]]:
        found = {lane: text.split() for lane, text in state.reservations.items()}
        return {
            lane: (uuid.UUID(worker), int(until))
            for lane, (until, worker) in found.items()
            if int(until) > self.model.now
        }

    @rule(who=hands)
    def rest(self, who):
        """A worker claims all that it can, and is then idle."""
        self._claim(self.hands[who], 100, idle=True)

    @rule(gate=st.sampled_from(["t:b", "k:c:1", "k:d"]), who=hands)
    def one_at_a_time(self, gate, who):
        """A gate lets one task start; the tasks behind it may start when that task ends."""
        kind, key = ("b", "") if gate == "t:b" else ("a", gate[2:])
        self._set(gate, Limits(max_concurrent=1))
        self.enqueue_many([("q", kind, "", key, 1, Band.CRITICAL)] * 2)
        for hand in self.hands:
            self._claim(hand, 100, idle=True)
        through = [each for each in self.model.leases.values() if gate in self.model.gates(each)]
        if through:
            self._release(through)
        self._claim(self.hands[who], 100, idle=True)

    @precondition(lambda self: self.model.leases)
    @rule(choices=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def release(self, choices):
        """Some tasks end."""
        self._release({self._pick(self.model.leases, choice) for choice in choices})

    def _release(self, ended: Collection[TaskRef]) -> None:
        assert release(self.index, [(task.id, task.queue) for task in ended]) == len(ended)
        for task in ended:
            self.model.end(task.id)

    @precondition(lambda self: self.model.leases)
    @rule(choice=st.integers(0, 99))
    def give_back(self, choice):
        """The rows refuse a proposal, and it returns to its place; tokens that it took are not given back."""
        task = self._pick(self.model.leases, choice)
        leased_at = next(lease.leased_at for lease in self.index.leases(task.queue) if lease.id == task.id)
        assert self.index.release([Lease(task.id, task.queue, leased_at)]) == 1
        self.model.waiting[task.id] = self.model.end(task.id)
        assert self.index.push([task]) == 1

    @precondition(lambda self: self.model.waiting)
    @rule(choice=st.integers(0, 99))
    def cancel(self, choice):
        """A waiting task ends."""
        task = self._pick(self.model.waiting, choice)
        assert self.index.remove([task]) == 1
        del self.model.waiting[task.id]

    @precondition(lambda self: self.model.waiting)
    @rule(choice=st.integers(0, 99), band=st.sampled_from([Band.CRITICAL, Band.NORMAL, Band.LOW]))
    def reprioritise(self, choice, band):
        """Another band, the same time."""
        task = self._pick(self.model.waiting, choice)
        moved = replace(task, priority=band)
        assert self.index.push([moved]) == (band != task.priority)
        self.model.waiting[task.id] = moved

    @rule(gate=gates, found=limits)
    def edit(self, gate, found):
        """Staff change the limits of a gate, or lift them."""
        self._set(gate, replace(found, throttled_until=self.model.limits.get(gate, Limits()).throttled_until))

    @rule(gate=gates)
    def lift(self, gate):
        """Staff lift the limits of a gate."""
        self._set(gate, Limits())

    @rule(gate=st.sampled_from(GATES[1:]), steps=st.integers(1, 12))
    def throttle(self, gate, steps):
        """Task code received a request to slow down."""
        until = datetime.fromtimestamp(self.model.now / 1e6, UTC) + timedelta(microseconds=steps * STEP)
        self._set(gate, replace(self.model.limits.get(gate, Limits()), throttled_until=until))

    @rule(steps=st.integers(1, 16), wakes=st.booleans())
    def wait(self, steps, wakes):
        """Time passes; a scheduler may repeat wake-up calls."""
        self.model.now += steps * STEP
        client_of(self.index).set(CLOCK, self.model.now)
        if wakes:
            self.index.wake_idle()

    @rule(who=hands)
    def heavy_head(self, who):
        """Two heavy tasks and light ones: one worker or two drain, and the others go on."""
        self.enqueue_many([("q", "a", "", "", 3, Band.CRITICAL), ("p", "a", "u", "", 2, Band.CRITICAL)])
        self.enqueue_many([("q", "a", "", "", 1, Band.CRITICAL), ("p", "a", "v", "", 1, Band.CRITICAL)] * 2)
        self._claim(self.hands[who], 1, idle=True)
        self.answer_calls(1)

    @rule()
    def lapse(self):
        """No worker claims for so long that all reservations lapse; the scheduler looks meanwhile."""
        self.wait(math.ceil(RESERVED / STEP), wakes=True)

    @rule()
    def rebuild(self):
        """The index is built again: what rates have used is kept, as the server is the same."""
        self._rebuild()

    @rule(who=hands)
    def leave_and_return(self, who):
        """A worker retires and another of its kind registers."""
        hand = self.hands[who]
        self.index.unregister(hand.profile.id, hand.id)
        self.model.end_reservations(hand.id)
        self.look_again_at.pop(hand.id, None)
        self.index.register(hand.profile, hand.id)

    # -- what always holds -----------------------------------------------------------------

    @invariant()
    def agrees(self):
        """The index is consistent, and forgets no idle worker."""
        state = index_state.check(self.index)
        assert state.waiting == set(self.model.waiting)
        assert state.leases == set(self.model.leases)
        assert {lane: worker for lane, (worker, _) in self._reserved(state).items()} == self.model.holders()
        assert {band_of(score) for lane in state.lanes.values() for score in lane.values()} == {
            Band(task.priority) for task in self.model.waiting.values()
        }
        is_watched = bool(state.watchers) and any(at <= self.model.now for at in state.refills.values())
        assert not self._starving(state) or any(state.calls.values()) or is_watched


TestLimitsMachine = LimitsMachine.TestCase
TestLimitsMachine.settings = SETTINGS
