"""Admission: a queue never holds more waiting tasks than its limit, nor a user more pending tasks."""

import time
import uuid
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest
from django.db import connection, transaction

from queue_app.core.events import EventName
from queue_app.core.states import Status
from queue_app.exceptions import IsolationTooStrict, QueueFull, UserLimitExceeded
from queue_app.models import Queue, RuntimeSettings, Task
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify.events import last_id, read
from queue_app.sql import admission, insert
from queue_app.sql import admission as rows_module
from tests.support.engine import (
    Side,
    assert_index_agrees,
    at_once,
    failed,
    new,
    put,
    put_many,
    status,
    take,
    until,
)
from tests.support.engine import somebody_waits_for_a_lock as somebody_waits


def limit(name: str = "default", **numbers) -> None:
    Queue.objects.update_or_create(name=name, defaults=numbers)


def from_outside(**options):
    return enqueue(new(**options), outside=True)


def aged(seconds: float, **options) -> uuid.UUID:
    task_id = put(**options)
    Task.objects.filter(pk=task_id).update(queued_at=datetime.now(UTC) - timedelta(seconds=seconds))
    return task_id


def outcome_of(action) -> str:
    try:
        action()
    except (QueueFull, UserLimitExceeded) as error:
        return error.code
    return "stored"


# -- never exceeded -----------------------------------------------------------------------------------


