"""The pool of threads: runs in order, gathers outcomes, survives its tasks."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.pools import base, threads
from queue_app.workers.pools.threads import ThreadPool
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.pools.stand import opened, outcomes
from tests.workers.test_executor import claimed


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with opened("threads", 2) as made:
        yield made


def holding() -> tuple[str, ClaimedAttempt]:
    """Return a task that waits for a gate, and the gate's name."""
    name = uuid.uuid4().hex
    return name, claimed(chores.hold, name)


def test_outcomes(pool):
    pool.submit([claimed(chores.echo, number) for number in range(20)])
    assert sorted(int(outcome.result) for outcome in outcomes(pool, 20)) == list(range(20))
    assert pool.take_outcomes() == []
    assert pool.running() == []


def test_one_slot_runs_in_order():
    with opened("threads") as pool:
        pool.submit([claimed(chores.echo, number) for number in range(20)])
        assert [int(outcome.result) for outcome in outcomes(pool, 20)] == list(range(20))


def test_running_and_unstarted_tasks(pool):
    names, tasks = zip(*(holding() for _ in range(3)), strict=True)
    pool.submit(list(tasks))
    for name in names[:2]:
        assert chores.begun[name].wait(60)
    assert {held.task.id for held, _ in pool.running()} == {held.task.id for held in tasks[:2]}
    assert all(seconds >= 0 for _, seconds in pool.running())
    assert pool.unstarted == 1
    assert pool.take_unstarted() == [tasks[2]]
    assert pool.unstarted == 0
    for name in names[:2]:
        chores.gates[name].set()
    assert {outcome.result for outcome in outcomes(pool, 2)} == {f'"{name}"' for name in names[:2]}
    assert not chores.begun[names[2]].is_set()


def test_one_task_in_two_attempts_at_once(pool):
    """Its row was granted again, to the same worker."""
    name, first = holding()
    second = ClaimedAttempt(replace(first.task), 0.0)
    pool.submit([first, second])
    until(lambda: len(pool.running()) == 2, "both run")
    chores.gates[name].set()
    outcomes(pool, 2)
    pool.submit([claimed(chores.echo, 1), claimed(chores.echo, 2)])
    outcomes(pool, 2)


def test_a_slot_survives_what_its_tasks_raise(pool):
    pool.submit([claimed(chores.raises, kind) for kind in ("exit", "interrupt", "silent", "value") * 3])
    assert all(outcome.failure for outcome in outcomes(pool, 12))
    pool.submit([claimed(chores.echo, 1)])
    assert outcomes(pool)[0].result == "1"


def test_a_slot_survives_broken_connections(pool, monkeypatch, caplog):
    class Broken:
        def close_if_unusable_or_obsolete(self) -> None:
            raise RuntimeError("broken")

    broken = SimpleNamespace(all=lambda **_: [Broken()], close_all=lambda: None)
    monkeypatch.setattr(base, "connections", broken)
    pool.submit([claimed(chores.echo, number) for number in range(6)])
    outcomes(pool, 6)
    pool.submit([claimed(chores.echo, 7)])
    outcomes(pool)
    assert "cannot be closed" in caplog.text


def test_threads_end_and_close_their_connections(monkeypatch):
    closed: list[int] = []
    monkeypatch.setattr(threads, "connections", SimpleNamespace(close_all=lambda: closed.append(1)))
    with opened("threads", 3):
        assert closed == []
    assert closed == [1, 1, 1]
