"""Statements below Django's cursors, and the connections that they go over."""

from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.db.utils import DataError

from queue_app.sql.database import LOOK_UP, fetch_all, fetch_prepared
from queue_app.sql.prepared import PREPARE_AFTER
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


#: The settings of this session, without those that only remember others.
SETTINGS = "SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'taskqueue.%%' AND name NOT LIKE 'transaction_%%'"


@pytest.mark.parametrize("begun", ["atomic", "without autocommit"])
@pytest.mark.parametrize("pooled", [False, True], ids=["pipelined", "as one text"])
def test_settings_for_our_statements_end_with_them_in_the_callers_transaction(pooled, begun, monkeypatch):
    """Without JIT, which would compile the plan of a short query; but the caller's queries are the caller's."""
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", pooled)
    ours = (LOOK_UP, ("SELECT current_setting('jit'), current_setting('enable_seqscan')", []))
    for _ in range(PREPARE_AFTER + 1):
        assert fetch_prepared(*ours) == [("off", "off")]
    before = fetch_all(SETTINGS)
    with transaction.atomic() if begun == "atomic" else _manual():
        fetch_all("SELECT set_config('enable_hashjoin', 'off', true)")
        own = fetch_all(SETTINGS)
        for _ in range(PREPARE_AFTER + 2):
            assert fetch_prepared(*ours) == [("off", "off")]
            assert fetch_all(SETTINGS) == own
    assert fetch_all(SETTINGS) == before


@contextmanager
def _manual():
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
