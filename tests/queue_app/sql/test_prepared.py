"""Statements run below the driver's cursors: the same answers and errors, prepared, and nothing left behind."""

import datetime as dt
import gc
import importlib.util
import signal
import uuid
import weakref

import psycopg
import pytest
from django.db import DataError, OperationalError, ProgrammingError, connection, transaction

from queue_app.sql import prepared
from queue_app.sql.database import execute, fetch_all, fetch_prepared
from queue_app.sql.prepared import PREPARE_AFTER, Declined

pytestmark = pytest.mark.django_db(transaction=True)

NOW = dt.datetime(2026, 3, 1, 12, 30, 15, 120_000, dt.UTC)
VALUES = [
    ("text", "plain"),
    ("text", 'it\'s \\ "quoted" \t\n {a,b} %s $1 NULL ü 漢 🜁'),
    ("text", ""),
    ("text", None),
    ("int8", -(2**53)),
    ("int2", 7),
    ("float8", 1e-07),
    ("float8", float("inf")),
    ("bool", True),
    ("bool", False),
    ("uuid", uuid.UUID(int=2**100 + 1)),
    ("timestamptz", NOW),
    ("timestamptz", NOW.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=45)))),
    ("timestamptz", dt.datetime(1901, 1, 1, tzinfo=dt.UTC)),
    ("uuid[]", [uuid.UUID(int=1), uuid.UUID(int=2)]),
    ("uuid[]", []),
    ("int[]", [1, None, -3]),
    ("float8[]", [0.5, None]),
    ("timestamptz[]", [NOW, None]),
    ("text[]", ["", "NULL", "null", None, "a,b", "{x}", 'say "hi"', "back\\slash", " ü ", "line\nbreak"]),
    ("jsonb", '{"a": [1, "ü"]}'),
]


@pytest.fixture
def raw():
    """The driver's connection, on which nothing is prepared yet."""
    connection.close()
    connection.ensure_connection()
    yield connection.connection
    connection.close()


def warmed(sql, params=()):
    """Return the answer of a statement that has been run so often that it is prepared."""
    for _ in range(PREPARE_AFTER):
        fetch_prepared((sql, params))
    return fetch_prepared((sql, params))


def names():
    """Return the texts of what the server has prepared for this connection in our way."""
    return [text for (text,) in fetch_all("SELECT statement FROM pg_prepared_statements WHERE name LIKE 'taskqueue%%'")]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda value: str(value)[:20])
def test_values_arrive_and_come_back_as_through_a_cursor(raw, kind, value):
    sql = f"SELECT %s::{kind}"
    expected = psycopg.Cursor(raw).execute(sql, [value]).fetchall()
    assert warmed(sql, [value]) == expected
    assert names() == [sql.replace("%s", "$1")]


def test_a_statement_is_prepared_once_it_is_run_often(raw):
    for _ in range(PREPARE_AFTER):
        assert fetch_prepared(("SELECT %s::int", [1])) == [(1,)]
        assert not names()
    assert fetch_prepared(("SELECT %s::int", [2])) == [(2,)]
    assert fetch_prepared(("SELECT %s::int", [3])) == [(3,)]
    assert len(names()) == 1


@pytest.mark.parametrize(
    "value",
    ["with\x00nul", b"bytes", dt.datetime(2026, 1, 1), {"a": 1}, [object()], ["a\x00b"]],  # noqa: DTZ001
    ids=["NUL", "bytes", "no zone", "dict", "objects", "NUL in a list"],
)
def test_unsupported_values_are_left_to_a_cursor(raw, value):
    warmed("SELECT %s::text", ["x"])
    with pytest.raises(Declined):
        prepared.run(raw, [("SELECT %s::text", [value])])
    assert raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_nul_character_is_refused_not_cut_off(raw):
    warmed("SELECT %s::text", ["x"])
    with pytest.raises(DataError, match="NUL"):
        fetch_prepared(("SELECT %s::text", ["with\x00nul"]))


def test_a_statement_is_prepared_again_after_the_server_forgot_it(raw):
    warmed("SELECT %s::int", [1])
    execute("DISCARD ALL")
    assert fetch_prepared(("SELECT %s::int", [2])) == [(2,)]
    assert warmed("SELECT %s::int", [3]) == [(3,)]


@pytest.mark.parametrize("prepares", [None, 2], ids=["ours", "the driver's own"])
def test_a_prepared_statement_outlives_a_rollback(raw, prepares):
    """After one the driver has the server forget all that is prepared, if it prepared something itself."""
    raw.prepare_threshold = prepares
    warmed("SELECT %s::int", [1])
    for _ in range(PREPARE_AFTER):
        psycopg.Cursor(raw).execute("SELECT %s::text", ["by the driver"])
    with transaction.atomic():
        fetch_all("SELECT 1")
        transaction.set_rollback(True)
    with transaction.atomic():
        fetch_all("SELECT 1")
        assert fetch_prepared(("SELECT %s::int", [2])) == [(2,)]
    assert len(names()) == (prepares is None)


def test_deallocating_all_statements_breaks_one_transaction_at_most(raw):
    warmed("SELECT %s::int", [1])
    execute("DEALLOCATE ALL")
    with transaction.atomic():
        fetch_all("SELECT 1")
        with pytest.raises(ProgrammingError, match="does not exist"):
            fetch_prepared(("SELECT %s::int", [2]))
        transaction.set_rollback(True)
    with transaction.atomic():
        fetch_all("SELECT 1")
        assert fetch_prepared(("SELECT %s::int", [3])) == [(3,)]


