"""Each test causes a real fault, where the servers allow it, and the doctor reports exactly this fault."""

import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection

from queue_app.core.reasons import Finding, Level
from queue_app.diagnose import doctor, servers, work
from queue_app.diagnose.watchdog import Watchdog
from queue_app.index import get_index, redis_is_away
from queue_app.management.servers import report_eviction
from queue_app.models import Task
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.upkeep.maintenance import run_overdue
from queue_app.services.way import vote
from queue_app.sql import doctor as rows
from queue_app.sql.doctor import TableLock
from tests.support.engine import REFUSALS, index_refusing, leave_redis, put, put_many
from tests.support.faults import failing
from tests.support.findings import assert_finding, only, register_live
from tests.support.index_state import client_of
from tests.support.sessions import transaction_of_another


def test_a_low_limit_of_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 4096))
    assert_finding(doctor.check_open_files, Level.WARN, "may open 64")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert_finding(doctor.check_open_files, Level.OK, "any number")


@pytest.mark.parametrize(
    ("settings", "level", "text"),
    [
        ("jit = on; SET LOCAL jit_above_cost = 10", Level.WARN, "jit_above_cost is 10, so PostgreSQL compiles even"),
        ("jit = on; SET LOCAL jit_above_cost = 100000", Level.OK, "no short queries"),
        ("jit = on; SET LOCAL jit_above_cost = -1", Level.OK, "compiles no queries"),
        ("jit = off; SET LOCAL jit_above_cost = 10", Level.OK, "compiles no queries"),
    ],
)
def test_a_server_that_compiles_short_queries(db, settings, level, text):
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL {settings}")
    assert_finding(servers.check_jit, level, text)


@contextmanager
def configured(**values: object) -> Iterator[None]:
    """Set options of the real server for the block."""
    client = client_of(get_index())
    names = {name: name.replace("_", "-") for name in values}
    before = {name: client.config_get(names[name])[names[name]] for name in values}
    try:
        for name, value in values.items():
            client.config_set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            client.config_set(names[name], value)


# -- the whole ------------------------------------------------------------------------------------


def test_a_healthy_installation_fails_nothing(engine):
    take_lead("me", 15)
    Watchdog().run_once()
    run_overdue(every=True)
    register_live(engine.worker())
    put()
    findings = list(doctor.examine())
    assert [finding for finding in findings if finding.level is Level.FAIL] == []
    assert {finding.check for finding in findings} >= {"settings", "redis", "index", "scheduler", "tables", "agreement"}


def test_before_migrate_one_failure_says_what_to_do(rows):
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA still_empty")
        cursor.execute("SET search_path TO still_empty")
        try:
            failures = [finding for finding in doctor.examine() if finding.level is Level.FAIL]
        finally:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA still_empty CASCADE")
    assert [(finding.check, finding.hint) for finding in failures] == [("migrations", "Run `manage.py migrate`.")]


def test_without_redis_the_rest_is_examined(engine, settings):
    nowhere = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "nowhere": nowhere}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "nowhere"}
    findings = list(doctor.examine())
    assert next(f.check for f in findings if f.level is Level.FAIL) == "redis"
    assert {"migrations", "transactions"} <= {finding.check for finding in findings}
    assert "clocks" not in {finding.check for finding in findings}


def test_a_wrong_setting_is_the_only_failure(engine, settings):
    """The servers answer; no remedy may say that they should be started."""
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WORKER": {"CONCURENCY": 3}}
    findings = list(doctor.examine())
    assert {finding.check for finding in findings} == {"settings"}
    assert any("WORKER.CONCURENCY is not a setting" in finding.message for finding in findings)
    assert any("CONCURRENCY" in finding.hint for finding in findings)


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_redis_that_refuses_writes_is_the_only_failure(engine, cause):
    """Without writes no index is built."""
    take_lead("me", 15)
    run_overdue(every=True)
    with index_refusing(cause):
        failures = [f for f in doctor.examine() if f.level is Level.FAIL and f.check not in ("memory", "maintenance")]
    assert [(f.check, "refuses writes" in f.message, cause in f.message) for f in failures] == [("redis", True, True)]
    assert "runscheduler" not in failures[0].hint
    assert list(servers.check_writes()) == []


def of(check, findings):
    return [(finding.level, finding.message) for finding in findings if finding.check == check]


def test_while_claims_read_the_rows_a_redis_that_is_gone_fails_nothing(engine, settings):
    take_lead("me", 15)
    Watchdog().run_once()
    run_overdue(every=True)
    register_live(engine.worker())
    leave_redis()
    put()
    nowhere = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "nowhere": nowhere}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "nowhere"}
    redis_is_away.clear()  # the doctor is a process of its own
    findings = list(doctor.examine())
    assert [finding for finding in findings if finding.level is Level.FAIL] == []
    gone, why = of("redis", findings)
    assert (gone[0], "does not answer" in gone[1]) == (Level.WARN, True)
    assert (why[0], why[1].startswith("Redis has been away for")) == (Level.WARN, True)
    assert "Connection refused" in why[1]
    assert {"index", "queues", "agreement", "clocks"} - {finding.check for finding in findings} == {"clocks"}


