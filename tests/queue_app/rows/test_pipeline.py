"""Prepared statements in one write: what the server refuses or forgets, and what does not fit into one write."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection
from psycopg import errors

from queue_app.rows import pipeline
from queue_app.rows.pipeline import fetch_last_prepared

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def raw():
    """Return a connection with nothing prepared."""
    connection.close()
    connection.ensure_connection()
    yield connection.connection
    connection.close()


def names(raw: psycopg.Connection) -> int:
    return raw.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0]


def test_a_statement_is_prepared_once_for_each_types_of_its_parameters(raw):
    for value in (1, 2, 100_000, 3, 200_000):
        assert fetch_last_prepared(raw, [("SELECT %s + 1", [value])]) == [(value + 1,)]
    assert names(raw) == 2


def test_values_of_many_kinds_arrive(raw):
    found = fetch_last_prepared(raw, [("SELECT %s::text, %s::text[], %s::int", ["größer", ["a", "b"], None])])
    assert found == [("größer", ["a", "b"], None)]
    assert fetch_last_prepared(raw, [("SELECT generate_series(1, 3)", ())]) == [(1,), (2,), (3,)]
    assert fetch_last_prepared(raw, [("SELECT 1 WHERE %s", [False])]) == []
    assert fetch_last_prepared(raw, [("CREATE TEMPORARY TABLE tq_made ()", ())]) == []


def test_what_others_made_the_server_forget_is_prepared_again(raw):
    ask = [("SELECT %s::int", [1]), ("SELECT %s::int", [2])]
    assert fetch_last_prepared(raw, ask) == [(2,)]
    raw.execute("DEALLOCATE ALL")
    assert fetch_last_prepared(raw, ask) == [(2,)]
    raw.execute("DEALLOCATE ALL")
    with raw.transaction(), pytest.raises(errors.InvalidSqlStatementName):
        fetch_last_prepared(raw, ask)  # the transaction is lost, so nobody can try again
    assert fetch_last_prepared(raw, ask) == [(2,)]


@pytest.mark.parametrize("level", [None, psycopg.IsolationLevel.REPEATABLE_READ])
def test_outside_of_autocommit_they_are_part_of_a_transaction_that_begins_with_them(raw, level):
    isolation = [("SELECT current_setting('transaction_isolation')", ())]
    raw.isolation_level = level
    raw.autocommit = False
    made = [("CREATE TEMPORARY TABLE tq_made ()", ()), ("SELECT to_regclass('tq_made') IS NOT NULL", ())]
    assert fetch_last_prepared(raw, made) == [(True,)]
    assert raw.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert fetch_last_prepared(raw, isolation) == [("read committed" if level is None else "repeatable read",)]
    raw.rollback()
    assert fetch_last_prepared(raw, made[1:]) == [(False,)]
    raw.rollback()
    raw.autocommit = True


def test_a_statement_behind_one_that_was_refused_is_good_the_next_time(raw):
    second = ("SELECT %s::int", [7])
    for _ in range(2):
        with pytest.raises(errors.DivisionByZero):
            fetch_last_prepared(raw, [("SELECT 1 / %s::int", [0]), second])
    assert fetch_last_prepared(raw, [("SELECT 1 / %s::int", [1]), second]) == [(7,)]


def test_more_than_a_socket_holds_goes_both_ways(raw):
    text = "x" * 20_000_000
    assert fetch_last_prepared(raw, [("SELECT %s::text", [text]), ("SELECT %s::text", [text])]) == [(text,)]


def test_only_so_many_are_prepared(raw, monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_PREPARED", 3)
    for number in range(6):
        assert fetch_last_prepared(raw, [(f"SELECT {number} + %s", [1])]) == [(number + 1,)]
    assert names(raw) == 3


def test_a_connection_that_was_cut_off_in_the_middle_is_closed(raw):
    with pytest.raises(psycopg.OperationalError):
        fetch_last_prepared(raw, [("SELECT pg_terminate_backend(pg_backend_pid())", ()), ("SELECT 1", ())])
    assert raw.closed
