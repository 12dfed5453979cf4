"""Random policies and loads over simulated weeks keep what the queue promises, by the real scripts.

``SIMULATED_EXAMPLES=2000 ./dev test tests/queue_app/what_if/test_invariants.py`` draws more, anew each time.
"""

import os
import time
from collections import defaultdict

import pytest
from hypothesis import given, settings, strategies as st

from queue_app.core.limits import EVERYTHING, Limits
from queue_app.core.priorities import Band
from queue_app.what_if.engine import Engine
from queue_app.what_if.index import simulated_index
from queue_app.what_if.plan import NEVER, SECOND, Crew, Load, Plan, Starts, TaskKind

EXAMPLES = int(os.environ.get("SIMULATED_EXAMPLES", "0"))
SETTINGS = settings(
    derandomize=not EXAMPLES, max_examples=EXAMPLES or 25, deadline=None, database=None, print_blob=True
)
BEGIN = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND
WEEKS = 14 * 24 * HOUR
GATES = (EVERYTHING, "q:q0", "q:q1", "t:a", "t:b", "k:k", "k:k:1")


@pytest.fixture(scope="module")
def index():
    with simulated_index() as found:
        yield found


def simulate(index, plan: Plan) -> Starts:
    index.delete()
    return Engine(index, plan, real_now=round(time.time() * SECOND)).run()


def crew(slots: int, types: tuple[str, ...] = ("a", "b")) -> Crew:
    return Crew((), types, (), ((BEGIN, slots),))


kinds = st.builds(
    TaskKind,
    st.sampled_from(["q0", "q1"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([band.value for band in Band]),
    user=st.sampled_from(["", "ada", "bob"]),
    capabilities=st.just(()),
    key=st.sampled_from(["", "k:1", "k:2", "other"]),
    weight=st.just(1),
)
limits = st.builds(
    lambda cap, rate, fair: Limits(
        max_concurrent=cap, fair_by=fair,
        **({"rate_count": rate[0], "rate_seconds": rate[1], "rate_burst": rate[2]} if rate else {}),
    ),
    st.none() | st.integers(1, 4),
    st.none() | st.tuples(st.integers(5, 20), st.sampled_from([60.0, 3600.0]), st.integers(1, 3)),
    st.none() | st.sampled_from(["user", "key"]),
)  # fmt: skip
#: Whole ms, as places in a lane are exact to some µs. Most come in bursts at a few times: limits and slots bind.
bursts, others = st.integers(0, 3).map(lambda number: number * 3 * 24 * HOUR), st.integers(0, WEEKS // 1000)
moments = bursts | others.map(lambda ms: ms * 1000)
tasks = st.lists(st.tuples(kinds, moments, st.integers(0, 20 * 60 * SECOND)), min_size=1, max_size=80)


@st.composite
def plans(draw) -> Plan:
    load = Load()
    for what, at, runs in draw(tasks):
        load.add(what, BEGIN + at, runs)
    policy = {gate: draw(limits) for gate in draw(st.sets(st.sampled_from(GATES), max_size=3))}
    for gate, each in policy.items():  # a type has no turns, and all tasks together have no rate
        if not gate.startswith("q:"):
            names = ("max_concurrent",) if gate == EVERYTHING else tuple(vars_of(each))
            policy[gate] = Limits(**{name: getattr(each, name) for name in names})
    thresholds = draw(st.sampled_from([{}, {Band.NORMAL: 7200.0, Band.LOW: 3600.0, Band.BACKGROUND: 3600.0}]))
    crews = (crew(draw(st.integers(1, 5))), *draw(st.sampled_from([(), (crew(2, ("a",)),)])))
    return Plan(load=load, crews=crews, limits=policy, begin=BEGIN, end=BEGIN + WEEKS, thresholds=thresholds)


def vars_of(each: Limits) -> dict[str, object]:
    return {name: getattr(each, name) for name in ("max_concurrent", "rate_count", "rate_seconds", "rate_burst")}


def gates_of(plan: Plan, what: TaskKind) -> list[str]:
    """Return the limited gates that a task passes; its own key's in place of its family's."""
    passed = [gate for gate in plan.limits if what.passes(gate)]
    return [gate for gate in passed if not (gate == "k:k" and "k:k:1" in passed and has_numbers(plan.limits["k:k:1"]))]


def has_numbers(each: Limits) -> bool:
    return any(value is not None for value in vars_of(each).values())


@SETTINGS
@given(plan=plans())
def test_what_the_queue_promises_holds_over_weeks(index, plan):
    found, load = simulate(index, plan), plan.load
    assert found.started.count(NEVER) == 0, "everything ran within the patience of the simulation"
    for task, at in enumerate(found.started):
        assert at >= load.queued_at[task]
    slots = sum(change for each in plan.crews for _, change in each.changes)
    at_most(plan, found, range(len(load)), slots, "slots")
    behind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for task, place in enumerate(load.kind):
        for gate in gates_of(plan, load.kinds[place]):
            behind[gate, load.kinds[place].key if gate == "k:k" else ""].append(task)
    for (gate, key), some in behind.items():
        if cap := plan.limits[gate].max_concurrent:
            at_most(plan, found, some, cap, f"{gate} {key}")
        if plan.limits[gate].rate_count:
            at_a_rate(plan.limits[gate], sorted(found.started[task] for task in some), gate)
    by_lane: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for task, place in enumerate(load.kind):
        by_lane[place].append((load.queued_at[task], found.started[task]))
    for pairs in by_lane.values():
        latest = NEVER
        for queued_at, at in sorted(pairs):
            assert at >= latest, ("first in, first out in a lane", queued_at)
            latest = at
    works_while_it_can(plan, found)


def changes(plan: Plan, found: Starts, some) -> list[tuple[int, int]]:
    runs = plan.load.runs
    starts = [(found.started[task], 1) for task in some if runs[task]]
    return sorted(starts + [(found.started[task] + runs[task], -1) for task in some if runs[task]])


def at_most(plan: Plan, found: Starts, some, most: int, what: str) -> None:
    used = 0
    for at, change in changes(plan, found, some):
        used += change
        assert used <= most, (what, used, most, at)


def at_a_rate(each: Limits, times: list[int], gate: str) -> None:
    interval = each.rate_seconds * SECOND / each.rate_count
    for first, begin in enumerate(times):
        for last in range(first, min(first + 30, len(times))):
            assert last - first + 1 <= each.rate_burst + (times[last] - begin) / interval + 1e-3, (gate, begin)


def works_while_it_can(plan: Plan, found: Starts) -> None:
    """No slot that can run a task is idle while it waits, if no limit holds it."""
    load, slots = plan.load, plan.crews[0].changes[0][1]
    if len(plan.crews) > 1:
        return
    edges, busy, full = changes(plan, found, range(len(load))), 0, []
    for place, (at, change) in enumerate(edges):
        busy += change
        if busy < slots and (place + 1 == len(edges) or edges[place + 1][0] > at):
            full.append((at, edges[place + 1][0] if place + 1 < len(edges) else at + WEEKS))  # some are idle
    for task, place in enumerate(load.kind):
        if not gates_of(plan, load.kinds[place]):
            queued_at, at = load.queued_at[task], found.started[task]
            idle = [(since, until) for since, until in full if max(since, queued_at) + 1 < min(until, at)]
            assert not idle, (task, queued_at, at, idle)