@pytest.mark.parametrize("cause", REFUSALS)
def test_while_claims_read_the_rows_a_redis_that_refuses_writes_fails_nothing(engine, cause):
    take_lead("me", 15)
    run_overdue(every=True)
    with index_refusing(cause):
        leave_redis()
        findings = list(doctor.examine())
    assert {f.check for f in findings if f.level is Level.FAIL} <= {"memory", "maintenance", "stalls"}
    [refusal] = [f for f in findings if f.message.startswith("Redis refuses writes")]
    assert (refusal.level, cause in refusal.message) == (Level.WARN, True)


def test_a_worker_that_alone_cannot_reach_redis_is_named(engine):
    register_live(hand := engine.worker())
    register_live(engine.worker())
    assert list(work.check_way()) == []
    assert not vote(str(hand.id)).is_confirmed
    assert_finding(work.check_way, Level.WARN, "cannot be reached by w1 (h, pid 7), which stands by")


def test_processes_with_another_index_are_named(engine, settings):
    assert list(work.check_way()) == []
    settings.TASKQUEUE = {**settings.TASKQUEUE, "INDEX": "rows"}
    assert_finding(work.check_way, Level.WARN, "claims use Redis, but INDEX is 'rows' here")
    assert rebuild() is not None
    assert list(work.check_way()) == []
    settings.TASKQUEUE = {**settings.TASKQUEUE, "INDEX": "redis"}
    assert_finding(work.check_way, Level.WARN, "claims use the rows, but INDEX is 'redis' here")


def test_without_postgresql_the_rest_is_examined(engine):
    with failing(doctor, "fetch_all", OperationalError("connection to postgresql://me:hunter2@db failed")):
        findings = list(doctor.examine())
    assert "hunter2" not in str(findings)
    assert findings[0].check == "postgresql"
    assert "eviction" in {finding.check for finding in findings}


# -- the project ----------------------------------------------------------------------------------


def test_settings_that_do_not_pass_the_checks(settings, known_tasks):
    known_tasks["tests.calls_back"] = SimpleNamespace(on_failure="tests.nowhere.nothing")
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WORKR": {}}
    finding = next(iter(doctor.check_settings()))
    assert (finding.level, "WORKR" in finding.message, "Did you mean" in finding.hint) == (Level.FAIL, True, True)


def test_a_cache_that_shares_the_database_of_the_index(settings):
    assert_finding(doctor.check_cache_alias, Level.OK, "'default'")
    settings.CACHES = {**settings.CACHES, "pages": settings.CACHES["default"]}
    assert_finding(doctor.check_cache_alias, Level.WARN, "'pages'")


def test_the_runworker_of_another_app(monkeypatch):
    assert_finding(doctor.check_commands, Level.OK, "runworker")
    monkeypatch.setattr(doctor, "get_commands", lambda: {"runworker": "channels", "runscheduler": "queue_app"})
    assert_finding(doctor.check_commands, Level.FAIL, "the command of channels")


# -- PostgreSQL -----------------------------------------------------------------------------------


def test_an_isolation_level_that_is_not_read_committed(engine):
    assert_finding(servers.check_server, Level.OK, "read committed")
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        try:
            assert_finding(servers.check_server, Level.FAIL, "repeatable read")
        finally:
            cursor.execute("RESET default_transaction_isolation")


@pytest.mark.parametrize(
    ("setting", "level", "words"),
    [
        ("default_transaction_read_only = on", Level.FAIL, "is read-only"),
        ("synchronous_commit = off", Level.WARN, "synchronous_commit is off"),
    ],
)
def test_a_server_that_refuses_writes_or_forgets_them(engine, setting, level, words):
    with connection.cursor() as cursor:
        cursor.execute(f"SET {setting}")
        try:
            assert_finding(servers.check_server, level, words)
        finally:
            cursor.execute(f"RESET {setting.partition(' ')[0]}")


def test_a_migration_that_was_not_applied(engine):
    assert_finding(servers.check_migrations, Level.OK, "all")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'queue_app' AND name LIKE '0002%' RETURNING name")
        name = cursor.fetchone()[0]
    try:
        assert_finding(servers.check_migrations, Level.FAIL, name)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('queue_app', %s, now())", [name])


def test_a_snapshot_that_is_held(engine, override):
    override(servers, SNAPSHOT_WARN=3600.0)
    assert_finding(servers.check_snapshots, Level.OK, "none")
    override(servers, SNAPSHOT_WARN=0.0)
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()[0]
        assert_finding(servers.check_snapshots, Level.WARN, f"pid {pid} ")
        override(servers, SNAPSHOT_FAIL=0.0)
        assert_finding(servers.check_snapshots, Level.FAIL, "idle in transaction")
    finally:
        other.rollback()
        other.close()


