"""Steps of adaptive limits: measured from the rows, written as a row with its reason, in force from the next claim."""

import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.test import override_settings
from django.utils import timezone

from queue_app.adaptive import adapt, sql as rows
from queue_app.adaptive.adapt import adapt_limits
from queue_app.adaptive.diagnose import check_adaptive_limits
from queue_app.core.limits import FORMER_ALGORITHMS as FORMER
from queue_app.core.reasons import Level
from queue_app.core.records import Outcome, TaskRef, Throttling
from queue_app.diagnose.explain import explain
from queue_app.index import get_index
from queue_app.models import Limit, LimitStep, Queue, RuntimeSettings, Task
from queue_app.services.control.queues import edit_queue, version_of
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.read.stats import autoscale
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.services.upkeep.maintenance import purge
from queue_app.sql import doctor, snapshot
from queue_app.sql.database import fetch_value
from tests.support.engine import assert_index_agrees, at_once, done, failed, flush, index_away, put_many, take
from tests.support.factories import AttemptFactory, TaskFactory
from tests.support.findings import assert_finding
from tests.support.yard import Yard

LOADS = {"load": 0.0}


def load() -> float:
    return LOADS["load"]


def broken() -> float:
    raise ValueError("no such server")


PROBES = {"PROBES": {"load": f"{__name__}.load", "broken": f"{__name__}.broken"}}


def adaptive(scope: str = "queue", name: str = "default", **given):
    """Make a limit adaptive; the first step puts its least in force."""
    values = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 40} | given
    if scope == "everything":
        found, _ = RuntimeSettings.objects.update_or_create(pk=1, defaults=values)
    elif scope == "queue":
        found, _ = Queue.objects.update_or_create(name=name, defaults=values)
    else:
        found = Limit.objects.create(scope=scope, name=name, **values)
    adapt_limits()
    found.refresh_from_db()
    return found


def later(seconds: float = 3.0) -> None:
    """Let time pass for the limits: their last step lies further back."""
    for one in LimitStep.objects.all():
        ago = timedelta(seconds=seconds)
        state = one.state | {"changed_at": one.state["changed_at"] - seconds}
        LimitStep.objects.filter(pk=one.pk).update(at=one.at - ago, stepped_at=one.stepped_at - ago, state=state)


def ended(count: int, seconds: float, **fields) -> None:
    """Let tasks have run for some seconds each, all of them since the last change."""
    for number in range(count):
        at = timezone.now() - timedelta(milliseconds=number)
        task = TaskFactory(status="completed", created_at=at, **fields)
        type(task).objects.filter(pk=task.pk).update(started_at=at - timedelta(seconds=seconds), finished_at=at)


def again() -> int:
    later()
    return adapt_limits()


SCOPES = {
    "everything": ("everything", "", {}),
    "queue": ("queue", "default", {}),
    "type": ("type", "a", {}),
    "key": ("key", "api:1", {"concurrency_key": "api:1"}),
    "family": ("key", "api", {"concurrency_key": "api:1"}),
}


@pytest.mark.parametrize("case", SCOPES)
def test_it_begins_at_its_least_and_rises_while_it_is_full(engine, case):
    scope, name, options = SCOPES[case]
    hand = engine.worker("a b")
    put_many(30, **options)
    found = adaptive(scope, name)
    assert found.cap == 2
    first = take(hand, 40)
    assert len(first) == 2, "the index enforces it at once"
    later(10)
    ended(20, 0.2, **options)
    assert adapt_limits() == 1
    found.refresh_from_db()
    assert found.cap == 4
    assert len(take(hand, 40)) == 2
    step = LimitStep.objects.order_by("id").last()
    assert (step.value, step.running, step.cause) == (4, 2, "start")
    assert step.run_p50 == pytest.approx(0.2, abs=0.01)
    assert_index_agrees()


def test_what_runs_elsewhere_is_not_its_concern(engine):
    hand = engine.worker("a b")
    put_many(30)
    found = adaptive("type", "a")
    take(hand, 40)
    later(10)
    ended(20, 0.2, task_type="b")
    assert adapt_limits() == 0
    found.refresh_from_db()
    assert found.cap == 2
    assert LimitStep.objects.get(gate="t:a").cause == "few"


def test_long_run_times_lower_it_and_explain_says_so(engine):
    hand = engine.worker("a")
    ids = put_many(30)
    found = adaptive(min_concurrent=8)
    take(hand, 40)
    later(10)
    ended(20, 0.2)
    adapt_limits()
    LimitStep.objects.update(value=8)
    later(10)
    take(hand, 40)
    ended(60, 0.62)
    assert adapt_limits() == 1
    found.refresh_from_db()
    assert found.cap < 13
    text = next(reason.text for reason in explain(ids[-1]).reasons if reason.code == "limit_reached")
    assert "13 run. It adapts itself:" in text
    assert f"{found.cap} of at most 40 just now, since " in text
    assert "Run times are " in text


