"""Servers that forget and processes that die, in the middle of a run."""

import os
import signal
from pathlib import Path

import pytest
from django_redis import get_redis_connection

from queue_app.core.states import TERMINAL
from queue_app.index import get_index
from queue_app.models import Queue, Task, Worker
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild
from taskqueue_project.embedded import EmbeddedServers
from tests.integration.app import tasks
from tests.integration.checkers import lost_or_doubled, over_cap, repeated
from tests.integration.processes import eventually, index_comes_to_agree, lines
from tests.support.engine import new, put, put_many

pytestmark = pytest.mark.integration

WORK = type_of(tasks.work)


def ended() -> int:
    """How many tasks have ended."""
    return Task.objects.filter(status__in=TERMINAL).count()


@pytest.fixture
def own_redis(fleet, settings, tmp_path_factory):
    """A server that this test alone uses, and may flush, by an alias of its own: connections are kept by alias."""
    folder = Path(tmp_path_factory.mktemp("own"))
    servers, alias = EmbeddedServers(folder, only=["valkey"], throwaway=True), folder.name
    servers.start()
    try:
        settings.CACHES = {**settings.CACHES, alias: {**settings.CACHES["default"], "LOCATION": servers.redis_url}}
        settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": alias}
        fleet.env["REDIS_URL"] = servers.redis_url
        assert rebuild() is not None
        client = get_redis_connection(alias)
        yield client
        client.connection_pool.disconnect()
    finally:
        servers.stop()


def test_an_index_that_is_flushed_again_and_again(fleet, own_redis, history, log):
    cap, flushes = 4, 0
    Queue.objects.filter(pk="default").update(max_concurrent=cap)
    Queue.objects.get(pk="default").save()
    ids = [task_id for part in range(15) for task_id in put_many(100, WORK, args=[log, str(part), 0.004])]
    fleet.scheduler()
    for _ in range(2):
        fleet.worker("--concurrency", "4")
    for done in range(150, 1500, 150):
        eventually(lambda least=done: ended() >= least, f"{done} tasks have ended")
        own_redis.flushall()
        flushes += 1
    eventually(lambda: ended() == len(ids), "all tasks end")
    assert flushes == 9
    assert lost_or_doubled(history, ids) == []
    assert over_cap(history, cap) == []
    assert len(lines(log)) == 2 * len(ids), "nothing ran twice either"
    eventually(lambda: get_index().depth("default").active == 0, "no lease is left")
    eventually(lambda: get_index().generation().state == "ready", "the index is ready again")
    index_comes_to_agree()


def test_workers_that_are_killed(fleet, history, log):
    """One that a supervisor replaces, and one whose tasks wait for the reaper."""
    fleet.scheduler()
    supervised = fleet.worker("--processes", "2", "--concurrency", "3", heartbeat=5)
    alone = fleet.worker("--concurrency", "3", heartbeat=5)
    eventually(lambda: Worker.objects.filter(status="active").count() == 3, "all have started")
    found = enqueue_many(new(WORK, args=[log, str(number), 0.03]) for number in range(200))
    ids = [stored.id for stored in found]
    eventually(lambda: ended() >= 20, "some tasks have ended")
    os.kill(supervised.children()[0], signal.SIGKILL)
    eventually(lambda: ended() >= 80, "more tasks have ended")
    alone.kill()
    fleet.worker("--concurrency", "3", heartbeat=5)
    eventually(lambda: ended() == len(ids), "all tasks end")
    assert lost_or_doubled(history, ids) == []
    again = Task.objects.filter(attempt__gt=1).count()
    begun = [line for line in lines(log) if line[0] == "+"]
    assert len(repeated(begun)) <= again, "only what a dead worker held ran again"
    assert not Task.objects.exclude(failures=0).exists(), "a death is not the task's failure"
    eventually(lambda: not get_index().depth("default").active, "no lease is left")
    index_comes_to_agree()


def test_a_task_that_kills_its_worker(fleet, history, log):
    """Its neighbours do not suffer, and it gets another try."""
    others = [put(WORK, args=[log, f"n{number}", 0.01]) for number in range(20)]
    killer = put(type_of(tasks.die_once), args=[log, "boom"])
    fleet.worker("--processes", "2", "--concurrency", "2")
    eventually(lambda: ended() == 21, "all tasks end")
    assert lost_or_doubled(history, [killer, *others]) == []
    assert lines(log).count("boom") == 2
    assert Task.objects.get(pk=killer).failures == 0
