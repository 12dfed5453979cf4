"""``taskqueue tail``: events and log lines as they come."""

import io
import json
import signal

import pytest
from django.core.management.color import no_style
from django.db import OperationalError

from queue_app.core.events import EventFilter
from queue_app.core.records import ProgressReport
from queue_app.exceptions import IndexUnavailable
from queue_app.index.index import Index
from queue_app.management import verbs
from queue_app.management.verbs import tail as verb
from queue_app.management.verbs.tail import Tail, as_json, as_line
from queue_app.services.lifecycle.finish import finish, record_progress
from queue_app.services.read.log_lines import LogLines
from tests.integration.processes import fleet_on
from tests.support.engine import done, failed, put, take
from tests.support.faults import failing
from tests.support.waiting import until

EVERYTHING = EventFilter()
ADD, NOTE = "a", "b"  # types that the workers of these tests know


@pytest.fixture(autouse=True)
def quickly(override):
    """Do not wait for events that a test has not caused."""
    override(verb, BLOCK_MS=None)


@pytest.fixture
def follow(engine):
    """Return a function that starts to follow; what it returns shows everything since, without ids."""

    def start(only=EVERYTHING, **options):
        tail = Tail(only, **options)
        assert list(tail.run_once()) == []
        return tail, lambda: [short(item) for item in tail.run_once()]

    return start


def short(item) -> str:
    """Return what an item is about."""
    return item if isinstance(item, str) else item.text.split(" ", 2)[-1] if hasattr(item, "text") else item.name


def started(engine, **options):
    """Enqueue a task, and let a worker claim it; return what it claimed."""
    put(ADD, args=[1, 2], **options)
    [task] = take(engine.worker())
    return task


def say(task, *lines: str, dropped: int = 0, level: str = "INFO") -> None:
    """Store log lines of an attempt, all that there are so far."""
    text = "\n".join(f"2026-11-22 17:08:06,618 {level} shop: {line}" for line in lines)
    record_progress([ProgressReport(task.id, task.attempt, task.worker_id, lines=text, dropped=dropped)])


def test_events_and_lines_in_order(engine, follow):
    _, news = follow()
    task = started(engine)
    assert news() == ["Accepted", "Started"]
    say(task, "one")
    assert news() == ["INFO shop: one"]
    say(task, "one", "two")
    finish([done(task)])
    assert news() == ["INFO shop: two", "Completed"]
    assert news() == []


def test_lines_that_are_no_longer_stored(engine, follow):
    _, news = follow()
    task = started(engine)
    say(task, "one", "two")
    assert "INFO shop: two" in news()
    say(task, "three", dropped=2)
    assert news() == ["INFO shop: three"]


def test_what_was_logged_before_is_not_repeated(engine):
    task = started(engine)
    say(task, "old")
    tail = Tail(EVERYTHING)
    assert list(tail.run_once()) == []
    say(task, "old", "new")
    assert [short(item) for item in tail.run_once()] == ["INFO shop: new"]


def test_an_attempt_that_begins_and_ends_between_two_turns(engine, follow):
    _, news = follow()
    task = started(engine, max_retries=0)
    say(task, "all")
    finish([failed(task)])
    assert news() == ["Accepted", "Started", "INFO shop: all", "Failed", "DeadLettered"]


@pytest.mark.parametrize(
    ("level", "shown"), [("INFO", ["fine", "  it goes on", "bad"]), ("ERROR", ["bad"]), ("NONE", [])]
)
def test_the_level_of_lines(engine, follow, level, shown):
    task = started(engine)
    _, news = follow(level=level)
    text = "2026-11-22 17:08:06,618 INFO a: fine\n  it goes on\n2026-11-22 17:08:06,619 ERROR a: bad"
    record_progress([ProgressReport(task.id, task.attempt, task.worker_id, lines=text)])
    assert [line.rpartition(": ")[2] for line in news()] == [line.strip() for line in shown]


@pytest.mark.parametrize(("field", "value"), [("queue", "mail"), ("task_type", NOTE)])
def test_a_queue_or_a_type(engine, follow, field, value):
    _, news = follow(EventFilter(**{field: value}))
    put(ADD)
    mine = put(NOTE, queue="mail")
    for task in take(engine.worker("a b"), 2):
        say(task, str(task.id))
    assert news() == ["Accepted", "Started", f"INFO shop: {mine}"]


