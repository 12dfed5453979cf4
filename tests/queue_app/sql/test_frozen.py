"""A process that freezes within a transaction loses its locks, so others go on."""

import threading
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection

from queue_app.models import ScheduleTick, Task
from queue_app.schedules import tick
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.tick import run_due
from queue_app.sql import database, snapshot
from queue_app.sql.database import atomic, fetch_all
from tests.support.engine import Side, put, take
from tests.support.waiting import until
from tests.workers import chores

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def soon(override) -> None:
    """Let PostgreSQL take a process for frozen after a moment."""
    override(database, FROZEN_SECONDS=0.2)


def test_a_scheduler_that_freezes_within_a_tick_loses_its_locks(engine, monkeypatch):
    create_schedule("minutely", {"task_type": chores.echo.module_path, "args": [1], "every": 60}, now=NOON)
    frozen, thaws = threading.Event(), threading.Event()
    handle = tick._handle

    def freeze(*args):
        monkeypatch.setattr(tick, "_handle", handle)  # the other scheduler's
        frozen.set()
        assert thaws.wait(60)
        return handle(*args)

    monkeypatch.setattr(tick, "_handle", freeze)
    first = Side(lambda: run_due(now=NOON + timedelta(minutes=1)))
    assert frozen.wait(60)
    until(lambda: run_due(now=NOON + timedelta(minutes=1)) == 1, "PostgreSQL ends the transaction of the frozen one")
    thaws.set()
    with pytest.raises(DatabaseError, match="idle-in-transaction"):
        first.result()
    assert ScheduleTick.objects.get().task_id == Task.objects.get().id


@pytest.fixture
def role(engine):
    """A role for schedulers that is not the role of the workers."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE planner; GRANT ALL ON ALL TABLES IN SCHEMA public TO planner")
        cursor.execute("CREATE ROLE runner LOGIN PASSWORD 'runner'")
        yield
        cursor.execute("RESET ROLE; DROP OWNED BY planner; DROP ROLE planner; DROP ROLE runner")


def test_a_scheduler_of_another_role_is_told_what_to_grant(role, override):
    override(snapshot, LOCK_WAIT="100ms")
    workers = connection.get_connection_params() | {"user": "runner", "password": "runner"}
    with closing(connection.get_new_connection(workers)) as raw:
        raw.autocommit = False
        raw.execute(f"SELECT pg_advisory_xact_lock_shared({database.GENERATION_LOCK})")
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE planner")
            with pytest.raises(OperationalError, match="GRANT runner TO planner"):
                snapshot.abandon(1)
            cursor.execute("RESET ROLE; GRANT runner TO planner; SET ROLE planner")

        def is_raised() -> bool:
            with suppress(OperationalError):
                return snapshot.abandon(1)
            return False

        until(is_raised, "the session of the frozen grant is ended")
        with pytest.raises(psycopg.errors.AdminShutdown):
            raw.execute("SELECT 1")


@pytest.mark.parametrize("is_complete", [True, False], ids=["in a transaction", "in the middle of a pipeline"])
def test_a_rebuild_ends_a_grant_whose_worker_has_gone(engine, override, is_complete):
    """Its session would keep the lock until PostgreSQL notices: by the defaults of Linux, for two hours."""
    override(snapshot, LOCK_WAIT="100ms")
    with closing(connection.get_new_connection(connection.get_connection_params())) as raw:
        lock = f"SELECT pg_advisory_xact_lock_shared({database.GENERATION_LOCK})"
        if is_complete:
            raw.autocommit = False
            raw.execute(lock)
        else:
            raw.pgconn.enter_pipeline_mode()
            raw.pgconn.send_query_params(lock.encode(), None)
            raw.pgconn.send_flush_request()
            raw.pgconn.flush()

        def is_raised() -> bool:
            try:
                snapshot.abandon(1)
            except OperationalError:  # the grant may still be under way
                return False
            return True

        def holds_the_lock() -> bool:
            return bool(
                fetch_all("SELECT FROM pg_locks WHERE pid = %s AND locktype = 'advisory'", [raw.info.backend_pid])
            )

        before = snapshot.generation()
        until(holds_the_lock, "the grant has the lock")
        override(database, FROZEN_SECONDS=60.0)
        assert not is_raised()
        override(database, FROZEN_SECONDS=0.2)
        until(is_raised, "the generation can be changed")
        assert snapshot.generation() == before


def test_a_rebuild_ends_no_session_that_does_nothing(engine):
    with closing(connection.get_new_connection(connection.get_connection_params())) as idle:
        until(
            lambda: fetch_all(
                "SELECT FROM pg_stat_activity WHERE pid = %s AND state_change < clock_timestamp() - interval '0.3 s'",
                [idle.info.backend_pid],
            ),
            "the session has been idle for longer than a frozen one may be",
        )
        snapshot.raise_generation()
        idle.execute("SELECT 1")


def test_grants_go_on_when_a_rebuild_freezes_with_the_lock(engine):
    worker = engine.worker()
    put()

    def freeze() -> None:
        with atomic():
            snapshot._lock_generation()
            assert Side(lambda: take(worker, 1)).result(), "PostgreSQL has ended the frozen transaction"
            fetch_all("SELECT 1")

    with pytest.raises(DatabaseError, match="idle-in-transaction"):
        freeze()
    connection.close()
