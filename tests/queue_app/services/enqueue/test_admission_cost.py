"""What admission costs: nothing without limits, one round trip with them."""

import time
from statistics import median

import pytest
from django.db import connection, transaction

from queue_app.services.enqueue.store import enqueue
from queue_app.sql import admission, insert
from queue_app.sql.database import fetch_all
from queue_app.sql.prepared import PREPARE_AFTER
from tests.support.admission import from_outside, limit, outcome_of
from tests.support.engine import (
    new,
    put,
    put_many,
)


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


@pytest.mark.slow
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
