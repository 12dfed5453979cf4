"""Limits and order hold at every event, however many processes claim at once."""

import random

import pytest

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.index import get_index
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker
from queue_app.registry import type_of
from queue_app.services.control.pause import pause, resume
from queue_app.services.enqueue.store import enqueue_many
from tests.integration.app import tasks
from tests.integration.checkers import lost_or_doubled, out_of_order, over_cap, repeated
from tests.integration.processes import index_comes_to_agree, lines
from tests.support.engine import put, put_many
from tests.support.index_clock import change_scripts
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.stage import StillWorker

pytestmark = pytest.mark.integration

CAP = 3
WORK, NOTE = type_of(tasks.work), type_of(tasks.note)


def claimers(fleet, together: int = 3, alone: tuple[int, ...] = (1, 2, 5, 8)) -> list:
    """Start eight worker processes with these slots: four under a supervisor, four by themselves."""
    supervised = fleet.worker("--processes", "4", "--concurrency", str(together))
    return [supervised, *(fleet.worker("--concurrency", str(slots)) for slots in alone)]


def all_done() -> bool:
    """Whether nothing is pending."""
    return not Task.objects.filter(status__in=["queued", "scheduled", "executing"]).exists()


def mixed(log: str, count: int, seed: int, **options) -> list[NewTask]:
    """Return short tasks of two types in all bands, in random order."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    made = []
    for number in range(count):
        kind, args = chance.choice([(WORK, [log, str(number), 0.001]), (NOTE, [log, f"+{number}"])])
        made.append(NewTask(task_type=kind, args=args, priority=chance.choice(list(Band)), **options))
    return made


def test_a_queues_cap_over_eight_claimers(fleet, history, log):
    Queue.objects.filter(pk="default").update(max_concurrent=CAP)
    Queue.objects.get(pk="default").save()
    wanted = mixed(log, 400, seed=20260101)
    pause("default")
    ids = [stored.id for stored in enqueue_many(wanted)]
    claimers(fleet, together=CAP - 1, alone=(1, 2, 2, 1))  # a worker with more slots could keep all that the cap allows
    until(lambda: Worker.objects.filter(status="active").count() == 8, "all workers are there")
    resume("default")
    until(all_done, "all tasks end")
    assert over_cap(history, CAP) == []
    assert history.most_executing() == CAP, "and the cap is used"
    assert lost_or_doubled(history, ids) == []
    assert repeated([line for line in lines(log) if line[0] == "+"]) == []
    order = sorted(range(len(ids)), key=lambda number: (wanted[number].priority, number))
    assert out_of_order(history, [ids[number] for number in order], CAP) == []
    assert Task.objects.values("worker_id").distinct().count() > 1, "more than one worker had a share"
    until(lambda: not get_index().depth("default").active, "every slot is free again")
    index_comes_to_agree()


def test_a_cap_over_all_queues(fleet, history, log):
    settings = RuntimeSettings.objects.get()
    settings.max_concurrent = CAP
    settings.save()
    ids = []
    for name in ("red", "green", "blue"):
        ids += [stored.id for stored in enqueue_many(mixed(log, 70, seed=len(name), queue=name))]
    claimers(fleet)
    until(all_done, "all tasks end")
    assert over_cap(history, CAP) == []
    assert lost_or_doubled(history, ids) == []
    index_comes_to_agree()


def in_process(history) -> None:
    """Let two workers claim as much as they may, and finish it."""
    put_many(20, type_of(chores.quick))
    workers = [StillWorker(concurrency=5) for _ in range(2)]
    for _ in range(8):
        for worker in workers:
            worker.wake()
            worker.run_once()
        for worker in workers:
            worker.pool.finish()


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_checkers_see_a_script_that_forgets_the_cap(engine, history, monkeypatch, is_broken):
    Queue.objects.filter(pk="default").update(max_concurrent=CAP)
    Queue.objects.get(pk="default").save()
    if is_broken:
        check = "policy.cap and redis.call('ZCARD', queue_leases_key(q)) - (exchanged['q:' .. q] or 0) or 0"
        change_scripts(get_index(), check, "0", monkeypatch)
    in_process(history)
    assert bool(over_cap(history, CAP)) is is_broken


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_checkers_see_a_claim_that_ignores_the_order(engine, history, monkeypatch, is_broken):
    ids = put_many(20, type_of(chores.quick))
    if is_broken:
        ordered = "redis.call('ZRANGE', lane_key(lane.lane), lane.read, lane.read + lane.chunk - 1, 'WITHSCORES')"
        change_scripts(get_index(), ordered, ordered.replace("'ZRANGE'", "'ZREVRANGE'"), monkeypatch)
    StillWorker(concurrency=2, look_ahead_ms=0).until_empty()  # rows of one claim may be written in any order
    assert bool(out_of_order(history, ids, 2)) is is_broken


def test_caps_by_type_and_key_hold_over_eight_claimers_while_staff_edit_limits(fleet, history, log):
    """A hundred edits of other limits meanwhile, and of these caps up to what is asked here."""
    Limit.objects.create(scope="type", name=WORK, max_concurrent=2)
    family = Limit.objects.create(scope="key", name="customer", max_concurrent=1)
    overall = RuntimeSettings.objects.get()
    keys = {key: set() for key in ("customer:1", "customer:2", "customer:3", "")}
    ids = []
    for number in range(240):
        key = list(keys)[number % 4]
        wanted = NewTask(
            task_type=WORK if number % 3 else NOTE,
            args=[log, str(number), 0.002] if number % 3 else [log, f"+{number}"],
            concurrency_key=key,
            user=f"user{number % 5}",
            weight=1 + number % 2,
        )
        ids.append(enqueue_many([wanted])[0].id)
        keys[key].add(ids[-1])
    works = set(Task.objects.filter(task_type=WORK).values_list("id", flat=True))
    claimers(fleet)
    for edit in range(100):
        Limit.objects.get(scope="type").save()
        family.min_delay_seconds = None if edit % 2 else 0.001
        family.save()
        Limit.objects.update_or_create(scope="key", name="customer:2", defaults={"max_concurrent": 1 + edit % 2})
        overall.max_concurrent = 3 + edit % 4
        overall.save()
    until(all_done, "all tasks end")
    assert over_cap(history, 2, of=works) == []
    assert over_cap(history, 1, of=keys["customer:1"]) == over_cap(history, 1, of=keys["customer:3"]) == []
    assert over_cap(history, 2, of=keys["customer:2"]) == []
    assert over_cap(history, 6) == []
    assert lost_or_doubled(history, ids) == []
    until(lambda: not get_index().depth("default").active, "every slot is free again")
    index_comes_to_agree()


# -- rates -----------------------------------------------------------------------------------------------------------


TASKS = 9
EACH = 0.2
#: By so much the clocks of the two servers may be read apart.
CLOCKS = 0.001


def test_no_more_start_than_a_rate_says_and_a_burst_stays_for_all(fleet, log):
    """Five a second, one at a time: the k-th start after one comes at least k - 1 intervals later.

    That holds for one worker whatever the machine does: a row may be late by any time, but then the next claim
    comes after it. A claim that forgot the rate would start them all at once.
    """
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.rate_count, queue.rate_seconds, queue.rate_burst = 5, 5 * EACH, 1
    queue.save()
    for number in range(TASKS):
        put(type_of(tasks.note), args=[log, f"+{number}"])
    assert fleet.worker("--burst", "--concurrency", "4").exit_code() == 0
    done = Task.objects.filter(status="completed")
    starts = sorted(at.timestamp() for at in done.values_list("started_at", flat=True))
    assert len(starts) == TASKS
    too_early = [
        (first, last)
        for first in range(TASKS)
        for last in range(first + 2, TASKS)
        if starts[last] - starts[first] < (last - first - 1) * EACH - CLOCKS
    ]
    assert too_early == []