def test_a_changed_table_is_read_as_it_is_now(raw):
    execute("CREATE TEMPORARY TABLE tq_changes AS SELECT 1 AS a")
    assert warmed("SELECT * FROM tq_changes") == [(1,)]
    execute("ALTER TABLE tq_changes ADD COLUMN b text DEFAULT 'new'")
    assert fetch_prepared(("SELECT * FROM tq_changes", [])) == [(1, "new")]


def test_a_prepared_statement_joins_the_callers_transaction(raw):
    execute("CREATE TEMPORARY TABLE tq_kept (a int)")
    insert = "INSERT INTO tq_kept VALUES (%s) RETURNING a"
    warmed(insert, [1])
    with transaction.atomic():
        assert fetch_prepared((insert, [2])) == [(2,)], "the first statement, which begins it"
        assert fetch_prepared((insert, [3])) == [(3,)]
        fetch_prepared((insert, [4]), (insert, [5]))
        transaction.set_rollback(True)
    assert fetch_all("SELECT count(*) FROM tq_kept WHERE a > 1") == [(0,)]


@pytest.mark.parametrize("together", [False, True], ids=["one", "together"])
def test_an_error_is_the_same_as_through_a_cursor_and_the_connection_is_good_for_more(raw, together):
    def divide(by):
        last = ("SELECT 1 / %s::int", [by])
        return fetch_prepared(("SELECT %s::int", [0]), last) if together else fetch_prepared(last)

    for _ in range(PREPARE_AFTER + 2):
        divide(1)
    with pytest.raises(DataError, match="division by zero") as caught:
        divide(0)
    assert caught.value.__cause__.sqlstate == "22012"
    assert divide(1) == [(1,)]
    assert len(names()) == 1 + together


@pytest.mark.parametrize(("name", "value"), [("datestyle", "German"), ("client_encoding", "latin1")])
def test_a_connection_with_other_formats_is_read_by_cursors(raw, name, value):
    assert warmed("SELECT %s::timestamptz, %s::text", [NOW, "ü"]) == [(NOW, "ü")]
    execute("SELECT set_config(%s, %s, false)", [name, value])
    with pytest.raises(Declined):
        prepared.run(raw, [("SELECT %s::timestamptz, %s::text", [NOW, "ü"])])
    assert fetch_prepared(("SELECT %s::text", ["ü"])) == [("ü",)]
    execute("SELECT set_config('datestyle', 'ISO', false), set_config('client_encoding', 'UTF8', false)")
    assert fetch_prepared(("SELECT %s::timestamptz, %s::text", [NOW, "ü"])) == [(NOW, "ü")]


@pytest.mark.parametrize("together", [False, True], ids=["one", "together"])
def test_an_interruption_of_the_wait_cancels_the_statement(raw, together):
    def nap(seconds):
        last = ("SELECT 1 FROM pg_sleep(%s::float8)", [seconds])
        return fetch_prepared(("SELECT %s::int", [0]), last) if together else fetch_prepared(last)

    def interrupt(*_):
        raise KeyboardInterrupt

    for _ in range(PREPARE_AFTER + 2):
        nap(0.0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            nap(60.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert nap(0.0) == [(1,)]


def test_parameters_and_results_larger_than_a_socket_buffer(raw):
    text = "x" * 20_000_000
    ask = ("SELECT %s::text", [text]), ("SELECT %s::text || 'y'", [text])
    for _ in range(PREPARE_AFTER):
        fetch_prepared(("SELECT %s::text", ["a"]), ("SELECT %s::text || 'y'", ["b"]))
    assert fetch_prepared(*ask) == [(text + "y",)]
    assert len(names()) == 2


def test_a_connection_that_is_cut_off_in_the_middle_is_closed(raw):
    ask = ("SELECT pg_terminate_backend(CASE WHEN %s THEN pg_backend_pid() ELSE 0 END)", [False]), ("SELECT 1", [])
    for _ in range(PREPARE_AFTER + 1):
        fetch_prepared(*ask)
    with pytest.raises(OperationalError):
        fetch_prepared((ask[0][0], [True]), ask[1])
    assert raw.closed


def test_an_unexpected_driver_gets_cursors(raw, monkeypatch):
    monkeypatch.setattr(prepared, "_execute", None)
    assert warmed("SELECT %s::int", [1]) == [(1,)]
    assert not names()


def test_cached_statements_do_not_keep_a_connection_alive():
    """Under ASGI each request has a thread and a connection, which closes as both are forgotten."""
    other = connection.get_new_connection(connection.get_connection_params())
    other.autocommit = True
    for _ in range(PREPARE_AFTER):
        with pytest.raises(Declined):
            prepared.run(other, [("SELECT %s::timestamptz", [NOW])])
    assert prepared.run(other, [("SELECT %s::timestamptz", [NOW])]) == [(NOW,)]
    seen = weakref.ref(other)
    other.close()
    del other
    gc.collect()
    assert seen() is None


def test_prepared_statements_are_forgotten_with_their_connection(raw):
    warmed("SELECT %s::int", [1])
    connection.close()
    assert fetch_prepared(("SELECT %s::int", [2])) == [(2,)]
    assert not names()


def test_two_processes_behind_a_pooler_do_not_share_a_name(raw):
    """A pooler gives the server of one process to the next; a second copy of the module stands for that process."""
    assert warmed("SELECT %s::int", [1]) == [(1,)]
    specification = importlib.util.spec_from_file_location("prepared_elsewhere", prepared.__file__)
    elsewhere = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(elsewhere)
    for _ in range(PREPARE_AFTER):
        with pytest.raises(elsewhere.Declined):
            elsewhere.run(raw, [("SELECT %s::text", ["a"])])
    assert elsewhere.run(raw, [("SELECT %s::text", ["a"])]) == [("a",)]
    assert fetch_prepared(("SELECT %s::int", [2])) == [(2,)]
    assert len(names()) == 2
