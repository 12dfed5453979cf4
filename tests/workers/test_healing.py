"""The index heals from any content: every kind of key, damaged in every manner, without a command."""

import os
import time
from collections import Counter

import pytest

from queue_app.core.limits import SEPARATOR
from queue_app.core.states import TERMINAL, Status
from queue_app.index.keys import KINDS
from queue_app.models import Limit, Queue, RuntimeSettings, Task
from queue_app.services.notify.index import breaker
from tests.support.damage import MANNERS, by_kind, dump, inflict, restore
from tests.support.engine import assert_index_agrees, put, put_many, redis_client
from tests.support.waiting import until
from tests.workers.stage import ECHO, QUICK, SLOW, StillWorker, tick

#: Steps of the reconciler within which the index is whole again; one comes every 5 s.
STEPS = 3
#: Kinds of keys of which nothing is left when no task waits or runs.
SLOTS = {"lane:", "lanes:", "leases", "leases:", "held:"}
CAPS = {"default": 3, "shared": 4, "": 10}


class Floor:
    """Workers, a scheduler, and tasks under limits of every kind."""

    def __init__(self, engine, hire, make) -> None:
        self.index = engine.index
        Queue.objects.filter(pk="default").update(max_concurrent=CAPS["default"])
        Queue.objects.create(
            name="shared", order="fair", fair_by="user", fair_weights={"ada": 2}, max_concurrent=CAPS["shared"],
            max_concurrent_per_user=2,
        )  # fmt: skip
        Queue.objects.create(name="paced", rate_count=20, rate_seconds=1, rate_burst=1)
        Limit.objects.create(scope="type", name=SLOW, max_concurrent=2)
        Limit.objects.create(scope="type", name=ECHO, max_concurrent=2)
        Limit.objects.create(scope="key", name="account", max_concurrent=1)
        settings = RuntimeSettings.objects.get()
        settings.max_concurrent = CAPS[""]
        settings.save()
        self.scheduler = make()
        tick(self.scheduler)
        self.workers = [
            hire(concurrency=4, queues=("default", "shared"), look_ahead_ms=0),
            hire(concurrency=2, queues=("default", "shared"), look_ahead_ms=0),
        ]
        others = ("paced", "heavy", "still", "still")
        self.workers += [hire(concurrency=3, queues=(queue,), look_ahead_ms=0) for queue in others]
        self.load()
        self.work(finish=0)
        self.old = dump(self.index, self.keys())
        self.work(finish=1)
        tick(self.scheduler, "requests")
        self.work(finish=1)
        self.load()
        self.work(finish=0)
        self.index.count_calls("caller", 1, 60)
        self.index.lock("other", "another process", 60)
        self.index.notify_workers(worker.id for worker in self.workers)
        put(QUICK, queue="still")
        # left behind by a rebuild that was copied while it loaded
        redis_client().hset(f"{self.index.keys.prefix}:loading", f"default{SEPARATOR}2", -1)
        for _ in range(20):  # the wait for a rate is over in 50 ms
            self.found = by_kind(self.index)
            if self.found.keys() == KINDS.keys():
                break
            put(QUICK, queue="paced")
            self.work(workers=self.workers[2:3])

    def keys(self) -> list[bytes]:
        """Return all keys of the index."""
        return [key for keys in by_kind(self.index).values() for key in keys]

    def load(self) -> None:
        put_many(4, QUICK)
        put_many(3, SLOW, priority="high")
        put_many(3, QUICK, concurrency_key="account:7", priority="low")
        for user in ("ada", "bob"):
            put_many(3, QUICK, queue="shared", user=user)
            put(ECHO, queue="shared", user=user, priority="low", args=[1])
        put_many(2, QUICK, queue="paced")
        put_many(1, QUICK, queue="heavy")
        put_many(1, QUICK, queue="heavy", weight=3, priority="low")
        for fields in ({"event": "ExecutionRequested"}, {"junk": "1"}):
            redis_client().xadd(self.index.keys.requests, fields)

    def work(self, finish: int | None = None, workers: list[StillWorker] | None = None) -> None:
        """Let each worker end some tasks and claim."""
        for worker in self.workers if workers is None else workers:
            worker.later(60)
            worker.pool.finish(finish)
            worker.turn()

    def running(self) -> Counter[str]:
        found = Counter(Task.objects.filter(status=Status.EXECUTING).values_list("queue", flat=True))
        found[""] = found.total()
        return found

    def over_caps(self) -> list[str]:
        running = self.running()
        return [f"{running[name]} run in {name!r}" for name, cap in CAPS.items() if running[name] > cap]


@pytest.fixture
def floor(engine, hire, make, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}
    return Floor(engine, hire, make)


def test_every_kind_of_key_is_there(floor):
    assert set(floor.found) == set(KINDS), set(KINDS) - set(floor.found)


def heal(floor) -> None:
    """Let the time pass in which the index must have healed: three steps of the reconciler, with work in between."""
    for _ in range(STEPS):
        floor.work(finish=0)
        breaker.reset()
        floor.scheduler.ask_again()
        floor.scheduler.renew_next()
        tick(floor.scheduler)
        tick(floor.scheduler, "rebuild")
    assert floor.scheduler.leads


def finish_all(floor) -> None:
    """Work until all tasks have ended, without any repair."""
    left = Task.objects.exclude(status__in=TERMINAL)

    def turn() -> bool:
        assert floor.over_caps() == []
        floor.work()
        return not left.exists()

    until(turn, "every task ends")
    floor.work()
    for worker in floor.workers:
        worker.run_once()


EVERY_MANNER = (*MANNERS, "an old copy")
CASES = [(kind, manner) for kind in KINDS for manner in EVERY_MANNER]
#: With HEALING=all every case (three minutes); else each kind once and each manner several times.
SOME = [(kind, EVERY_MANNER[at % len(EVERY_MANNER)]) for at, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("kind", "manner"), CASES if os.environ.get("HEALING") == "all" else SOME)
def test_a_damaged_key(floor, kind, manner):
    inflict(floor.index, manner, floor.found[kind], floor.old)
    heal(floor)
    finish_all(floor)
    floor.load()  # and it goes on as before
    finish_all(floor)
    assert by_kind(floor.index).keys() & SLOTS == set(), "no task waits and no slot is taken"
    if kind in {"settings", "queue:", "limit:", "limits", "limited", "weights:"}:
        assert_index_agrees()  # limits are copied again, down to each field
    assert floor.index.wrong_types(floor.keys()) == []


def test_an_old_copy_of_the_whole_index(floor):
    redis_client().delete(*floor.keys())
    restore(floor.index, floor.old)
    heal(floor)
    finish_all(floor)
    floor.load()  # and it goes on as before
    finish_all(floor)
    assert by_kind(floor.index).keys() & SLOTS == set()


@pytest.mark.parametrize("field", ["number", "run_id", "state", "stamp", "behind", "short"])
def test_a_value_of_the_generation(floor, field):
    for value in (b"\xff junk", b"9" * 30, b"1e300"):
        floor.load()
        floor.work(finish=0)
        redis_client().hset(floor.index.keys.generation, field, value)
        heal(floor)
        finish_all(floor)
        assert by_kind(floor.index).keys() & SLOTS == set(), value
        assert floor.index.now() < (time.time() + 60) * 1e6, value
