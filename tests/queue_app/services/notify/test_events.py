"""The events of each transition, and what they must not contain."""

import uuid

import pytest
from django.db import transaction

from queue_app.core.events import EventFilter, EventName, occasion_of
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable, InvalidTaskData
from queue_app.index import get_index
from queue_app.models import DeadLetter, Task, Worker
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.actions import cancel, cancel_many, replay
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.notify.index import breaker
from queue_app.services.repair.reap import reap_orphans
from tests.support.engine import done, failed, index_away, leave_redis, new, put, put_many, rolled_back, take
from tests.support.index_state import client_of

pytestmark = pytest.mark.usefixtures("engine")


def published(**only):
    get_index().flush()
    return events.read(events.FROM_THE_BEGINNING, count=1000, only=EventFilter(**only))[0]


def story(task_id):
    return " ".join(event.name for event in published(task_id=task_id))


def put_off(task):
    outcome = done(task)
    return type(outcome)(task, outcome.started_at, outcome.finished_at, snooze=60.0)


def timed_out(task):
    outcome = failed(task)
    failure = type(outcome.failure)("TaskTimeout", "too long", "", reason="timeout")
    return type(outcome)(task, outcome.started_at, outcome.finished_at, failure=failure)


def test_the_life_of_a_task(hand):
    task_id = put(user="eve", priority=Band.HIGH)
    [task] = take(hand)
    finish([done(task, '"secret result"')])
    first, second, third = published()
    assert [event.name for event in (first, second, third)] == ["Accepted", "Started", "Completed"]
    assert [event.status for event in (first, second, third)] == ["queued", "executing", "completed"]
    assert [event.attempt for event in (first, second, third)] == [0, 1, 1]
    assert [event.worker for event in (first, second, third)] == ["", str(hand.id), str(hand.id)]
    for event in (first, second, third):
        assert (event.task_id, event.task_type, event.queue) == (str(task_id), "a", "default")
        assert (event.user, event.priority, event.details) == ("eve", "high", {})
    assert first.at <= second.at <= third.at


@pytest.mark.parametrize(
    ("outcome", "options", "names", "status"),
    [
        (failed, {}, "Failed", "scheduled"),
        (failed, {"max_retries": 0}, "Failed DeadLettered", "dead_letter"),
        (lambda task: failed(task, retriable=False), {}, "Failed", "failed"),
        (timed_out, {}, "TimedOut", "scheduled"),
        (timed_out, {"max_retries": 0}, "TimedOut DeadLettered", "dead_letter"),
        (put_off, {}, "Requeued", "scheduled"),
    ],
)
def test_how_an_attempt_ended(hand, outcome, options, names, status):
    task_id = put(**options)
    [task] = take(hand)
    finish([outcome(task)])
    assert story(task_id) == f"Accepted Started {names}"
    assert published()[-1].status == status
    if "DeadLettered" in names:
        assert published()[-1].details == {"reason": "timeout" if outcome is timed_out else "retries_exhausted"}


def test_a_replay_is_published_before_the_task_starts_again(hand):
    task_id = put(max_retries=0, user="eve")
    finish([failed(task) for task in take(hand)])
    replay(DeadLetter.objects.get().id, by="staff")
    take(hand)
    assert story(task_id) == "Accepted Started Failed DeadLettered Requeued Started"
    assert [event.status for event in published(user="eve", names=["Requeued"])] == ["queued"]


def test_a_stale_outcome_publishes_nothing(hand):
    task_id = put()
    [task] = take(hand)
    give_back([task])
    finish([done(task)])
    assert story(task_id) == "Accepted Started Requeued"


def test_a_task_that_waits_is_cancelled_at_once_and_one_that_runs_when_it_ends(hand):
    runs, waits = put(), put(user="bob")
    [task] = take(hand)
    cancel_many([runs, waits])
    assert story(waits) == "Accepted Cancelled"
    assert published(user="bob")[-1].status == "cancelled"
    assert story(runs) == "Accepted Started"
    finish([done(task)])
    assert story(runs) == "Accepted Started Cancelled"


def test_a_task_for_later_is_accepted_as_scheduled(hand):
    put(delay=3600)
    assert [(event.name, event.status) for event in published()] == [("Accepted", "scheduled")]


@pytest.mark.parametrize(("max_crashes", "name"), [(3, "Requeued"), (1, "DeadLettered")])
def test_the_task_of_a_dead_worker(hand, settings, max_crashes, name):
    settings.TASKQUEUE = settings.TASKQUEUE | {"RETRY": {"MAX_CRASHES": max_crashes}}
    task_id = put(user="eve")
    take(hand)
    Worker.objects.all().delete()
    assert reap_orphans() == 1
    assert story(task_id) == f"Accepted Started {name}"
    assert published(user="eve")[-1].details == ({} if name == "Requeued" else {"reason": "crash_loop"})


