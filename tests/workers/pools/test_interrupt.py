"""Interrupted attempts end, and nothing else does."""

import asyncio
import gc
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection, transaction

from queue_app import task
from queue_app.exceptions import TaskCancelled, TaskTimeout
from queue_app.workers import deadlines
from queue_app.workers.deadlines import end_by_force, enforce, must_be_replaced, next_due
from tests.support.waiting import let_pass, until
from tests.workers import chores
from tests.workers.pools.stand import INTERRUPTIONS, KINDS, begun, opened, outcomes, threads_of
from tests.workers.test_executor import claimed


@pytest.fixture
def pool():
    with opened("threads") as made:
        yield made


@pytest.mark.parametrize(("interruption", "reason"), INTERRUPTIONS)
def test_code_that_runs_is_ended_and_cleans_up(pool, interruption, reason):
    name = uuid.uuid4().hex
    held = begun(pool, chores.spin, name)
    assert pool.interrupt(held, interruption)
    assert not pool.interrupt(held, interruption), "once is enough"
    failure = outcomes(pool)[0].failure
    assert (failure.reason, failure.exception_class) == (reason, f"queue_app.exceptions.{interruption.__name__}")
    assert f"cleaned up {name}" in chores.calls


def test_the_thread_goes_on_with_the_next_task(pool):
    held = begun(pool, chores.spin, uuid.uuid4().hex)
    after = [claimed(chores.echo, number) for number in range(200)]
    pool.submit(after)
    pool.interrupt(held, TaskTimeout)
    assert [outcome.failure for outcome in outcomes(pool, 201)[1:]] == [None] * 200


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let Python switch threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# Python warns of an interruption that it swallows in a callback; the test is about the attempts that it meets.
@pytest.mark.filterwarnings(r"ignore:(?s)Exception ignored.*TaskCancelled:pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_never_meets_the_wrong_attempt(hasty_threads):
    """Tasks of microseconds, interrupted as they end: each ends by itself or by its own interruption."""
    tasks = [claimed(chores.echo, number) for number in range(2000)]
    aimed = set()
    stop = threading.Event()

    def shoot():
        while not stop.is_set():
            for held, _ in pool.running():
                if held.task.id.int % 2 and pool.interrupt(held, TaskCancelled):
                    aimed.add(held.task.id)

    with opened("threads", 2) as pool:
        shooter = threading.Thread(target=shoot)
        shooter.start()
        pool.submit(tasks)
        ended = outcomes(pool, len(tasks))
        stop.set()
        shooter.join()
        assert all(thread.is_alive() for thread in threads_of(pool))
    assert {outcome.task.id for outcome in ended if outcome.failure is not None} <= aimed
    assert {outcome.task.id for outcome in ended} == {held.task.id for held in tasks}


def spin_for(seconds: float) -> None:
    """Run Python code, in which an interruption arrives."""
    until_then = time.monotonic() + seconds
    while time.monotonic() < until_then:
        sum(range(100))


class Thing:
    """Can be collected, with a callback."""

    def __init__(self, on_delete: Callable[[], object] = lambda: None) -> None:
        self._on_delete = on_delete

    def __del__(self) -> None:
        self._on_delete()


def in_del(callback: Callable[[], object]) -> None:
    Thing(callback)


def in_weakref(callback: Callable[[], object]) -> None:
    thing = Thing()
    reference = weakref.ref(thing, lambda _: callback())
    del thing
    assert reference() is None


def in_gc(callback: Callable[[], object]) -> None:
    def on_collect(phase: str, _info: object) -> None:
        if phase == "stop":
            callback()

    gc.callbacks.append(on_collect)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(on_collect)


@task
def swallows(name: str, where: str) -> None:
    """Meet an interruption where Python swallows it, and go on."""

    def callback() -> None:
        chores.begun[name].set()
        spin_for(30)

    try:
        {"del": in_del, "weakref": in_weakref, "gc": in_gc}[where](callback)
        chores.calls.append(f"{name} goes on")
        spin_for(30)
    finally:
        spin_for(0.3)  # longer than the pause between two interruptions
        chores.calls.append(f"cleaned up {name}")


@pytest.mark.parametrize("where", ["del", "weakref", "gc"])
def test_an_interruption_that_python_swallows_is_raised_again(pool, monkeypatch, where):
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: swallowed.append(found.exc_type))
    pool.repeat_after = 0.05
    name = uuid.uuid4().hex
    held = begun(pool, swallows, name, where)
    assert enforce(pool, {held.task.id}) == []
    assert next_due(pool) <= 0.05
    until(lambda: f"{name} goes on" in chores.calls, "the end of the callback")
    ended = []
    until(lambda: enforce(pool, set()) or ended.extend(pool.take_outcomes()) or ended, "the outcome")
    assert swallowed == [TaskCancelled]
    assert ended[0].failure.reason == "cancelled"
    assert chores.calls[-2:] == [f"{name} goes on", f"cleaned up {name}"], "its clean-up is not interrupted"


