"""What admission costs: nothing without limits, one round trip with them."""

from django.db import connection

from queue_app.services.enqueue.store import enqueue
from queue_app.sql import admission
from queue_app.sql.database import fetch_all
from queue_app.sql.prepared import PREPARE_AFTER
from tests.support.admission import from_outside, limit, outcome_of
from tests.support.engine import new, put, put_many


def test_without_limits_there_is_no_lock_no_count_and_no_further_statement(engine, monkeypatch):
    for name in ("read_limits", "lock_and_count", "lock", "be_read_committed"):
        monkeypatch.setattr(admission, name, None)
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
            patch.setattr(admission, name, None)
        from_outside(user="ada")
        from_outside(user="ada", idempotency_key="k")
    assert not from_outside(user="ada", idempotency_key="k").created
    assert from_outside(user="ada").created
    assert not from_outside(user="ada", idempotency_key="k").created, "it takes no place, and so needs none"
    assert outcome_of(lambda: from_outside(user="ada")) == "user_limit_exceeded"


def test_a_task_from_outside_needs_no_plan_of_its_own(engine):
    """By its costs PostgreSQL would plan each of them, which takes longer than storing it."""
    for _ in range(PREPARE_AFTER + 3):
        from_outside(user="ada")
    plans = dict(fetch_all("SELECT statement, custom_plans FROM pg_prepared_statements"))
    assert {count for text, count in plans.items() if "INSERT" in text and admission._SPARE[1] in text} == {0}
