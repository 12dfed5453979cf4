"""Adaptive limits when all around them goes wrong: probes, clocks, kills, edits, names."""

import threading
import time
from contextlib import suppress

import pytest
from django.db import IntegrityError
from django.test import override_settings

from queue_app.adaptive import adapt, probes, sql as rows
from queue_app.adaptive.adapt import adapt_limits
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Limit, LimitStep, Queue
from queue_app.services.control.queues import apply
from queue_app.sql.stats import active
from tests.queue_app.adaptive.test_adapt import adaptive, again, ended, later
from tests.support.engine import assert_index_agrees, at_once, put_many, take

ANSWER = {"load": 0.5}
FREE = threading.Event()


def answer() -> object:
    found = ANSWER["load"]
    if isinstance(found, type) and issubclass(found, BaseException):
        raise found
    return found


def hangs() -> float:
    FREE.wait(30)
    return 1.5


PROBES = {"PROBES": {"answer": f"{__name__}.answer", "hangs": f"{__name__}.hangs"}}


@pytest.fixture(autouse=True)
def _fresh():
    probes._questions.clear()
    probes._warned.clear()
    FREE.clear()
    yield
    FREE.set()


def newest(gate: str = "q:default") -> LimitStep:
    return LimitStep.objects.filter(gate=gate).order_by("-at", "-id")[0]


# -- probes ----------------------------------------------------------------------


@pytest.mark.parametrize("load", [float("nan"), float("inf"), -1, None, "full", 10**400, ValueError, SystemExit,
                                  KeyboardInterrupt])  # fmt: skip
def test_a_probe_that_makes_no_sense_does_not_count_and_staff_see_it(engine, caplog, load):
    with override_settings(TASKQUEUE=PROBES):
        adaptive(min_concurrent=10, probe="answer")
        Queue.objects.update(min_concurrent=2)
        ANSWER["load"] = load
        assert again() == 0, "the value stays, and the scheduler lives"
        assert again() == 0
    assert newest().value == 10
    assert "The probe answer does not count" in newest().reason
    warnings = [record for record in caplog.records if "probe answer" in record.message]
    assert len(warnings) == 1, "once a minute, not at each step"


def test_a_probe_with_an_enormous_load_lowers_the_limit_and_is_readable(engine):
    with override_settings(TASKQUEUE=PROBES):
        adaptive(min_concurrent=10, probe="answer")
        Queue.objects.update(min_concurrent=2)
        ANSWER["load"] = 1e308
        assert again() == 1
    assert newest().reason == "Falling. The probe reports 1e+308 of a full load."


def test_a_probe_that_hangs_holds_neither_the_scheduler_nor_other_limits_up(engine):
    with override_settings(TASKQUEUE=PROBES):
        ANSWER["load"] = 1.5
        adaptive(min_concurrent=10, probe="hangs")
        adaptive(name="other", min_concurrent=10, probe="answer")
        Queue.objects.update(min_concurrent=2)
        began = time.monotonic()
        assert again() == 1, "the other limit"
        assert again() == 1
        assert time.monotonic() - began < 5
        assert (newest().value, newest("q:other").value) == (10, 8)
        time.sleep(max(0.0, 1.1 - (time.monotonic() - began)))
        again()
        assert "The probe hangs does not count" in newest().reason
        FREE.set()
        probes._questions["hangs"].join(10)
        assert again() >= 1, "once it answers, its answer counts again"
    assert newest().cause == "probe"


def test_a_slow_probe_counts_a_step_later(engine, override):
    override(probes, PATIENCE=0.0)
    with override_settings(TASKQUEUE=PROBES):
        FREE.set()
        probes.load_of("hangs")
        probes._questions["hangs"].join(10)
        FREE.clear()
        assert probes.load_of("hangs") == (1.5, "")


# -- clocks and kills ------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-3600, -30, 3600, 86_400])
def test_a_clock_that_steps_does_not_stop_the_limit(engine, seconds):
    """It stays where it is for a moment, and then goes on, also while the baseline is measured at a quarter."""
    take_all = engine.worker("a")
    put_many(40)
    adaptive(min_concurrent=8)
    Queue.objects.update(min_concurrent=1)
    one = newest()
    state = one.state | {"limit": 2.0, "resume": 8.0, "cause": "baseline"}
    LimitStep.objects.update(state=state, value=2)
    Queue.objects.update(current_concurrent=2)
    later(3 + seconds)  # the step lies in the future of a clock that was set back
    assert len(take(take_all, 40)) == 8, "the index knows only what a step wrote"
    ended(20, 0.2)
    for _ in range(3):
        adapt_limits()
        later(3)
        ended(20, 0.2)
    assert newest().value >= 8, newest().reason
    assert newest().stepped_at <= rows.fetch_value("SELECT clock_timestamp()")
    assert not LimitStep.objects.filter(at__gt=newest().at).exists()


