"""Every fault in its short form; ``./dev faults`` runs the long one and prints the figures."""

import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from queue_app.models import Task, TaskResult
from tests.integration.checkers import repeated
from tests.integration.faults import clients, clocks, deaths, detours, edits, failover, flows, outages
from tests.integration.faults.arena import Arena, patient
from tests.integration.faults.run import run_on
from tests.integration.faults.starts import alone, kill, start
from tests.integration.faults.stepping import Skipped
from tests.integration.faults.timing import uncapped
from tests.integration.processes import lines
from tests.support.waiting import until

pytestmark = pytest.mark.integration

#: Another one in each run with FAULTS_SEED=$RANDOM.
SEED = int(os.environ.get("FAULTS_SEED", "20261121"))
COUNT = 160


@pytest.fixture(scope="module")
def arena(django_db_blocker):
    """Servers that only these tests use.

    Their folder is not one of pytest's: a run of pytest beside this one would close those to PostgreSQL's user.
    """
    with (
        django_db_blocker.unblock(),
        tempfile.TemporaryDirectory(prefix="arena-") as folder,
        Arena(Path(folder)) as servers,
        servers.entered(),
    ):
        yield servers


def kill_workers(run):
    """Kill a child, its supervisor, and then everything, in one run."""
    run.load()
    above, one = start(run)
    moments = run.moments(3)
    next(moments)
    kill(run.chance.choice(until(above.children, "there are workers")))
    next(moments)
    kill(above.pid)
    next(moments)
    for process in (above, one, run.fleet.processes[0]):
        process.kill()
    start(run)


def lose_the_index(run):
    """Flush Valkey, and take it away for a moment while callers enqueue."""
    outages.valkey_away(run, 1.5)
    for _ in run.moments(3):
        run.arena.flush()


def lose_the_rows(run):
    """Restart PostgreSQL, and cut its connections."""
    run.load()
    start(run)
    run.reach(run.chance.uniform(0.05, 0.4))
    run.arena.restart_postgres_at_once()
    run.reach(run.chance.uniform(0.45, 0.8))
    patient(run.arena.cut_connections)


def stop_a_worker_and_kill_the_upkeep(run):
    """Stop a worker past its lease and let it come back; kill Celery amid its upkeep, while that lasts."""
    celery = run.fleet.celery()
    deaths.stop_and_continue(run, **deaths.UPKEEP)
    deaths.kill_upkeep(run, celery)


FAULTS = [
    kill_workers,
    lose_the_index,
    lose_the_rows,
    stop_a_worker_and_kill_the_upkeep,
    deaths.kill_scheduler,
    clients.half_sent_requests,
    flows.workflows,
    detours.redis_gone_for_a_moment,
    failover.fail_over,
    clocks.valkey_clock_back,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault(arena, tmp_path, fault):
    print(f"seed {SEED}")
    with run_on(arena, tmp_path, seed=SEED, count=COUNT) as run:
        try:
            fault(run)
        except Skipped as reason:
            pytest.skip(str(reason))
        figures = run.finish()
        assert figures.faults == []
        if fault in (kill_workers, lose_the_index):
            begun = [line for line in lines(run.log) if line.startswith("+")]
            again = Task.objects.filter(attempt__gt=1).count()
            assert len(repeated(begun)) <= again, "only what a dead worker held ran again"
            assert not Task.objects.exclude(failures=0).exists(), "a death is not the task's failure"


def test_the_checker_sees_tasks_that_nobody_returns(arena, tmp_path):
    """Without a scheduler, what a dead worker held stays where it is: the checker must say so."""
    with run_on(arena, tmp_path, seed=SEED, count=COUNT) as run:
        uncapped()  # or what it holds could keep its neighbour from working
        one = alone(run)
        run.held_by(one, 4)  # in all its slots
        other = alone(run)
        # A worker that starts looks for dead neighbours, and would take over what this one held.
        until(lambda: " waits for tasks" in other.log, "both work")
        one.kill()
        run.load()

        until(lambda: run.ended() == COUNT, "the other one does the rest")
        assert len(run.judge().lost) == 4, "it died with something in hand"
        run.gate.touch()
        run.fleet.scheduler()
        assert run.finish().lost == []
        TaskResult.objects.filter(task_id=run.order[0][0]).update(value=0)  # no process has it
        assert len(run.judge().stale) == 1, "a result of another process than the one that had the lease"


def test_the_checker_sees_starts_that_a_rate_forbids():
    """Forty a second may start; three slots that nothing slows down start a hundred."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    allowed = [began + timedelta(seconds=number / edits.RATE) for number in range(200)]
    assert edits.over_rate(allowed, edits.RATE, edits.BURST + edits.IN_HAND) == []
    forgotten = [allowed[-1] + timedelta(seconds=number / 100) for number in range(60)]
    assert edits.over_rate(allowed + forgotten, edits.RATE, edits.BURST + edits.IN_HAND)