def test_rolled_back_changes_publish_nothing(hand):
    with rolled_back():
        put()
        put_many(3)
    waits = put()
    with rolled_back():
        cancel(waits)
    assert story(waits) == "Accepted"
    assert len(published()) == 1


def test_in_one_transaction_events_wait_for_the_commit():
    with transaction.atomic():
        task_id = put()
        cancel(task_id)
        assert published() == []
    assert story(task_id) == "Accepted Cancelled"


def test_many_events_are_published_in_order_each_with_its_user(hand):
    stored = enqueue_many([new(user=f"u{number // 20}") for number in range(60)])
    found = published()
    assert [event.task_id for event in found] == [str(item.id) for item in stored]
    assert [event.user for event in found] == [f"u{number // 20}" for number in range(60)]
    tasks = take(hand, 60)
    finish([done(task) for task in tasks])
    assert [event.task_id for event in published(names=[EventName.STARTED])] == [str(task.id) for task in tasks]
    assert {event.task_id for event in published(names=[EventName.COMPLETED])} == {str(task.id) for task in tasks}


def test_a_replayed_idempotency_key_is_no_new_task():
    first = put(idempotency_key="k")
    assert put(idempotency_key="k") == first
    assert story(first) == "Accepted"


def test_no_parameters_results_or_errors(hand):
    put(parameters={"word": "canary"}, args=["canary"])
    put(parameters={"word": "canary"}, max_retries=0)
    one, two = take(hand, 2)
    finish([done(one, '"canary"'), failed(two, "canary")])
    get_index().flush()
    client = client_of(get_index())
    for key in client.scan_iter(match=get_index().keys.everything):
        assert b"canary" not in (client.dump(key) or b"")
    assert not any("canary" in str(event) for event in published())


def test_without_redis_nothing_fails_and_nothing_is_published(hand):
    [task] = put_many(1) and take(hand)
    before = len(published())
    with index_away():
        put_many(2)
        assert finish([done(task)]) == {task.id}
    assert len(published()) == before


def test_while_claims_read_the_rows_the_stream_in_redis_is_read(hand, settings):
    put()
    before = [event.name for event in published()]
    leave_redis()
    put()
    assert [event.name for event in published()] == before, "what comes meanwhile is not streamed"
    nowhere = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "nowhere": nowhere}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "nowhere"}
    for question in (events.read, events.last_id):
        with pytest.raises(IndexUnavailable, match=r"^Redis at redis://127.0.0.1:1/0 failed \(events\)"):
            question()


def test_after_a_failure_events_are_held_back_like_other_notifications(hand):
    breaker.trip()
    put()
    breaker.reset()
    assert published() == []


def test_switched_off_no_event_is_written(hand, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"EVENTS": {"MAX_LENGTH": 0}}
    task_id = put()
    put_many(3)
    tasks = take(hand, 3)
    finish([done(tasks[0]), failed(tasks[1])])
    cancel(put())
    assert Task.objects.get(pk=task_id).attempt == 1
    get_index().flush()
    assert not client_of(get_index()).exists(get_index().keys.events)


def test_publish_for_other_transitions(hand):
    put()
    [task] = take(hand)
    occasion = occasion_of(EventName.PROMOTED, task.ref, Status.QUEUED)._replace(details=("from", "low"))
    events.publish([(occasion, task.id)])
    assert (published()[-1].name, published()[-1].details) == ("Promoted", {"from": "low"})


def test_a_reader_goes_on_where_it_stopped(hand):
    put_many(2)
    put(user="eve")
    get_index().flush()
    some, at = events.read(events.FROM_THE_BEGINNING, count=1)
    assert len(some) == 2
    rest, end = events.read(at, only=EventFilter(user="eve"))
    assert [event.user for event in rest] == ["eve"]
    assert events.read(end) == ([], end)
    assert events.last_id() == end
    none, later = events.read(events.FROM_THE_BEGINNING, only=EventFilter(task_id=uuid.uuid4()))
    assert (none, later) == ([], end), "it does not stop at what it does not want"


@pytest.mark.parametrize("odd", ["", "1-2-3", "1-1\r\nFLUSHALL"])
def test_an_invalid_id_is_refused(odd):
    with pytest.raises(InvalidTaskData) as refused:
        events.read(odd)
    assert refused.value.code == "invalid_id"