@pytest.mark.parametrize("place", ["rows.activity", "_record", "_copy", "_publish"])
def test_a_scheduler_that_dies_within_a_step_leaves_all_or_nothing(engine, monkeypatch, place):
    put_many(40)
    hand = engine.worker("a")
    adaptive()
    take(hand, 2)
    later(10)
    ended(20, 0.2)
    owner = adapt if "." not in place else rows
    original = getattr(owner, place.rpartition(".")[2])

    def dies(*args, **kwargs):
        original(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, place.rpartition(".")[2], dies)
        with pytest.raises(KeyboardInterrupt):
            adapt_limits()
    assert (newest().value, Queue.objects.get().cap, LimitStep.objects.count()) == (2, 2, 1)
    assert adapt_limits() == 1, "the next scheduler takes the same step"
    assert (newest().value, Queue.objects.get().cap) == (4, 4)
    assert len(take(hand, 40)) == 2
    assert_index_agrees()


def test_a_limit_whose_history_was_purged_goes_on_with_its_value(engine):
    adaptive(min_concurrent=9)
    Queue.objects.update(min_concurrent=1)
    LimitStep.objects.all().delete()
    adapt_limits()
    assert (newest().value, newest().reason) == (9, "It continues with its last value.")


# -- edits -----------------------------------------------------------------------


def test_a_limit_that_is_deleted_or_fixed_while_it_steps_leaves_no_step(engine, monkeypatch):
    for number in range(6):
        Limit.objects.create(scope="type", name=f"shop.{number}", adaptive="gradient2", max_concurrent=9)
    activity = rows.activity
    meeting = threading.Barrier(2)

    def activity_late(*args, **kwargs):
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=1)
        return activity(*args, **kwargs)

    def edit():
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=5)
        Limit.objects.filter(name__in=["shop.1", "shop.3"]).delete()
        Limit.objects.filter(name="shop.4").update(adaptive="", max_concurrent=4)

    monkeypatch.setattr(rows, "activity", activity_late)
    at_once([adapt_limits, edit])
    again()
    names = {f"t:{name}" for name in Limit.objects.exclude(adaptive="").values_list("name", flat=True)}
    assert names == {"t:shop.0", "t:shop.2", "t:shop.5"}
    since = newest("t:shop.0").stepped_at
    assert set(LimitStep.objects.filter(stepped_at__gte=since).values_list("gate", flat=True)) <= names
    assert Limit.objects.get(name="shop.4").cap == 4


def test_bounds_that_cross_are_refused_on_each_way_in(engine):
    adaptive()
    with pytest.raises(InvalidTaskData, match="The least"):
        apply({"queue:default": {"min_concurrent": 41}}, by="ada", via="test", reason="")
    with pytest.raises(IntegrityError):
        Queue.objects.update(min_concurrent=41)


def test_none_makes_a_limit_fixed(engine):
    adaptive(probe="cpu", varies_by="pages")
    empty = {"adaptive": None, "probe": None, "varies_by": None, "min_concurrent": None}
    apply({"queue:default": empty}, by="ada", via="test", reason="")
    queue = Queue.objects.get()
    assert (queue.adaptive, queue.probe, queue.varies_by, queue.cap) == ("", "", "", 40)


# -- names -----------------------------------------------------------------------


def test_the_tasks_of_a_renamed_type_leave_the_limit_of_its_old_name_still(engine):
    put_many(20)
    limit = adaptive("type", "a")
    take(engine.worker("a"), 2)
    Limit.objects.filter(pk=limit.pk).update(name="renamed")
    ended(20, 0.2, task_type="renamed")
    assert adapt_limits() == 0
    assert again() == 0
    assert newest("t:renamed").cause in {"few", "room", ""}
    assert newest("t:renamed").value == 2, "it goes on with its value, and judges by the tasks of its new name"


def test_a_family_is_not_full_because_of_a_key_with_a_limit_of_its_own(engine):
    Limit.objects.create(scope="key", name="api:7", max_concurrent=10)
    put_many(10, concurrency_key="api:7")
    put_many(1, concurrency_key="api:1")
    adaptive("key", "api")
    take(engine.worker("a"), 40)
    ended(20, 0.2, concurrency_key="api:1")
    assert again() == 0
    assert (newest("k:api").running, newest("k:api").cause) == (1, "room")


def test_a_limit_of_one_key_counts_no_longer_keys(engine):
    adaptive("key", "api:1")
    put_many(5, concurrency_key="api:1:old")
    take(engine.worker("a"), 40)
    again()
    assert newest("k:api:1").running == 0


def test_a_family_of_very_many_keys_is_one_look(engine, django_assert_max_num_queries):
    adaptive("key", "api")
    for number in range(300):
        put_many(1, concurrency_key=f"api:{number}")
    assert len(take(engine.worker("a"), 300)) == 300
    assert sum(each.tasks for each in active()) == 300
    later(3)
    with django_assert_max_num_queries(25):
        adapt_limits()
    assert newest("k:api").running == 1
