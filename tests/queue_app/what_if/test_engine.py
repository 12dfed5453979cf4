"""The engine runs the real scripts in simulated time: order, caps, rates, turns, promotion, pauses."""

import random
import time

import pytest

from queue_app.core.limits import Limits
from queue_app.core.priorities import Band
from queue_app.index import scripts
from queue_app.what_if import engine as module
from queue_app.what_if.engine import Engine
from queue_app.what_if.index import CLOCK, simulated_index
from queue_app.what_if.plan import NEVER, SECOND, Change, Crew, Load, Plan, Starts, TaskKind, Waits

BEGIN = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND
WEEK = 7 * 24 * HOUR


@pytest.fixture(scope="module")
def index():
    with simulated_index() as found:
        yield found


@pytest.fixture
def simulate(index):
    def run(plan: Plan) -> Starts:
        index.delete()
        return Engine(index, plan, real_now=round(time.time() * SECOND)).run()

    return run


def crew(slots: int = 1, types: str = "a b c", offers: tuple[str, ...] = (), queues: tuple[str, ...] = ()) -> Crew:
    return Crew(queues, tuple(types.split()), offers, ((BEGIN, slots),))


def kind(task_type: str = "a", band: Band = Band.NORMAL, queue: str = "q", **given) -> TaskKind:
    return TaskKind(queue, task_type, band.value, **given)


def plan(*tasks: tuple[TaskKind, float, float], crews: tuple[Crew, ...] = (crew(),), end: int = HOUR, **given) -> Plan:
    """Return a plan of tasks (kind, second of arrival, seconds of run)."""
    load = Load()
    for what, at, runs in tasks:
        load.add(what, BEGIN + round(at * SECOND), round(runs * SECOND))
    return Plan(load=load, crews=crews, begin=BEGIN, end=BEGIN + end, **given)


def starts(found: Starts) -> list[float | None]:
    return [None if at == NEVER else (at - BEGIN) / SECOND for at in found.started]


def test_the_clock_is_the_only_difference_from_the_real_scripts():
    """The scripts read the time in one place, the shared prelude; those that do not need it leave it out."""
    counts = {name: scripts.source(name).count(CLOCK) for name in scripts.NAMES if name != "publish"}
    assert set(counts.values()) == {0, 1}
    assert all(counts[name] for name in ("push", "claim", "release", "promote", "set_limits", "begin_generation"))


def test_tasks_run_in_order_when_a_slot_is_free(simulate):
    found = simulate(
        plan((kind(), 0, 10), (kind(band=Band.LOW), 1, 10), (kind(band=Band.HIGH), 2, 10), (kind(), 100, 1))
    )
    assert starts(found) == [0, 20, 10, 100]
    assert found.drained_at == BEGIN + 101 * SECOND


def test_workers_come_and_go(simulate):
    two = Crew((), ("a",), (), ((BEGIN + 5 * SECOND, 2), (BEGIN + 20 * SECOND, -1)))
    found = simulate(plan(*[(kind(), 0, 10)] * 6, crews=(two,)))
    assert starts(found) == [5, 5, 15, 15, 25, 35]


def test_only_workers_that_can_run_a_task_do(simulate):
    crews = (crew(1, "a"), crew(1, "a b", ("gpu",)), crew(1, queues=("other",)))
    needs = kind("b", capabilities=("gpu",))
    found = simulate(plan((needs, 0, 10), (needs, 0, 10), (kind(), 0, 10), (kind("c"), 0, 10), crews=crews))
    assert starts(found) == [0, 10, 0, None]
    assert found.drained_at is None


def test_a_cap_a_rate_and_a_pause_hold_in_simulated_time(simulate):
    limits = {"q:q": Limits(max_concurrent=2), "t:b": Limits(rate_count=1, rate_seconds=60)}
    pause = Change(BEGIN + 100 * SECOND, "q:q", Limits(max_concurrent=2, paused=True))
    resume = Change(BEGIN + 200 * SECOND, "q:q", Limits(max_concurrent=2))
    found = simulate(
        plan(
            *[(kind(), 0, 10)] * 4,
            *[(kind("b"), 20, 1)] * 2,
            (kind(), 150, 1),
            crews=(crew(9),),
            limits=limits,
            changes=(pause, resume),
        )
    )
    first, second = starts(found)[4:6]
    assert starts(found)[:4] == [0, 0, 10, 10]
    assert second - first == pytest.approx(60, abs=0.01)
    assert starts(found)[6] == 200


def test_age_lifts_tasks_by_the_thresholds(simulate):
    flood = [(kind(band=Band.NORMAL), second, 10) for second in range(0, 2000, 10)]
    old = (kind(band=Band.LOW), 0, 10)
    assert starts(simulate(plan(*flood, old)))[-1] == 2000
    lifted = starts(simulate(plan(*flood, old, thresholds={Band.LOW: 300.0})))[-1]
    assert 300 <= lifted <= 380