def test_the_doctor_says_what_adaptive_limits_do(engine):
    assert list(check_adaptive_limits()) == [], "without one it says nothing"
    adaptive("type", "a")
    assert_finding(check_adaptive_limits, Level.OK, "1 adapt themselves, now type:a 2")
    LimitStep.objects.update(cause="failures", reason="Held. 100% of the attempts failed.")
    assert_finding(check_adaptive_limits, Level.WARN, "type:a is at its least, 2. Held. 100% of the attempts failed.")
    later(120)
    assert_finding(check_adaptive_limits, Level.WARN, "type:a keeps its last value, 2: it was judged 2 min ago")


def test_a_throttle_lowers_it_once(engine):
    hand = engine.worker("a")
    put_many(30)
    found = adaptive(min_concurrent=10)
    Queue.objects.update(min_concurrent=2)
    tasks = take(hand, 40)
    now = timezone.now()
    finish([Outcome(tasks[0], now, now, throttle=Throttling("queue", 30))])
    assert again() == 1
    found.refresh_from_db()
    assert found.cap == 7
    assert LimitStep.objects.order_by("id").last().cause == "throttle"
    assert again() == 0, "it is the same throttle"


def test_failures_lower_it(engine):
    hand = engine.worker("a")
    put_many(30)
    adaptive(min_concurrent=10)
    Queue.objects.update(min_concurrent=2)
    finish([failed(task) for task in take(hand, 5)] + [done(task) for task in take(hand, 5)])
    assert again() == 1
    last = LimitStep.objects.order_by("id").last()
    assert (last.value, last.cause, last.failures) == (7, "failures", 5)
    AttemptFactory(task=TaskFactory(queue="other"))
    later(10)
    adapt_limits()
    assert LimitStep.objects.order_by("id").last().cause == "few", "failures count once, and those of others never"


def test_a_probe_lowers_it_and_one_that_fails_does_not(engine):
    with override_settings(TASKQUEUE=PROBES):
        adaptive(min_concurrent=10, probe="load")
        Queue.objects.update(min_concurrent=2)
        LOADS["load"] = 1.5
        assert again() == 1
        LOADS["load"] = float("nan")
        assert again() == 0
        Queue.objects.update(probe="broken")
        assert again() == 0
    assert LimitStep.objects.order_by("id").last().value == 9


def test_ready_made_probes_answer(engine):
    for name in ("cpu", "postgresql"):
        adaptive(name=name, probe=name)
        assert again() == 0
    assert LimitStep.objects.count() == 2


def test_a_second_scheduler_does_not_step_again(engine):
    put_many(5)
    adaptive()
    before = LimitStep.objects.values().get()
    assert adapt_limits() == 0
    assert LimitStep.objects.values().get() == before


def test_without_a_scheduler_the_last_value_stays(engine):
    adaptive()
    with index_away():
        Queue.objects.update(current_concurrent=5)
    assert snapshot.limits()["q:default"].max_concurrent == 5
    flush(engine)
    rebuild_if_needed()
    hand = engine.worker("a")
    put_many(30)
    assert len(take(hand, 40)) == 5


def test_staff_who_lower_the_most_or_fix_the_limit_are_obeyed_at_once(engine):
    hand = engine.worker("a")
    put_many(30)
    queue = adaptive(min_concurrent=10)
    assert queue.cap == 10
    queue.min_concurrent, queue.max_concurrent = 3, 4
    queue.save()
    assert queue.cap == 4
    assert len(take(hand, 40)) == 4
    queue.adaptive, queue.min_concurrent, queue.max_concurrent = "", None, 6
    queue.save()
    assert len(take(hand, 40)) == 2
    assert again() == 0, "a fixed limit has no steps"


def test_a_step_does_not_refuse_an_edit_of_staff(engine):
    queue = adaptive()
    version = version_of(queue)
    Queue.objects.update(current_concurrent=9)
    queue.refresh_from_db()
    assert version_of(queue) == version


def test_a_change_is_an_event(engine):
    before = get_index().last_event_id()
    adaptive()
    found, _ = events.read(before)
    [event] = [each for each in found if each.name == "LimitAdapted"]
    assert event.details["name"] == "default"
    assert event.details["to"] == "2"


