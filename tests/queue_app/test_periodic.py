"""Periodic tasks: one task a tick, however often and by whomever it is enqueued."""

import logging
import signal
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.contrib.testing.worker import start_worker
from celery.signals import task_postrun
from django.tasks import task as django_task

from queue_app import celery_tasks, task
from queue_app.models import Task
from queue_app.periodic import enqueue_tick, tick, tick_key
from queue_app.registry import type_of
from queue_app.testing import freeze
from tests.support.engine import at_once
from tests.support.waiting import until

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@task(queue_name="reports", priority=-50)
def refresh(source: str = "all") -> str:
    return source


@pytest.mark.parametrize(
    ("every", "at", "expected"),
    [
        (60, NOON + timedelta(seconds=59.9), NOON),
        (60, NOON + timedelta(seconds=60), NOON + timedelta(minutes=1)),
        (timedelta(hours=24), NOON, NOON - timedelta(hours=12)),
        (3600, NOON.astimezone(tz=None) + timedelta(minutes=59), NOON),
        (1, NOON - timedelta(microseconds=1), NOON - timedelta(seconds=1)),
    ],
)
def test_a_tick_begins_at_a_multiple_of_its_interval(every, at, expected):
    assert tick(every, at) == expected
    assert tick_key("x", every, at) == f"x@{expected:%Y%m%dT%H%M%SZ}"


def test_a_long_name_is_shortened_and_still_its_own():
    keys = {tick_key(f"{'a' * 100}{number}", 60, NOON) for number in range(3)} | {tick_key("b" * 47, 60, NOON)}
    assert {len(key) for key in keys} == {64}
    assert len(keys) == 4
    assert "b" * 47 + "@" in "".join(keys)


def test_ticks_that_make_no_sense():
    with pytest.raises(ValueError, match="one second"):
        tick(0)
    with pytest.raises(ValueError, match="aware"):
        tick(60, NOON.replace(tzinfo=None))


def test_one_task_a_tick(engine):
    with freeze(NOON) as clock:
        first = enqueue_tick(refresh, every=60)
        clock.advance(59)
        assert enqueue_tick(refresh, every=60).id == first.id
        clock.advance(1)
        assert enqueue_tick(refresh, every=60).id != first.id
    assert enqueue_tick(refresh, "all", every=60, at=NOON + timedelta(hours=1)).args == ["all"]
    assert Task.objects.count() == 3


def test_many_at_once_enqueue_one(engine):
    results = at_once([lambda: enqueue_tick(refresh, every=60, at=NOON)] * 6)
    assert len({result.id for result in results}) == 1
    assert Task.objects.count() == 1


def test_tasks_of_other_backends_have_no_keys(settings):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    with pytest.raises(TypeError, match="TaskQueueBackend"):
        enqueue_tick(django_task(refresh.func), every=60)


@pytest.fixture
def celery_app(tmp_path):
    """A Celery with a broker in memory, and the entry that the guide shows."""
    app = Celery("ticks", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {
        "refresh": {
            "task": "queue_app.submit",
            "schedule": 60.0,
            "args": [type_of(refresh)],
            "kwargs": {"every": 60, "parameters": {"source": "beat"}},
        }
    }
    app.conf.beat_schedule_filename = str(tmp_path / "beat")
    app.conf.broker_transport_options = {"polling_interval": 0.02}
    app.conf.worker_hijack_root_logger = False
    app.set_current()
    yield app
    app.close()


@pytest.fixture
def left_as_before():
    """A Celery worker takes the process for its own: its root logger, and signals."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    numbers = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
    actions = {number: signal.getsignal(number) for number in numbers}
    yield
    root.setLevel(level)
    root.handlers = handlers
    for number, action in actions.items():
        if action is not None and signal.getsignal(number) != action:
            signal.signal(number, action)


@pytest.mark.usefixtures("left_as_before")
def test_two_beats_and_a_late_repeated_delivery_make_one_task_a_tick(engine, celery_app):
    assert celery_tasks.submit.name in celery_app.tasks
    beats = [Scheduler(celery_app, lazy=True) for _ in range(2)]
    for beat in beats:
        beat.setup_schedule()
    for instant in (NOON, NOON + timedelta(minutes=1)):
        with freeze(instant):
            for beat in beats:
                beat.apply_async(beat.schedule["refresh"], advance=False)
    ended = []
    task_postrun.connect(count := lambda state, **_: ended.append(state), weak=False)
    late = NOON + timedelta(minutes=9)
    with freeze(late), start_worker(celery_app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        until(lambda: len(ended) == 4, "the worker runs four messages")
    task_postrun.disconnect(count)
    assert ended == ["SUCCESS"] * 4
    stored = Task.objects.order_by("idempotency_key")
    assert [row.idempotency_key for row in stored] == [
        tick_key(type_of(refresh), 60, NOON + timedelta(minutes=m)) for m in (0, 1)
    ]
    assert [(row.queue, row.priority, row.payload.parameters) for row in stored] == [
        ("reports", 3, {"source": "beat"})
    ] * 2
