"""The index in PostgreSQL: it forgets everything in a crash, may lack lanes, and is built again from the rows."""

import inspect

import pytest
from django.db import connection
from django.test import override_settings

from queue_app import conf
from queue_app.core.records import TaskRef
from queue_app.diagnose.explain import explain
from queue_app.exceptions import IndexNotReady, IndexUnavailable
from queue_app.index import Index, get_index
from queue_app.models import Limit, Task
from queue_app.rows import lanes
from queue_app.rows.index import RowsIndex
from queue_app.rows.look import COUNTED
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.notify.index import notify_index
from queue_app.services.repair.rebuild import is_needed, rebuild_until_open
from queue_app.services.repair.reconcile import Reconciler, push_missing
from queue_app.sql import snapshot
from tests.support.engine import done, open_transaction, put, put_many, row, take, take_ids

#: Methods of the index in Redis that nothing calls where there is none.
OF_REDIS = {
    "audit", "begin_generation", "finish_generation", "incomplete_leases", "leased_queues", "leases", "load_until",
    "look_through", "open_generation", "profiles", "registered", "set_limits", "wrong_types",
}  # fmt: skip


@pytest.fixture
def index_way() -> str:
    """Only this way."""
    return conf.ROWS


def execute(*statements):
    with connection.cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


def forget_lanes():
    execute("DELETE FROM queue_app_rows_lane")


def test_every_method_of_the_index_has_its_form_in_postgresql():
    methods = {name for name, _ in inspect.getmembers(Index, callable) if not name.startswith("_")}
    assert methods - vars(RowsIndex).keys() == OF_REDIS


def test_notifications_reach_the_index_in_force(engine):
    task = put()
    forget_lanes()
    assert notify_index(Index.push, "push", [TaskRef.of(row(task))]) == 1
    assert take_ids(engine.worker()) == [task]


def test_after_a_crash_of_postgresql_the_tables_are_filled_again(engine):
    hand = engine.worker()
    Limit.objects.create(scope="type", name="a", max_concurrent=2)
    ids = put_many(3)
    (running,) = take(hand)
    execute(*(f"TRUNCATE queue_app_rows_{name}" for name in ("state", "lane", "gate", "turn", "lock", "counter")))
    assert get_index().generation().state == "missing"
    with pytest.raises(IndexNotReady):
        take(hand)
    assert is_needed()
    assert rebuild_until_open()
    assert take_ids(hand, 5) == ids[1:2], "the running task holds a slot"
    finish([done(running)])
    assert take_ids(hand, 5) == ids[2:]


def test_a_new_generation_refuses_claims_until_it_is_built(engine):
    hand, task = engine.worker(), put()
    snapshot.raise_generation(rows_because="")
    with pytest.raises(IndexNotReady):
        take(hand)
    assert rebuild_until_open()
    assert take_ids(hand) == [task]


def test_a_rebuild_that_another_one_overtakes_builds_nothing(engine):
    number = snapshot.raise_generation(rows_because="")
    snapshot.raise_generation(rows_because="")
    assert not lanes.build(number)
    assert is_needed()


def test_the_reconciler_finds_lanes_that_no_push_has_named(engine):
    hand = engine.worker()
    tasks = [put(), put(priority="high"), put(concurrency_key="k")]
    put_many(3)
    forget_lanes()
    assert take_ids(hand, 9) == []
    assert Reconciler().run_once() == {"missing": 3}
    assert Reconciler().run_once() == {"missing": 0}
    assert set(tasks) < set(take_ids(hand, 9))


def test_a_worker_finds_lost_lanes_before_its_burst_ends(engine):
    put_many(2)
    forget_lanes()
    assert push_missing() == 1
    assert len(take_ids(engine.worker(), 9)) == 2


def test_a_locked_row_is_passed_over(engine):
    hand = engine.worker()
    locked, other = put(), put()
    with open_transaction(lambda: Task.objects.select_for_update().get(pk=locked)):
        assert take_ids(hand, 2) == [other]
    assert take_ids(hand, 2) == [locked]


def test_a_position_far_behind_is_not_counted(engine):
    ids = put_many(COUNTED + 1)
    index = get_index()
    assert index.position(TaskRef.of(row(ids[COUNTED - 1]))) == COUNTED
    assert index.position(TaskRef.of(row(ids[COUNTED]))) is None


def test_a_full_gate_is_explained_with_those_that_hold_it(engine):
    Limit.objects.create(scope="key", name="k", max_concurrent=1)
    first, second = put_many(2, concurrency_key="k:1")
    take(engine.worker())
    (gate,) = [gate for gate in get_index().explain(TaskRef.of(row(second))).gates if gate.is_closed]
    assert (gate.scope, gate.name, gate.used, gate.cap, gate.holders) == ("key", "k:1", 1, 1, (first,))
    assert "limit_reached" in {reason.code for reason in explain(second).reasons}


def test_streams_are_refused_with_the_reason(engine):
    for ask in (lambda: events.read("0-0"), events.last_id, lambda: get_index().requests):
        with pytest.raises(IndexUnavailable, match="a stream in Redis, which this project does not use"):
            ask()


@pytest.mark.parametrize(
    ("backend", "asked", "way"),
    [
        ("django_redis.cache.RedisCache", {}, conf.REDIS),
        ("django_redis.cache.RedisCache", {"INDEX": "rows"}, conf.ROWS),
        ("django.core.cache.backends.locmem.LocMemCache", {}, conf.ROWS),
        ("django.core.cache.backends.locmem.LocMemCache", {"INDEX": "redis"}, conf.REDIS),
        ("no.such.Cache", {}, conf.ROWS),
    ],
)
def test_the_cache_decides_where_the_project_does_not(backend, asked, way):
    with override_settings(CACHES={"default": {"BACKEND": backend}}, TASKQUEUE=asked):
        assert conf.get().index == way