def test_a_thread_that_blocks_outside_of_python_keeps_its_slot_until_it_ends(pool, monkeypatch):
    """A limit of 1 would otherwise let a second function run beside it."""
    name, stuck = uuid.uuid4().hex, []
    held = begun(pool, chores.hold, name)  # waits for a lock
    pool.submit([claimed(chores.echo, 1)])
    monkeypatch.setattr(deadlines, "STUCK_SECONDS", -held.timeout - 1)  # as if its timeout had passed long ago
    held.extended = -held.timeout
    for _ in range(2):
        assert enforce(pool, set(), stuck.append) == []
    assert stuck == [held]
    assert next_due(pool) > 0.5
    assert not must_be_replaced(pool)
    assert pool.unstarted == 1
    chores.gates[name].set()
    ended = outcomes(pool, 2)
    assert (ended[0].failure.reason, ended[1].result) == ("timeout", "1")


def test_a_thread_that_never_ends_is_forgotten_when_the_process_ends(pool):
    name = uuid.uuid4().hex
    held = begun(pool, chores.hold, name)
    pool.interrupt(held, TaskTimeout)
    held.stuck_at = time.monotonic() - deadlines.REPLACE_SECONDS
    assert must_be_replaced(pool)
    [outcome] = end_by_force(pool, held)
    assert outcome.failure.reason == "timeout"
    assert end_by_force(pool, held) == []
    chores.gates[name].set()
    until(lambda: not threads_of(pool)[0].is_alive(), "the end of the thread")
    assert pool.take_outcomes() == []


def test_one_that_comes_between_the_end_and_the_report_costs_neither_slot_nor_outcome(pool, monkeypatch):
    """The interruption arrives at the first step of the code that ends the attempt."""
    release, late = pool._release, [TaskTimeout]

    def interrupted(slot, held):
        if late:
            raise late.pop()
        return release(slot, held)

    monkeypatch.setattr(pool, "_release", interrupted)
    pool.submit([claimed(chores.echo, 1), claimed(chores.echo, 2)])
    assert [outcome.result for outcome in outcomes(pool, 2)] == ["1", "2"]


@task
def query(name: str) -> None:
    """Query the database in one transaction after another, for ever."""
    chores.begun[name].set()
    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            for _ in range(10):
                cursor.execute("SELECT pg_sleep(0.0001)")


@pytest.mark.parametrize(("interruption", "reason"), INTERRUPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_database_that_an_interruption_caused_is_only_its_cause(kind, interruption, reason, tmp_path):
    function = chores.fail_to_roll_back_later if kind == "async" else chores.fail_to_roll_back
    with opened(kind) as pool:
        held = claimed(function, uuid.uuid4().hex, str(tmp_path / "begun"))
        pool.submit([held])
        until(lambda: (tmp_path / "begun").exists() and (kind != "processes" or bool(pool.pids)), "its begin")
        pool.interrupt(held, interruption)
        failure = outcomes(pool)[0].failure
    assert (failure.reason, failure.exception_class) == (reason, f"queue_app.exceptions.{interruption.__name__}")
    assert "can't change 'autocommit' now" in failure.traceback


def test_an_error_of_the_database_without_an_interruption_is_the_failure(pool):
    name = uuid.uuid4().hex
    chores.gates[name].set()
    begun(pool, chores.fail_to_roll_back, name)
    failure = outcomes(pool)[0].failure
    assert (failure.reason, failure.exception_class) == ("error", "django.db.utils.ProgrammingError")


# An interruption in the middle of psycopg's own code may leave a connection that is closed as it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("interruption", "reason"), INTERRUPTIONS)
def test_an_interruption_in_a_transaction_is_the_failure(engine, pool, interruption, reason):
    """The rollback fails when it begins in the middle of a query; that error is only a consequence."""
    failures = []
    for number in range(75):
        held = begun(pool, query, uuid.uuid4().hex)
        let_pass(number * 0.00006)
        pool.interrupt(held, interruption)
        failures.append(outcomes(pool)[0].failure)
    assert {(each.reason, each.exception_class) for each in failures} == {
        (reason, f"queue_app.exceptions.{interruption.__name__}")
    }


# -- shields ---------------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@task(takes_context=True)
def shielded(context, folder: str) -> None:
    """Do something that must not be left half done, and something else."""
    log = Path(folder)
    with context.shield():
        with context.shield():
            (log / "begun").touch()
            until((log / "gate").exists, "the gate opens")
        (log / "done").write_text(str(context.cancelled))
    (log / "after").touch()


@task(takes_context=True)
async def shielded_coroutine(context, folder: str) -> None:
    """Do the same on an event loop."""
    log = Path(folder)
    with context.shield():
        (log / "begun").touch()
        while not (log / "gate").exists():  # noqa: ASYNC110 - the gate is opened by another thread
            await asyncio.sleep(0.005)
        (log / "done").write_text(str(context.cancelled))
    (log / "after").touch()


@pytest.fixture(params=KINDS)
def each_pool(request):
    with opened(request.param) as made:
        yield made


def test_the_block_ends_and_then_the_attempt(each_pool, tmp_path):
    pool = each_pool
    held = claimed(shielded_coroutine if pool.name == "async" else shielded, str(tmp_path))
    pool.submit([held])
    until((tmp_path / "begun").exists, "the block begins")
    if pool.name == "processes":  # else the signal would follow later
        until(lambda: bool(pool.pids), "the pool knows its process")
    assert pool.interrupt(held, TaskCancelled)
    let_pass(0.05)  # one that is not put off would arrive
    assert pool.take_outcomes() == []
    (tmp_path / "gate").touch()
    assert outcomes(pool)[0].failure.reason == "cancelled"
    assert (tmp_path / "done").read_text() == "True", "the block went on to its end, and could know"
    assert not (tmp_path / "after").exists()
