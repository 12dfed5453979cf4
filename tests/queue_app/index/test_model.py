"""The index against a model of it in plain Python, driven by Hypothesis.

The model knows queued tasks, their places, leases and limits, and finds the tasks that a claim must propose by sorting
everything; it has neither heads nor merges. The default run is the same every time; ``INDEX_MODEL_EXAMPLES=5000``
searches at random.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, Phase, note, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queue_app.core.priorities import PROMOTED, Band, steps_of
from queue_app.core.records import TaskRef
from queue_app.index import Lease, Profile, get_index
from tests.support import index_state
from tests.support.index_model import Model
from tests.support.index_state import band_of, client_of
from tests.support.leases import release as free, restore
from tests.support.scene import Hand, set_limits

EXAMPLES = int(os.environ.get("INDEX_MODEL_EXAMPLES", "0"))
SETTINGS = settings(
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 60,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

QUEUES = ["p", "q", "r"]
KINDS = ["a", "b"]
CAPABILITIES = ["gpu", "ssd"]
PROFILES = [
    Profile.of((), KINDS, CAPABILITIES),
    Profile.of((), ["a"], ()),
    Profile.of(["p", "q"], ["b"], ["gpu"]),
    Profile.of(["r"], KINDS, ["ssd"]),
]

bands = st.sampled_from(Band)
queues = st.sampled_from(QUEUES)
workers = st.integers(0, 2 * len(PROFILES) - 1)  # two of each profile
caps = st.none() | st.integers(1, 4)
needs = st.sampled_from([(), (), ("gpu",), ("ssd",), ("gpu", "ssd")])
lanes = st.tuples(queues, st.sampled_from(KINDS), needs, bands)
#: Tasks are queued so far apart that no age passes a threshold while an example runs.
STEP = timedelta(seconds=1000)
FIRST = datetime(2020, 1, 1, tzinfo=UTC)
steps = st.none() | st.integers(0, 20)
claims = st.tuples(workers, st.integers(1, 6), st.booleans())


class IndexMachine(RuleBasedStateMachine):
    """Every rule does the same to the index and to the model, and compares the replies."""

    def __init__(self) -> None:
        super().__init__()
        self.index = get_index()
        for key in client_of(self.index).scan_iter(match=self.index.keys.everything):
            client_of(self.index).delete(key)
        self.model = Model(datetime.fromtimestamp(self.index.now() / 1e6, UTC))
        self.generation = 0
        self.clock = 0
        self.hands = [Hand(uuid.UUID(int=n + 1), profile) for n, profile in enumerate(PROFILES * 2)]

    @initialize(
        many=st.lists(lanes, min_size=5, max_size=30),
        limits=st.lists(caps, min_size=4, max_size=4),
        by_arrival=st.sets(queues),
    )
    def open(self, many, limits, by_arrival):
        """Open the first generation over some tasks, limits and orders, and register a worker of each profile."""
        self.model.by_arrival = by_arrival
        self.model.caps = dict(zip(["", *QUEUES], limits, strict=True))
        for lane in many:
            self.model.push(self._new(lane))
        self._rebuild()

    def _rebuild(self) -> None:
        self.generation += 1
        assert self.index.begin_generation(self.generation)
        for queue in ("", *QUEUES):
            self._set_limits(queue)
        restore(self.index, [(task.id, task.queue) for task in self.model.leases.values()])
        self.index.set_thresholds(self.model.thresholds)
        assert self.index.push(self.model.waiting.values()) == len(self.model.waiting)
        self.model.places = {task.id: self.model.effective(task) for task in self.model.waiting.values()}
        assert self.index.finish_generation(self.generation)
        for hand in self.hands:
            self.index.register(hand.profile, hand.id)

    def _set_limits(self, queue: str) -> bool:
        model = self.model
        cap, by_arrival = model.caps.get(queue), queue in model.by_arrival
        return set_limits(self.index, queue, max_concurrent=cap, paused=queue in model.paused, by_arrival=by_arrival)

    def _new(self, lane: tuple[str, str, set[str], Band]) -> TaskRef:
        queue, kind, needs, band = lane
        self.clock += 1
        return TaskRef(uuid.UUID(int=self.clock), kind, queue, band, tuple(sorted(needs)), FIRST + self.clock * STEP)

    def _pick(self, tasks: dict[uuid.UUID, TaskRef], choice: int) -> TaskRef:
        ids = sorted(tasks)
        return tasks[ids[choice % len(ids)]]

    # -- rules ---------------------------------------------------------------------------

    @rule(many=st.lists(lanes, min_size=1, max_size=10))
    def enqueue_many(self, many):
        """One task or several in one push."""
        tasks = [self._new(lane) for lane in many]
        assert self.index.push(tasks) == sum([self.model.push(task) for task in tasks])

    @rule(calls=st.lists(claims, min_size=1, max_size=4))
    def claim(self, calls):
        """Tasks for workers of some profiles, one after the other."""
        for who, want, idle in calls:
            self._claim(self.hands[who], want, idle=idle)

    def _claim(self, hand: Hand, want: int, *, idle: bool) -> None:
        proposal = self.index.claim(hand.profile, hand.id, want, register_idle=idle)
        expected = self.model.claim(hand.profile, want)
        note(f"{hand.id.int} wants {want}: {[str(task_id)[-3:] for task_id, _ in proposal.tasks]}")
        assert [task_id for task_id, _ in proposal.tasks] == expected
        assert [queue for _, queue in proposal.tasks] == [self.model.leases[i].queue for i in expected]
        assert proposal.generation == self.generation

    @rule(release=st.booleans())
    def drain(self, release):
        """All workers claim until no task may start; then all are idle. Running tasks may end before."""
        if release:
            free(self.index, [(task.id, task.queue) for task in self.model.leases.values()])
            self.model.leases.clear()
        for hand in self.hands:
            self._claim(hand, 100, idle=True)

    @rule(many=st.lists(lanes, min_size=4, max_size=12), want=st.integers(1, 3))
    def burst(self, many, want):
        """All workers are idle, many tasks come at once, and the called workers claim."""
        self.drain(release=True)
        self.enqueue_many(many)
        self.answer_calls(want)

    @rule(want=st.integers(1, 3))
    def answer_calls(self, want):
        """Called workers claim until none is called: then no idle worker may have anything to do."""
        called = True
        while called:
            calls = index_state.read(self.index).calls
            called = [hand for hand in self.hands if calls.get(str(hand.id))]
            for hand in called:
                self._claim(hand, want, idle=True)
        assert not self._starving(index_state.read(self.index))

    def _starving(self, state: index_state.IndexState) -> list[Hand]:
        return [
            hand
            for hand in self.hands
            if str(hand.id) in state.idle.get(hand.profile.id, set()) and self.model.could_start(hand.profile)
        ]

    @precondition(lambda self: self.model.leases)
    @rule(choices=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def release_some(self, choices):
        """The end of several tasks in one call."""
        tasks = {task.id: task for task in (self._pick(self.model.leases, choice) for choice in choices)}
        assert free(self.index, [(task.id, task.queue) for task in tasks.values()]) == len(tasks)
        for task_id in tasks:
            del self.model.leases[task_id]

    @precondition(lambda self: self.model.leases)
    @rule(choice=st.integers(0, 99), repeat=st.integers(1, 2))
    def release(self, choice, repeat):
        """The end of a task, perhaps reported twice."""
        task = self._pick(self.model.leases, choice)
        assert [free(self.index, [(task.id, task.queue)]) for _ in range(repeat)] == [1, 0][:repeat]
        del self.model.leases[task.id]

    @precondition(lambda self: self.model.leases)
    @rule(choice=st.integers(0, 99), same=st.booleans())
    def withdraw(self, choice, same):
        """A proposal that the row refused, or a lease that is another one by now."""
        task = self._pick(self.model.leases, choice)
        leased_at = next(lease.leased_at for lease in self.index.leases(task.queue) if lease.id == task.id)
        assert self.index.release([Lease(task.id, task.queue, leased_at - (not same))]) == int(same)
        if same:
            del self.model.leases[task.id]

    @precondition(lambda self: self.model.leases)
    @rule(choice=st.integers(0, 99))
    def give_back(self, choice):
        """A leased task returns to its place."""
        task = self._pick(self.model.leases, choice)
        free(self.index, [(task.id, task.queue)])
        del self.model.leases[task.id]
        assert self.index.push([task]) == int(self.model.push(task)) == 1

    @precondition(lambda self: self.model.waiting)
    @rule(choice=st.integers(0, 99))
    def cancel(self, choice):
        """A waiting task ends."""
        task = self._pick(self.model.waiting, choice)
        assert self.index.remove([task, task]) == 1
        del self.model.waiting[task.id]

    @precondition(lambda self: self.model.waiting)
    @rule(choice=st.integers(0, 99), band=bands)
    def reprioritise(self, choice, band):
        """Another band, the same time."""
        task = self._pick(self.model.waiting, choice)
        moved = TaskRef(task.id, task.task_type, task.queue, band, task.capabilities, task.queued_at)
        assert self.index.push([moved]) == int(self.model.push(moved))

    @rule(band=st.sampled_from(PROMOTED), young=steps, others=st.lists(steps, min_size=3, max_size=3))
    def set_thresholds(self, band, young, others):
        """All tasks of a band but the ``young`` newest are aged; the next step takes few seconds or never comes."""
        waits = {
            each: None if n is None else n * STEP.total_seconds() for each, n in zip(PROMOTED, others, strict=True)
        }
        if young is not None:
            between = FIRST + (self.clock - young) * STEP + STEP / 2
            waits[band] = (self.model.now - between).total_seconds()
        assert self.index.set_thresholds(waits) == (
            any(waits[each] != self.model.thresholds.get(each) for each in PROMOTED)
        )
        self.model.thresholds = waits

    @rule(choices=st.lists(st.integers(0, 99), max_size=8), everything=st.booleans())
    def promote(self, choices, everything):
        """Aged tasks rise, even if some were claimed or ended after the rows were read."""
        known = self.model.waiting | self.model.leases
        tasks = list(known.values()) if everything else [self._pick(known, choice) for choice in choices if known]
        expected: Counter[tuple[Band, Band]] = Counter()
        for task in tasks:
            expected += self.model.rise(task) or Counter()
        assert steps_of(self.index.promote(tasks)) == expected

    @precondition(lambda self: self.model.leases or self.model.waiting)
    @rule(choice=st.integers(0, 99))
    def push_again(self, choice):
        """What the reconciler does with everything it reads."""
        task = self._pick(self.model.waiting | self.model.leases, choice)
        assert self.index.push([task]) == int(self.model.push(task))
        assert self.index.push([task]) == 0

    @precondition(lambda self: self.model.waiting)
    @rule(choice=st.integers(0, 99))
    def find_running(self, choice):
        """A row runs although it waits in the index: its lease is restored, and its entry is a stale copy."""
        task = self._pick(self.model.waiting, choice)
        assert restore(self.index, [(task.id, task.queue)]) == 1
        self.index.remove([task])
        self.model.leases[task.id] = self.model.waiting.pop(task.id)

    @rule(queue=st.sampled_from(["", *QUEUES]), cap=caps)
    def set_cap(self, queue, cap):
        """Another cap, for a queue or for everything."""
        is_other = self.model.caps.get(queue) != cap
        self.model.caps[queue] = cap
        assert self._set_limits(queue) == is_other

    @rule(queue=queues)
    def pause_or_resume(self, queue):
        """The other state of a queue."""
        self.model.paused ^= {queue}
        assert self._set_limits(queue)

    @rule(queue=queues)
    def change_order(self, queue):
        """The other order: a queue in use is built again, because its tasks need other places."""
        tasks = [*self.model.waiting.values(), *self.model.leases.values()]
        self.model.by_arrival ^= {queue}
        assert self._set_limits(queue)
        if any(task.queue == queue for task in tasks):
            assert self.index.generation().state == "rebuilding"
        if self.index.generation().state == "rebuilding":  # it may keep a lane that is empty by now
            self._rebuild()

    @rule()
    def lose_and_rebuild(self):
        """Everything is flushed, and built again."""
        for key in client_of(self.index).scan_iter(match=self.index.keys.everything):
            client_of(self.index).delete(key)
        self._rebuild()

    @rule(who=workers)
    def leave_and_return(self, who):
        """A worker retires and another of its kind registers."""
        hand = self.hands[who]
        self.index.unregister(hand.profile.id, hand.id)
        self.index.register(hand.profile, hand.id)

    # -- what always holds -----------------------------------------------------------------

    @invariant()
    def agrees(self):
        """The index is consistent, holds what the model holds, and forgets no idle worker."""
        state = index_state.check(self.index)
        assert {i: score for lane in state.lanes.values() for i, score in lane.items()} == {
            task_id: self.model.places[task_id] for task_id in self.model.waiting
        }
        assert {i: queue for queue, page in state.queue_leases.items() for i in page} == {
            task.id: task.queue for task in self.model.leases.values()
        }
        # An idle worker that could start a task has been called, or another worker has that will pass the call on.
        assert not self._starving(state) or any(state.calls.values())

    @rule()
    def ask(self):
        """Counts and positions are as the model sorts the tasks."""
        for queue in QUEUES:
            tasks = sorted((t for t in self.model.waiting.values() if t.queue == queue), key=self.model.order)
            depth = self.index.depth(queue)
            bands = Counter(band_of(self.model.places[task.id]) for task in tasks)
            assert depth.counts == {band: bands[band] for band in Band}
            for number, task in enumerate(tasks[:2], 1):
                assert self.index.position(task) == number


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = SETTINGS
