"""Suggestions: when there are some, what they say, and that they stay away once dismissed."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from queue_app.core import shared
from queue_app.diagnose.work import check_advice
from queue_app.exceptions import InvalidTaskData
from queue_app.models import AuditEntry, Limit, Queue
from queue_app.services.control.advice import advice, dismiss
from tests.support.factories import QueueStatsFactory, StaffFactory, WorkerFactory

pytestmark = pytest.mark.django_db


def snapshots(queue: str = "exports", number: int = 30, **fields: object) -> None:
    """Store a snapshot for each of the last minutes."""
    values = {"depth": {}, "active": 0, "oldest_seconds": None, "completed": 0} | fields
    Queue.objects.update_or_create(name=queue, defaults={"max_concurrent": fields.get("max_concurrent")})
    now = timezone.now()
    for minute in range(number):
        QueueStatsFactory(queue=queue, taken_at=now - timedelta(minutes=minute + 0.5), **values)


#: A limit of 3 that holds 41 tasks for 8 minutes: each runs for a minute.
HELD = {
    "depth": {"normal": 41}, "active": 3, "max_concurrent": 3, "oldest_seconds": 480.0, "completed": 3, "enqueued": 4,
}  # fmt: skip


def test_a_limit_that_holds_tasks_while_slots_are_idle(engine):
    snapshots(**HELD)
    WorkerFactory(concurrency=12, free_slots=9)
    (found,) = advice()
    assert found.text == (
        "exports: the limit 3 holds 41 tasks, the oldest for 8 min, while 9 slots are idle. The tasks of the last 30"
        " minutes and those that wait need 6."
    )
    assert "queue:exports.max_concurrent=6" in found.hint
    assert Queue.objects.get(pk="exports").max_concurrent == 3, "a suggestion changes nothing"
    (finding,) = check_advice()
    assert (finding.level, finding.message) == ("ok", found.text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"oldest_seconds": 20.0}, id="they wait for a moment"),
        pytest.param({"depth": {}}, id="nothing waits"),
        pytest.param({"active": 2}, id="the limit is not reached"),
        pytest.param({"max_concurrent": None}, id="no limit"),
        pytest.param({"completed": 0}, id="nothing ended, so nothing is known"),
        pytest.param({"completed": 30, "enqueued": 3, "depth": {"normal": 2}}, id="it works off what waits"),
        pytest.param({"number": 5}, id="too few snapshots"),
    ],
)
def test_no_false_alarm(engine, change):
    snapshots(**HELD | change)
    WorkerFactory(concurrency=12, free_slots=9)
    assert advice() == []


def test_no_advice_without_idle_slots(engine):
    snapshots(**HELD)
    WorkerFactory(concurrency=3, free_slots=0)
    WorkerFactory(concurrency=9, free_slots=9, queues=["mail"])
    WorkerFactory(concurrency=9, free_slots=9, status="draining")
    assert advice() == []


@pytest.mark.parametrize(
    "fields", [{"adaptive": "gradient2", "max_concurrent": 3}, {"paused": True, "paused_at": timezone.now()}]
)
def test_a_limit_that_is_not_fixed_gets_none(engine, fields):
    snapshots(**HELD)
    WorkerFactory(concurrency=12, free_slots=9)
    Queue.objects.update(**fields)
    assert advice() == []


def test_an_idle_queue(engine):
    snapshots(max_concurrent=3)
    WorkerFactory()
    Limit.objects.create(scope="type", name="shop.mail", max_concurrent=1)
    assert advice() == []
    assert list(check_advice()) == []


def test_a_band_that_holds_most_tasks(engine):
    snapshots(depth={"critical": 71, "normal": 29})
    (found,) = advice()
    assert found.text == "The band critical holds 71% of the waiting tasks (100 on average): they wait for each other."


@pytest.mark.parametrize("depth", [{"critical": 7, "normal": 2}, {"critical": 40, "normal": 60}, {"normal": 500}])
def test_bands_that_are_used_well(engine, depth):
    snapshots(depth=depth)
    assert advice() == []


def test_at_most_three_and_a_dismissed_one_stays_away(engine):
    for name in ("a", "b", "c", "d"):
        snapshots(name, **HELD)
    WorkerFactory(concurrency=12, free_slots=9)
    first, *rest = advice()
    assert len(rest) == 2
    dismiss(first.key, by="ina", via="admin", reason="the service takes 3")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target_id, entry.by, entry.reason) == (
        "advice.dismiss", first.key, "ina", "the service takes 3",
    )  # fmt: skip
    assert entry.after["text"] is not None
    assert first.key not in {each.key for each in advice()}
    assert len(advice()) == 3
    with pytest.raises(InvalidTaskData):
        dismiss(first.key, by="ina", via="admin", reason="")
    AuditEntry.objects.update(at=timezone.now() - timedelta(days=31))
    assert advice()[0] == first
    Queue.objects.filter(pk=first.queue).update(max_concurrent=4)
    assert first.key not in {each.key for each in advice()}, "of another limit it is another suggestion"


def test_the_overview_shows_and_dismisses_it(engine, client):
    snapshots(**HELD)
    WorkerFactory(concurrency=12, free_slots=9)
    shared.forget()
    address = reverse("admin:app_list", args=["queue_app"])
    staff = StaffFactory(permissions=["view_queue", "change_queue", "view_queuestats"])
    client.force_login(staff)
    assert b"while 9 slots are idle" in client.get(address).content
    (found,) = advice()
    client.force_login(StaffFactory(permissions=["view_queue", "view_queuestats"]))
    page = client.get(address).content
    assert b"while 9 slots are idle" in page
    assert b"advice/dismiss" not in page
    assert client.post(reverse("admin:queue_app_queue_dismiss"), {"key": found.key}).status_code == 403
    client.force_login(StaffFactory(permissions=["view_queue"]))
    assert b"while 9 slots are idle" not in client.get(address).content
    client.force_login(staff)
    assert client.get(reverse("admin:queue_app_queue_dismiss")).status_code == 405
    client.post(reverse("admin:queue_app_queue_dismiss"), {"key": found.key, "reason": "known"})
    assert AuditEntry.objects.get().reason == "known"
    assert b"while 9 slots are idle" not in client.get(address).content


def test_what_the_overview_pays(engine, django_assert_max_num_queries):
    snapshots(**HELD)
    with django_assert_max_num_queries(4):
        advice()