def test_one_task(engine, follow):
    mine, _other = put(ADD), put(ADD)
    _, news = follow(EventFilter(task_id=mine))
    for task in take(engine.worker(), 2):
        say(task, str(task.id))
    assert news() == ["Started", f"INFO shop: {mine}"]


def test_secrets_are_masked(engine, follow):
    _, news = follow()
    task = started(engine, parameters={"password": "geheim-123"})
    say(task, "logs in with geheim-123")
    assert not [item for item in news() if "geheim" in item]


def test_redis_goes_away_and_comes_back(engine, follow):
    tail, news = follow()
    put(ADD, args=[1, 2])
    with failing(Index, "read_events", IndexUnavailable("gone.")):
        assert news() == ["gone. Events follow when it answers again."]
        assert tail.pause > 0
        assert news() == []
    assert news() == ["Redis answers again.", "Accepted"]
    assert tail.pause == 0


def test_postgresql_goes_away_and_comes_back(engine, follow, monkeypatch):
    _, news = follow()

    def gone(*_):
        raise OperationalError("gone\n://me:geheim@host")

    with monkeypatch.context() as patched:
        patched.setattr(LogLines, "read", gone)
        put(ADD, args=[1, 2])
        assert news() == ["PostgreSQL failed: gone ://me:***@host Log lines follow when it answers.", "Accepted"]
        assert news() == []
    assert news() == ["PostgreSQL answers again."]


def test_the_text_of_each_kind(engine, follow):
    tail, _ = follow()
    task = started(engine, max_retries=0)
    task_id = task.id
    say(task, "careful", level="WARNING")
    finish([failed(task)])
    shown = [as_line(item, no_style()) for item in tail.run_once()]
    assert [line[9:] for line in shown] == [
        f"accepted     {ADD} {task_id} (queue default)",
        f"started      {ADD} {task_id} (queue default)",
        f"WARNING      shop: careful ({ADD} {task_id})",
        f"failed       {ADD} {task_id} (queue default)",
        f"dead letter  {ADD} {task_id} (queue default, reason retries_exhausted)",
    ]
    assert shown[2].startswith("17:08:06 ")


def test_json(engine, follow):
    tail, _ = follow()
    task = started(engine)
    say(task, "careful")
    found = [json.loads(as_json(item)) for item in tail.run_once()]
    assert [(item["kind"], item["task_id"]) for item in found] == [
        (kind, str(task.id)) for kind in ("event", "event", "log")
    ]
    assert found[0]["at"].endswith("+00:00")


@pytest.mark.parametrize(
    ("most", "queue", "said"),
    [
        (0, None, "No events are published (TASKQUEUE EVENTS.MAX_LENGTH is 0); log lines follow."),
        (100, "mial", "There is no queue 'mial'. Did you mean 'mail'? Its events follow when a task names it."),
    ],
)
def test_it_says_at_the_start_what_will_not_follow(engine, settings, most, queue, said):
    put(queue="mail")
    settings.TASKQUEUE = {**settings.TASKQUEUE, "EVENTS": {"MAX_LENGTH": most}}
    options = {"queue": queue, "task_type": None, "task": None, "level": "INFO", "json": False}
    call = verbs.Call(options, io.StringIO(), errors := io.StringIO(), no_style())
    with failing(Tail, "run_once", KeyboardInterrupt):
        assert verb.run(call) == 0
    assert errors.getvalue() == said


def test_as_a_process_it_ends_with_ctrl_c(engine, process_env, tmp_path):
    with fleet_on(process_env, tmp_path) as fleet:
        process = fleet.start("taskqueue", "tail", "--json")

        def follows() -> bool:
            put(ADD, args=[1, 2])
            return '"Accepted"' in process.log

        until(follows, "it shows an event")
        process.send(signal.SIGINT)
        assert process.exit_code() == 0
        assert {json.loads(line)["name"] for line in process.log.splitlines()} == {"Accepted"}
