"""Submitters at the same time: the lock, and what it counts, let no limit be exceeded."""

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, transaction

from queue_app.exceptions import IsolationTooStrict
from queue_app.models import Task
from queue_app.services.enqueue.store import enqueue_many
from queue_app.sql import admission
from tests.support.admission import from_outside, limit, outcome_of
from tests.support.engine import (
    Side,
    assert_index_agrees,
    at_once,
    held_up,
    new,
    put,
    put_many,
    somebody_waits_for_a_lock,
)
from tests.support.waiting import until

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
        side = held_up(lambda: outcome_of(put))
        transaction.set_rollback(True)
    assert side.result() == "stored"
    assert Task.objects.count() == 1


# -- far from a limit, submissions over the API do not wait for each other ------------------------------

#: As many submissions as the tests let share a lock at one time; limits over four times as many are shared.
IN_FLIGHT = 40


@pytest.fixture
def few_in_flight(monkeypatch) -> None:
    for name in ("_LOCK_ONE", "_INSERT_PLAIN"):
        sql = getattr(admission, name).replace("current_setting('max_connections')", f"'{IN_FLIGHT}'")
        monkeypatch.setattr(admission, name, sql)


#: The advisory lock that a submission waits for before its commit, as long as the test holds it.
GATE = 0x67617465


@pytest.fixture
def gate(engine, settings) -> Iterator[None]:
    """Let submissions that have counted and stored wait for a lock before they commit, however long."""
    settings.TASKQUEUE = settings.TASKQUEUE | {"ADMISSION": {"LOCK_SECONDS": 60}}
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION wait() RETURNS trigger AS"
            f" 'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NEW; END' LANGUAGE plpgsql"
        )
        cursor.execute("CREATE TRIGGER wait AFTER INSERT ON queue_app_task FOR EACH ROW EXECUTE FUNCTION wait()")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION wait CASCADE")


@pytest.mark.parametrize(("free", "waits"), [(10_000, False), (7, True)], ids=["far", "near"])
@pytest.mark.parametrize("of", ["max_length", "max_pending_per_user"])
def test_only_a_small_limit_makes_submitters_take_turns(engine, of, free, waits):
    limit(**{"max_length": 10_000, "max_pending_per_user": 10_000} | {of: free})
    from_outside(user="ada")
    name = "queue:default" if of == "max_length" else "user:default:ada"
    with transaction.atomic(), connection.cursor() as cursor:
        # As another submission would hold it that has stored its task and not yet committed.
        cursor.execute(f"SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, {admission.SEED}))", [name])
        side = Side(lambda: outcome_of(lambda: from_outside(user="ada")))
        if waits:
            until(somebody_waits_for_a_lock, "the submission waits for its turn")
        else:
            assert side.result() == "stored"
    assert side.result() == "stored"


@pytest.mark.parametrize("of", ["max_length", "max_pending_per_user"])
@pytest.mark.parametrize("free", [IN_FLIGHT + 3, 3], ids=["far", "near"])
def test_submissions_that_do_not_see_each_other_reach_a_large_limit_exactly(engine, few_in_flight, gate, of, free):
    leave_free(free, of)
    outcomes = submit_at_once() + submit_at_once()
    assert outcomes.count("stored") == free


def leave_free(places: int, of: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # without the trigger
        put_many(4 * IN_FLIGHT + 1 - places, user="ada")
    limit(**{"max_length": 10_000, "max_pending_per_user": 10_000} | {of: 4 * IN_FLIGHT + 1})


def submit_at_once() -> list[str]:
    """Let submissions commit once each has stored its task, waits for its turn, or was refused."""
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [GATE])
        sides = [Side(lambda: outcome_of(lambda: from_outside(user="ada"))) for _ in range(IN_FLIGHT)]
        until(lambda: sum(side.running for side in sides) == number_that_waits(), "the submissions wait")
    return [side.result() for side in sides]


def number_that_waits() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("by", [put, from_outside], ids=["code", "outside"])
def test_a_submitter_that_waited_sees_that_the_last_place_is_taken(engine, by):
    limit(max_length=1)
    with transaction.atomic():
        put()
        side = held_up(lambda: outcome_of(by))
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