def test_a_locked_table_is_reported_instead_of_waiting_for_it(engine, override):
    assert list(servers.check_locks()) == []
    override(servers, REPORTED_SECONDS=0.0)
    with transaction_of_another("LOCK TABLE queue_app_task IN ACCESS EXCLUSIVE MODE") as pid:
        findings = list(doctor.examine())
    [locked] = [finding for finding in findings if finding.check == "locks"]
    assert (locked.level, locked.message.startswith("queue_app_task is locked for ")) == (Level.FAIL, True)
    assert f"pid {pid} (" in locked.message
    assert f"pg_terminate_backend({pid})" in locked.hint
    assert "the check failed" not in str(findings), "no check waited for the lock"


def test_a_lock_that_only_writers_wait_for_is_a_warning(engine, override):
    override(servers, REPORTED_SECONDS=0.0)
    with transaction_of_another("LOCK TABLE queue_app_task IN SHARE MODE") as pid:
        assert_finding(servers.check_locks, Level.WARN, f"nothing can write it: pid {pid} ")


def test_a_lock_of_a_session_that_postgresql_hides_is_reported(engine, override):
    """The queue's role sees neither the age nor the statement of another role's session."""
    override(servers, REPORTED_SECONDS=0.0)
    with (
        transaction_of_another("LOCK TABLE queue_app_task IN ACCESS EXCLUSIVE MODE") as pid,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE ROLE queue_app_stranger")
        cursor.execute("SET ROLE queue_app_stranger")
        try:
            assert_finding(servers.check_locks, Level.FAIL, f"so nothing can read or write it: pid {pid} (")
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP ROLE queue_app_stranger")


def test_a_lock_that_is_waited_for_names_the_session_in_its_way(engine, override, monkeypatch):
    override(servers, REPORTED_SECONDS=0.0)
    waits = TableLock("queue_app_task", 7, "psql", "active", "ALTER TABLE  queue_app_task", 8.0, False, True, [9])
    monkeypatch.setattr(rows, "table_locks", lambda _seconds: [waits])
    finding = only(servers.check_locks())
    assert finding.message == (
        "pid 7 (psql, active, ALTER TABLE queue_app_task) has waited for 8 s to lock queue_app_task,"
        " and nothing can read or write it meanwhile; it waits for pid 9"
    )
    assert "pg_terminate_backend(9)" in finding.hint


def test_a_table_full_of_dead_rows(rows, override):
    override(servers, DEAD_ROWS=50)
    put_many(200)
    Task.objects.update(user="x")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
    findings = list(servers.check_tables())
    assert any("queue_app_task " in f.message and f.level is Level.WARN for f in findings), findings


def test_autovacuum_switched_off(rows):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE queue_app_taskresult SET (autovacuum_enabled = false)")
        try:
            assert_finding(servers.check_tables, Level.FAIL, "queue_app_taskresult")
        finally:
            cursor.execute("ALTER TABLE queue_app_taskresult RESET (autovacuum_enabled)")


# -- Redis ----------------------------------------------------------------------------------------


def found(name: str) -> Finding:
    """Return the finding of ``check_redis`` with this name."""
    return only(finding for finding in servers.check_redis() if finding.check == name)


def test_the_server_as_it_is(index):
    assert [f.level for f in servers.check_redis() if f.check != "memory"] == [Level.OK] * 3


@pytest.mark.parametrize(("policy", "level"), [("volatile-lru", Level.WARN), ("allkeys-lru", Level.WARN)])
def test_a_policy_that_drops_keys(index, policy, level):
    with configured(maxmemory_policy=policy):
        assert found("eviction").level is level


def test_nearly_full_memory(index):
    used = client_of(index).info("memory")["used_memory"]
    with configured(maxmemory=int(used * 1.25)):
        assert found("memory").level is Level.WARN
        assert "of maxmemory" in found("memory").message
        with configured(maxmemory_policy="allkeys-lru"):
            assert found("eviction").level is Level.FAIL


def test_persistence(index, settings):
    with configured(save=""):
        assert "none: after a restart the index is rebuilt" in found("persistence").message
        settings.TASKQUEUE = {**settings.TASKQUEUE, "REQUESTS": {"ENABLED": True}}
        assert found("persistence").level is Level.WARN
    with configured(save="3600 1"):
        assert found("persistence").message.startswith("snapshots")


@pytest.mark.parametrize(("ahead", "level"), [(5, Level.WARN), (-3600, Level.FAIL)])
def test_a_clock_that_is_wrong(engine, monkeypatch, ahead, level):
    assert_finding(servers.check_clocks, Level.OK, "apart")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    assert_finding(servers.check_clocks, level, "this machine")


def test_a_direct_connection_is_no_pooler(engine):
    assert_finding(servers.check_pooler, Level.OK, "the server itself")
    assert not rows.shares_servers_between_transactions(2)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
def test_workers_and_schedulers_say_at_their_start_that_keys_may_be_dropped(index, caplog, policy):
    with configured(maxmemory_policy=policy, maxmemory=2**30):
        report_eviction()
    (error,) = caplog.records
    assert error.levelno == logging.ERROR
    assert policy in error.getMessage()
    assert "Set maxmemory-policy noeviction" in error.getMessage()
    report_eviction()
    assert len(caplog.records) == 1