def test_users_take_turns_in_a_fair_queue(simulate):
    tasks = [(kind(user="ada"), 0, 1)] * 50 + [(kind(user="bob"), 0, 1)] * 5
    fifo = starts(simulate(plan(*tasks)))
    fair = starts(simulate(plan(*tasks, limits={"q:q": Limits(fair_by="user")})))
    assert max(fifo[50:]) == 54
    assert max(fair[50:]) <= 10


def test_a_queue_by_arrival_ignores_bands(simulate):
    tasks = [(kind(band=band), second, 10) for second, band in enumerate([Band.NORMAL, Band.BACKGROUND, Band.CRITICAL])]
    assert starts(simulate(plan(*tasks))) == [0, 20, 10]
    assert starts(simulate(plan(*tasks, limits={"q:q": Limits(by_arrival=True)}))) == [0, 10, 20]


def test_heavy_tasks_take_several_slots(simulate):
    found = simulate(plan((kind(), 0, 10), (kind(weight=3), 1, 10), (kind(), 2, 10), crews=(crew(3),)))
    assert starts(found) == [0, 10, 20]


def test_tasks_share_a_lane_unless_crews_limits_or_turns_tell_them_apart(index):
    alike = [kind("a", queue=queue, user=user, key=key) for queue in "xyz" for user in "uv" for key in ("k:1", "k:2")]
    others = [kind("b"), kind("a", capabilities=("gpu",)), kind("a", queue="capped"), kind("c", queue="capped")]
    turns = [kind("a", queue="fair", user=user) for user in "uv"]
    limits = {"q:x": Limits(), "q:capped": Limits(max_concurrent=1), "q:fair": Limits(fair_by="user")}
    wanted = plan(*[(each, 0, 1) for each in (*alike, *others, *turns)], crews=(crew(1, "a c"),), limits=limits)
    lanes = Engine(index, wanted, real_now=0).lanes
    assert len(set(lanes[:12])) == 1
    assert len(set(lanes[12:16])) == 2, "no crew can run the first two; the last two share a cap"
    assert len(set(lanes)) == 1 + 2 + 2
    keyed = {"k:k": Limits(max_concurrent=1)}
    with_keys = plan(*[(each, 0, 1) for each in alike], crews=(crew(1, "a"),), limits=keyed)
    assert len(set(Engine(index, with_keys, real_now=0).lanes)) == 2, "each key of the family has its own slots"


def test_a_coarse_resolution_keeps_waits(simulate, override):
    """A large load runs in turns of several tasks; its waits differ by less than the resolution."""
    chance = random.Random(3)
    tasks = [(kind(chance.choice("abc")), chance.random() * 3600, chance.expovariate(1 / 20)) for _ in range(2000)]
    wanted = plan(*tasks, crews=(crew(12),))
    exact = simulate(wanted)
    override(module, EXACT_TASKS=1000)
    coarse = simulate(wanted)
    assert coarse.resolution > 0
    assert coarse.turns < exact.turns / 1.5
    for share in ("p50", "p95", "worst"):
        one, other = (
            Waits.of([at - queued for at, queued in zip(found.started, wanted.load.queued_at, strict=True)])
            for found in (exact, coarse)
        )
        difference = abs(getattr(one, share) - getattr(other, share))
        assert difference <= max(0.05 * getattr(one, share), 2 * coarse.resolution / SECOND)


def test_a_coarse_resolution_loses_no_time_of_slots(simulate, override):
    """Near saturation, a little time lost in each turn would multiply the waits: 30 times at half the run time."""
    chance, bands = random.Random(1), (Band.HIGH, Band.NORMAL, Band.NORMAL, Band.LOW)
    tasks = [(kind(chance.choice("abc"), chance.choice(bands)), chance.random() * 700, chance.expovariate(1 / 2))
             for _ in range(8000)]  # fmt: skip
    wanted = plan(*tasks, crews=(crew(24),), end=700 * SECOND)
    exact = simulate(wanted)
    override(module, EXACT_TASKS=1000)
    override(module, RESOLUTION_SHARE=0.5)
    coarse = simulate(wanted)
    assert coarse.resolution > SECOND // 2
    one, other = (
        Waits.of([at - queued for at, queued in zip(found.started, wanted.load.queued_at, strict=True)])
        for found in (exact, coarse)
    )
    assert one.p95 > 2, "tasks wait"
    for share in ("p50", "p95", "p99"):
        assert abs(getattr(one, share) - getattr(other, share)) <= 2 * coarse.resolution / SECOND, share