@pytest.mark.parametrize("submitters", [[put], [from_outside], [put, from_outside]], ids=["code", "outside", "both"])
@pytest.mark.parametrize(
    ("numbers", "refusal"), [({"max_length": 7}, "queue_full"), ({"max_pending_per_user": 7}, "user_limit_exceeded")]
)
def test_forty_concurrent_submitters_get_exactly_the_free_places(engine, numbers, refusal, submitters):
    limit(**numbers)
    outcomes = at_once(
        [lambda by=by: outcome_of(lambda: by(user="ada")) for _ in range(40 // len(submitters)) for by in submitters]
    )
    assert (outcomes.count("stored"), outcomes.count(refusal)) == (7, 33)
    assert Task.objects.count() == 7
    assert_index_agrees()


def test_a_place_that_is_rolled_back_is_free(engine):
    limit(max_length=1)
    with transaction.atomic():
        put()
        side = Side(lambda: outcome_of(put))
        until(somebody_waits, "the second submitter waits for its turn")
        transaction.set_rollback(True)
    assert side.result() == "stored"
    assert Task.objects.count() == 1


def test_without_the_lock_two_submitters_take_the_last_place(engine, monkeypatch):
    """Without the lock the limit is exceeded: this shows what the lock is for."""
    monkeypatch.setattr(rows_module, "_LOCK", rows_module._LOCK.replace("pg_advisory_xact_lock(", "length(''||"))
    limit(max_length=1)
    with transaction.atomic():
        put()
        assert Side(lambda: outcome_of(put)).result() == "stored"
    assert Task.objects.count() == 2


def test_lock_and_insert_in_one_statement_would_count_before_the_wait(engine, monkeypatch):
    """This shows why the lock is a statement of its own."""
    asked = "SELECT current_setting("
    lock = f"pg_advisory_xact_lock(hashtextextended('queue:default', {rows_module.SEED}))::text"
    together = admission._INSERT_PLAIN.replace(asked, f"SELECT {lock} IS NOT NULL AND {asked[7:]}")
    assert together != admission._INSERT_PLAIN
    monkeypatch.setattr(admission, "_INSERT_PLAIN", together)
    parameters = "SELECT %s::text, %s::text, %s::int, %s::int, %s::int, %s::text[], %s::text[], %s::text[]"
    monkeypatch.setattr(admission, "_LOCK_ONE", parameters)
    limit(max_length=1)
    with transaction.atomic():
        put()
        side = Side(lambda: outcome_of(from_outside))
        until(somebody_waits, "the second submitter waits for its turn")
    assert side.result() == "stored"
    assert Task.objects.count() == 2


# -- far from a limit, submissions over the API do not wait for each other ------------------------------

#: As many submissions as the tests let share a lock at one time; limits over four times as many are shared.
IN_FLIGHT = 40


@pytest.fixture
def few_in_flight(monkeypatch) -> None:
    for name in ("_LOCK_ONE", "_INSERT_PLAIN"):
        sql = getattr(admission, name).replace("current_setting('max_connections')", f"'{IN_FLIGHT}'")
        monkeypatch.setattr(admission, name, sql)


@pytest.fixture
def slow_commits(engine):
    """Each submission has counted and stored, and commits a while later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION rest() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END' LANGUAGE plpgsql"
        )
        cursor.execute("CREATE TRIGGER rest AFTER INSERT ON queue_app_task FOR EACH ROW EXECUTE FUNCTION rest()")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION rest CASCADE")


@pytest.mark.parametrize(("free", "waits"), [(10_000, False), (7, True)], ids=["far", "near"])
@pytest.mark.parametrize("of", ["max_length", "max_pending_per_user"])
def test_only_a_small_limit_makes_submitters_take_turns(engine, of, free, waits):
    limit(**{"max_length": 10_000, "max_pending_per_user": 10_000} | {of: free})
    from_outside(user="ada")
    name = "queue:default" if of == "max_length" else "user:default:ada"
    with transaction.atomic(), connection.cursor() as cursor:
        # As another submission would hold it that has stored its task and not yet committed.
        cursor.execute(f"SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, {rows_module.SEED}))", [name])
        side = Side(lambda: outcome_of(lambda: from_outside(user="ada")))
        if waits:
            until(somebody_waits, "the submission waits for its turn")
        else:
            assert side.result() == "stored"
    assert side.result() == "stored"


@pytest.mark.parametrize("of", ["max_length", "max_pending_per_user"])
@pytest.mark.parametrize("free", [IN_FLIGHT + 3, 3], ids=["far", "near"])
def test_submissions_that_do_not_see_each_other_reach_a_large_limit_exactly(
    engine, few_in_flight, slow_commits, of, free
):
    leave_free(free, of)
    outcomes = submit_at_once() + submit_at_once()
    assert outcomes.count("stored") == free


def test_without_spare_places_submissions_that_share_the_lock_exceed_the_limit(
    engine, few_in_flight, slow_commits, monkeypatch
):
    """This shows what the spare places are for."""
    spared = f"CASE WHEN is_shared THEN '{IN_FLIGHT}'"
    assert spared in admission._LOCK_ONE
    monkeypatch.setattr(admission, "_LOCK_ONE", admission._LOCK_ONE.replace(spared, "CASE WHEN is_shared THEN '0'"))
    leave_free(3, "max_length")
    assert submit_at_once().count("stored") > 3


def leave_free(places: int, of: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # without the trigger
        put_many(4 * IN_FLIGHT + 1 - places, user="ada")
    limit(**{"max_length": 10_000, "max_pending_per_user": 10_000} | {of: 4 * IN_FLIGHT + 1})


def submit_at_once() -> list[str]:
    return at_once([lambda: outcome_of(lambda: from_outside(user="ada"))] * IN_FLIGHT)


@pytest.mark.parametrize("by", [put, from_outside], ids=["code", "outside"])
def test_a_submitter_that_waited_sees_that_the_last_place_is_taken(engine, by):
    """The correct result of the two broken variants above."""
    limit(max_length=1)
    with transaction.atomic():
        put()
        side = Side(lambda: outcome_of(by))
        until(somebody_waits, "the second submitter waits for its turn")
    assert side.result() == "queue_full"
    assert Task.objects.count() == 1


def test_a_refusal_ends_the_turn(engine):
    """Other submitters do not wait for the rest of a long transaction."""
    limit(max_length=1)
    put()
    with transaction.atomic():
        assert outcome_of(put) == "queue_full"
        assert Task.objects.count() == 1  # the transaction goes on
        side = Side(lambda: outcome_of(put))
        assert side.result() == "queue_full"


def test_two_queues_and_two_users_are_locked_in_one_order(engine):
    for name in ("a", "b"):
        limit(name, max_length=1000, max_pending_per_user=1000)
    batch = [new(queue=queue, user=user) for queue in ("a", "b") for user in ("ada", "bob")]
    at_once([lambda tasks=order: enqueue_many(tasks) for order in (batch, batch[::-1]) * 6])
    assert Task.objects.count() == 48


def test_a_submission_from_outside_waits_a_limited_time(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"ADMISSION": {"LOCK_SECONDS": 0.05}}
    limit(max_length=5)
    with transaction.atomic():
        put()
        with pytest.raises(Exception, match="lock timeout"):
            Side(from_outside).result()
    assert from_outside().created
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


# -- what counts ----------------------------------------------------------------------------------------


def test_scheduled_tasks_count_and_running_ones_do_not(engine):
    limit(max_length=2)
    put()
    put(run_after=datetime.now(UTC) + timedelta(hours=1))
    assert outcome_of(put) == "queue_full"
    (running,) = take(engine.worker())
    assert outcome_of(put) == "stored"
    assert running.queue == "default"


def test_all_pending_tasks_of_a_user_count(engine):
    limit(max_pending_per_user=2)
    put(user="ada")
    take(engine.worker())
    put(user="ada", run_after=datetime.now(UTC) + timedelta(hours=1))
    assert outcome_of(lambda: put(user="ada")) == "user_limit_exceeded"
    assert outcome_of(lambda: put(user="bob")) == "stored"
    assert [outcome_of(put) for _ in range(3)] == ["stored"] * 3, "tasks without a user have no such limit"
    assert outcome_of(lambda: put(user="ada", queue="other")) == "stored"


def test_the_limit_of_the_runtime_settings_covers_all_queues_without_one(engine):
    RuntimeSettings.objects.update(max_pending_per_user=2)
    limit("roomy", max_pending_per_user=5)
    put(user="ada", queue="a")
    put(user="ada", queue="b")
    assert outcome_of(lambda: put(user="ada", queue="c")) == "user_limit_exceeded"
    outcomes = [outcome_of(lambda: put(user="ada", queue="roomy")) for _ in range(6)]
    assert outcomes == ["stored"] * 5 + ["user_limit_exceeded"]
    with pytest.raises(UserLimitExceeded, match="'ada' has 5 of at most 5 pending tasks in the queue 'roomy'"):
        put(user="ada", queue="roomy")


def test_defaults_apply_only_to_tasks_from_outside(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"ADMISSION": {"MAX_PENDING_PER_USER": 2}}
    RuntimeSettings.objects.update(max_length=4)
    put_many(3, user="ada")
    assert outcome_of(lambda: from_outside(user="ada")) == "user_limit_exceeded"
    assert outcome_of(lambda: from_outside(user="bob")) == "stored"
    assert outcome_of(lambda: from_outside(user="eve")) == "queue_full"
    put_many(3)
    assert outcome_of(from_outside) == "queue_full"
    RuntimeSettings.objects.all().delete()
    assert outcome_of(from_outside) == "stored", "10 000 without the row"


def test_retries_and_tasks_given_back_find_their_place(engine):
    limit(max_length=1)
    put(max_retries=3)
    worker = engine.worker()
    (running,) = take(worker)
    put()
    give_back([running])
    assert Task.objects.filter(status=Status.QUEUED).count() == 2
    (again,) = take(worker)
    finish([failed(again)])
    assert status(again.id) == Status.SCHEDULED
    assert outcome_of(put) == "queue_full"


# -- many at once, and again ------------------------------------------------------------------------


def test_many_are_stored_all_or_none(engine):
    limit(max_length=10)
    put_many(8)
    with pytest.raises(QueueFull) as refused:
        put_many(3)
    assert (refused.value.limit, refused.value.current, refused.value.asked) == (10, 8, 3)
    with pytest.raises(QueueFull):
        enqueue_many([new(queue="other"), new(), new(), new(idempotency_key="k")])
    assert Task.objects.count() == 8
    put_many(2)
    assert_index_agrees()


def test_a_task_that_is_already_stored_needs_no_place(engine):
    limit(max_length=2, max_pending_per_user=2)
    first = enqueue(new(user="ada", idempotency_key="one"))
    put(user="ada")
    again = enqueue(new(user="ada", idempotency_key="one"), outside=True)
    assert (again.id, again.created) == (first.id, False)
    both = enqueue_many([new(user="ada", idempotency_key="one"), new(user="ada", idempotency_key="one")])
    assert [item.created for item in both] == [False, False]
    assert outcome_of(lambda: put(user="ada", idempotency_key="two")) == "user_limit_exceeded"
    limit(max_length=3, max_pending_per_user=3)
    twice = enqueue_many([new(user="ada", idempotency_key="two")] * 2)
    assert [item.created for item in twice] == [True, False], "one place for a key that comes twice"


# -- stale ones make room ---------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "age"), [(None, 3700), (60, 70)])
def test_a_full_queue_expires_its_stale_tasks_first(engine, own, age):
    limit(max_length=3, stale_after_seconds=own)
    stale, fresh = [aged(age), aged(age)], aged(50)
    task_id = put()
    assert {status(task_id) for task_id in stale} == {Status.EXPIRED}
    assert {status(fresh), status(task_id)} == {Status.QUEUED}
    put()
    with pytest.raises(QueueFull):
        put()


@pytest.mark.parametrize(
    ("own", "settings_say", "age", "is_stale"),
    [
        (None, 3600, 3601, True),
        (None, 3600, 3500, False),
        (None, 1e9, 9999, False),
        (60, 1e9, 61, True),
        (60, 9, 50, False),
    ],
)
def test_stale_tasks_make_room_under_the_default_limit_too(engine, settings, own, settings_say, age, is_stale):
    """Both defaults may come from the environment."""
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ADMISSION": {"MAX_LENGTH": 1, "STALE_SECONDS": settings_say}}
    task_id = aged(age)
    limit(stale_after_seconds=own)
    assert outcome_of(from_outside) == ("stored" if is_stale else "queue_full")
    assert status(task_id) == (Status.EXPIRED if is_stale else Status.QUEUED)
    RuntimeSettings.objects.update(max_length=9)
    assert outcome_of(from_outside) == "stored", "the row of the runtime settings goes before"


def test_expired_tasks_stay_expired_if_there_is_still_no_room(engine):
    limit(max_length=2, stale_after_seconds=60)
    stale, _ = aged(70), put()
    with pytest.raises(QueueFull) as refused:
        put_many(2)
    assert (refused.value.current, status(stale)) == (1, Status.EXPIRED)


# -- refusals ----------------------------------------------------------------------------------------


def test_a_refusal_is_published_with_limit_and_counts(engine):
    limit(max_length=1)
    put()
    since = last_id()
    with pytest.raises(QueueFull) as refused:
        put(user="ada", priority="high")
    assert str(refused.value).startswith(
        "The queue 'default' is full: it has 1 of at most 1 waiting tasks, and no more fit."
    )
    (event,), _ = read(since)
    assert (event.name, event.task_id, event.queue, event.user) == (EventName.REJECTED, "", "default", "ada")
    assert event.details == {"code": "queue_full", "limit": "1", "current": "1", "asked": "1"}


def test_a_transaction_that_cannot_see_others_is_refused(engine):
    limit(max_length=5)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(IsolationTooStrict, match="READ COMMITTED"):
            put()
        put(queue="unlimited")
    assert Task.objects.count() == 1


@pytest.mark.parametrize("by", [put, from_outside], ids=["code", "outside"])
def test_a_connection_with_another_isolation_level_still_counts_right(engine, by):
    limit(max_length=2)

    def strict() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return outcome_of(by)

    outcomes = at_once([strict] * 8)
    assert (outcomes.count("stored"), Task.objects.count()) == (2, 2)


# -- what it costs --------------------------------------------------------------------------------------


def test_without_limits_there_is_no_lock_no_count_and_no_further_statement(engine, monkeypatch):
    for name in ("read_limits", "lock_and_count", "lock", "be_read_committed"):
        monkeypatch.setattr(rows_module, name, None)
    put()
    put(user="ada")
    put(idempotency_key="k")
    assert not enqueue(new(idempotency_key="k")).created
    put_many(5, user="ada")
    statements: list[str] = []

    def note(execute, sql, *rest):
        statements.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        put_many(5)
    assert sum("clock_timestamp()" in sql for sql in statements) == 1
    assert not any("advisory" in sql for sql in statements)


def test_a_task_from_outside_takes_one_round_trip_while_there_is_room(engine, monkeypatch):
    limit(max_length=3, max_pending_per_user=3)
    with monkeypatch.context() as patch:
        for name in ("read_limits", "lock_and_count", "lock", "be_read_committed"):
            patch.setattr(rows_module, name, None)
        from_outside(user="ada")
        from_outside(user="ada", idempotency_key="k")
    assert not from_outside(user="ada", idempotency_key="k").created
    assert from_outside(user="ada").created
    assert not from_outside(user="ada", idempotency_key="k").created, "it takes no place, and so needs none"
    assert outcome_of(lambda: from_outside(user="ada")) == "user_limit_exceeded"


@pytest.mark.slow
@pytest.mark.serial
def test_the_limit_check_in_the_statement_has_no_measurable_cost(engine, monkeypatch):
    """Compares the same insert with and without the check; the bound is loose because the machine is shared."""
    asked = insert._insert(with_key=False, of_user=False, at=False)
    plain = asked.replace(insert._QUEUE_LIMITS.format(queues="%s"), "(%s::text IS NULL)")
    assert plain != asked
    put()

    def seconds(statement: str) -> float:
        monkeypatch.setattr(insert, "_insert", lambda **_: statement)
        started = time.perf_counter()
        with transaction.atomic():
            for _ in range(150):
                enqueue(new())
            transaction.set_rollback(True)
        return time.perf_counter() - started

    pairs = [(seconds(asked), seconds(plain)) for _ in range(11)]
    ratio = median(with_question / without for with_question, without in pairs)
    print(f"enqueue with the question / without: {ratio:.3f}")
    assert ratio < 2
