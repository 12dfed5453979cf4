"""Statements below Django's cursors, and the connections that they go over."""

import pytest
from django.db import connection, transaction
from django.db.utils import DataError

from queue_app.sql.database import fetch_all, fetch_prepared
from tests.support.engine import Side

pytestmark = pytest.mark.django_db(transaction=True)

ONE = [(1,)]
asks = pytest.mark.parametrize(
    "ask",
    [lambda: fetch_prepared(("SELECT 1", [])), lambda: fetch_prepared(("SELECT 0", []), ("SELECT 1", []))],
    ids=["prepared", "together"],
)


@asks
def test_a_connection_that_the_server_ended_is_replaced_at_its_first_use_in_a_request(ask, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    connection.close()
    assert ask() == ONE
    pid = fetch_all("SELECT pg_backend_pid()")[0][0]
    connection.close_if_unusable_or_obsolete()  # what the beginning of a request does
    assert Side(lambda: fetch_all("SELECT pg_terminate_backend(%s, 5000)", [pid])).result() == [(True,)]
    assert ask() == ONE
    assert fetch_all("SELECT pg_backend_pid()")[0][0] != pid


@asks
def test_a_silent_connection_is_not_checked(ask, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    connection.close()
    assert ask() == ONE
    connection.close_if_unusable_or_obsolete()
    monkeypatch.setattr(connection, "is_usable", None)
    assert ask() == ONE


@pytest.mark.parametrize("pooled", [False, True], ids=["pipelined", "as one text"])
def test_statements_that_go_together_succeed_or_fail_together(pooled, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", pooled)
    made = "SELECT to_regclass('tq_made') IS NOT NULL"
    with pytest.raises(DataError, match="division by zero"):
        fetch_prepared(("CREATE TEMPORARY TABLE tq_made ()", []), ("SELECT 1 / 0", []), ("SELECT 1", []))
    assert fetch_prepared(("SELECT 0", []), (made, [])) == [(False,)], "the connection is good for more"
    fetch_prepared(("CREATE TEMPORARY TABLE tq_made ()", []), (made, []))
    assert fetch_all(made) == [(True,)]
    connection.close()


@pytest.mark.parametrize("pooled", [False, True], ids=["pipelined", "as one text"])
def test_statements_that_go_together_join_the_callers_transaction(pooled, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", pooled)
    made = "SELECT to_regclass('tq_made') IS NOT NULL"
    with transaction.atomic():
        fetch_prepared(("CREATE TEMPORARY TABLE tq_made ()", []), (made, []))
        transaction.set_rollback(True)
    assert fetch_all(made) == [(False,)]