def test_its_history_is_kept_for_a_while(engine):
    adaptive()
    purge()
    assert LimitStep.objects.count() == 1
    LimitStep.objects.update(stepped_at=timezone.now() - timedelta(days=9))
    purge()
    assert not LimitStep.objects.exists()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_concurrent": None}, "max_concurrent"),
        ({"min_concurrent": 41}, "min_concurrent"),
        ({"adaptive": "guess"}, "adaptive"),
        ({"probe": "no.such"}, "probe"),
    ],
)
def test_incomplete_adaptive_limits_are_refused(engine, given, field):
    values = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 40} | given
    with pytest.raises(ValidationError) as error:
        Limit(scope="type", name="a", **values).full_clean()
    assert field in error.value.message_dict


@pytest.mark.parametrize("former", FORMER)
def test_a_limit_with_the_name_of_a_former_algorithm_goes_on_with_the_present_one(engine, former):
    """Older code may have stored it, or store it now; whoever saves the row writes the name that both know."""
    limit = adaptive("type", "shop.export", adaptive=former)
    assert (limit.adaptive, limit.cap) == ("gradient2", 2)
    later(10)
    adapt_limits()
    assert LimitStep.objects.get().stepped_at > timezone.now() - timedelta(seconds=5)
    limit.full_clean()
    limit.save()
    assert fetch_value("SELECT adaptive FROM queue_app_limit") == "gradient2"


def test_a_parameter_tells_kinds_apart_and_its_values_are_not_kept(engine):
    hand = engine.worker("a")
    put_many(30)
    adaptive(varies_by="pages")
    take(hand, 40)
    later(10)
    ended(10, 0.2, payload__parameters={"pages": "secret-1"})
    ended(10, 5.0, payload__parameters={"pages": "secret-2"})
    adapt_limits()
    state = LimitStep.objects.order_by("id").last().state
    assert sorted(state["baselines"].values()) == pytest.approx([0.2, 5.0], abs=0.05)
    assert "secret" not in str(state)


# -- everything else sees the value in force ------------------------------------------


@pytest.mark.parametrize("case", ["everything", "queue", "type", "key"])
def test_the_watchdog_takes_the_value_in_force_for_the_limit(engine, case):
    """A task behind a full adaptive limit waits rightly, although the most is far away."""
    scope, name, options = SCOPES[case]
    yard = Yard()
    worker = yard.hire(slots=10)
    worker.holds = True
    adaptive(scope, name, max_concurrent=400)
    put_many(8, **options)
    worker.work()
    assert len(worker.held) == 2
    assert doctor.startable() == []
    yard.wait(60)
    assert yard.kinds == []


def test_autoscaling_asks_for_no_slot_that_the_value_forbids(engine):
    put_many(50)
    adaptive(min_concurrent=3)
    assert autoscale(Queue.objects.get(pk="default"), slots=1, seconds=1).desired_slots <= 3


def test_two_schedulers_and_an_edit_at_once_make_one_step(engine, monkeypatch):
    """The row is locked: whoever comes second finds the step done, and an edit and a step follow each other."""
    adaptive(min_concurrent=10)
    Queue.objects.update(min_concurrent=2)
    later(10)
    finish([failed(task) for task in _running(engine)])
    meeting, activity = threading.Barrier(2), rows.activity

    def activity_together(*args, **kwargs):
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.5)  # without the lock, both would be here at the same time
        return activity(*args, **kwargs)

    monkeypatch.setattr(rows, "activity", activity_together)
    at_once([adapt_limits, adapt_limits, lambda: edit_queue("default", {"max_concurrent": 8}, version=None, by="ada")])
    queue = Queue.objects.get(pk="default")
    assert queue.max_concurrent == 8
    assert LimitStep.objects.order_by("id")[0].value == 10
    assert LimitStep.objects.count() == 2, "one step, not two"
    assert get_index().explain(TaskRef.of(Task.objects.first())).gates[1].cap == queue.cap


def _running(engine) -> list:
    put_many(20)
    return take(engine.worker("a"), 10)


def test_a_call_is_bounded_and_the_next_one_goes_on(engine, override):
    for number in range(5):
        Limit.objects.create(scope="type", name=f"shop.{number}", adaptive="gradient2", max_concurrent=9)
    override(adapt, BUDGET_SECONDS=-1.0)
    found = [adapt_limits() for _ in range(5)]
    assert found == [1] * 5, "one limit a call, each another"
    assert LimitStep.objects.count() == 5
    assert set(Limit.objects.values_list("current_concurrent", flat=True)) == {1}
    Limit.objects.all().delete()
    assert adapt_limits() == 0
