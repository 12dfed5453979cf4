"""Pause and resume a queue, a task type, a key, or everything."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app import signals
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import Limit, Queue, RuntimeSettings
from queue_app.services.control.pause import (
    pause,
    pause_everything,
    pause_key,
    pause_type,
    resume,
    resume_due,
    resume_everything,
    resume_key,
    resume_type,
)
from queue_app.sql import upkeep
from queue_app.workers.scheduler import Scheduler
from tests.support.engine import at_once

pytestmark = pytest.mark.both_ways

SOON = timedelta(hours=1)

KINDS = {
    "queue": (lambda **how: pause("default", **how), lambda: resume("default"), "the queue default"),
    "type": (lambda **how: pause_type("shop.mail", **how), lambda: resume_type("shop.mail"), "the task type shop.mail"),
    "key": (lambda **how: pause_key("customer:7", **how), lambda: resume_key("customer:7"), "the key customer:7"),
    "everything": (pause_everything, resume_everything, "everything"),
}


@pytest.fixture(autouse=True)
def default_queue(rows):
    Queue.objects.get_or_create(name="default")


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def soon() -> datetime:
    return datetime.now(UTC) + SOON


def make_due() -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    for model in (Queue, Limit, RuntimeSettings):
        model.objects.filter(resume_at__isnull=False).update(resume_at=past)


def test_a_pause_stores_person_reason_and_end(kind):
    stop, go_on, _ = kind
    until = soon()
    found = stop(by="ada", reason="The bank is down.", resume_at=until)
    found.refresh_from_db()
    assert (found.paused, found.paused_by, found.paused_reason) == (True, "ada", "The bank is down.")
    assert found.resume_at == until
    since = found.paused_at
    assert stop(by="bob", resume_at=until).paused_by == "ada", "it is paused already"
    longer = stop(by="bob", reason="It stays so.")
    assert (longer.paused_by, longer.resume_at, longer.paused_at) == ("bob", None, since)
    found = go_on()
    found.refresh_from_db()
    assert (found.paused, found.paused_at, found.paused_by, found.paused_reason) == (False, None, "", "")
    assert not go_on().paused


def test_a_pause_ends_by_itself(kind, caplog, hear):
    stop, _, what = kind
    heard = hear(signals.resumed_by_itself, "what")
    stop(by="ada", resume_at=soon())
    assert resume_due() == 0
    make_due()
    with caplog.at_level("INFO", "taskqueue"):
        assert sorted(at_once([resume_due] * 4)) == [0, 0, 0, 1]
    assert heard == [what]
    assert f"the pause of {what} ended at its time" in caplog.text
    assert resume_due() == 0
    assert not any(model.objects.filter(paused=True).exists() for model in (Queue, Limit, RuntimeSettings))


@pytest.mark.both_ways(False)
def test_the_scheduler_resumes(scene):
    pause("default", resume_at=soon())
    make_due()
    ran = Scheduler().run_once()
    assert "resume" in ran
    assert not Queue.objects.get(pk="default").paused


def test_a_pause_that_was_extended_meanwhile_stays(monkeypatch):
    """A person extends the pause between the check and the resumption."""
    pause("default", by="ada", resume_at=soon())
    make_due()
    monkeypatch.setattr(upkeep, "any_pause_over", lambda: pause("default", by="bob", resume_at=soon()).paused)
    assert resume_due() == 0
    assert Queue.objects.get(pk="default").paused_by == "bob"


@pytest.mark.parametrize(
    ("until", "code"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), "date_out_of_range"),
        (datetime(9999, 1, 1, tzinfo=UTC), "date_out_of_range"),
        (datetime(2027, 1, 1), "timezone_required"),  # noqa: DTZ001 - it must be naive
        ("tomorrow", "datetime_expected"),
    ],
)
def test_invalid_ends(kind, until, code):
    with pytest.raises(InvalidTaskData) as refused:
        kind[0](resume_at=until)
    assert (refused.value.field, refused.value.code) == ("resume_at", code)
    assert not Limit.objects.exists()


def test_invalid_names():
    with pytest.raises(UnknownQueue, match="'default'"):
        pause("defualt")
    for stop, name in [(pause_type, ""), (pause_type, "a\x00"), (pause_key, "x" * 129), (pause_key, " a")]:
        with pytest.raises(InvalidTaskData) as refused:
            stop(name)
        assert refused.value.field == "name"
    assert resume_type("never.paused") is None
