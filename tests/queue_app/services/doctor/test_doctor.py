"""Each test causes a real fault, where the servers allow it, and the doctor reports exactly this fault."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from queue_app.index import get_index
from queue_app.management.servers import report_eviction
from queue_app.models import IndexGeneration, MaintenanceJob, Queue, RuntimeSettings, Schedule, Task, Worker
from queue_app.registry import type_of
from queue_app.services import doctor
from queue_app.services.control.pause import pause, pause_schedule, resume_schedule
from queue_app.services.doctor import Finding, Level, schedules, servers, work
from queue_app.services.generation import condemn
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.watchdog import Watchdog
from queue_app.services.repair.workers import WorkerIdentity, register
from queue_app.services.schedules.edit import create_schedule
from queue_app.services.schedules.tick import run_due
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.upkeep.maintenance import run_overdue
from queue_app.sql import doctor as rows
from tests.support.engine import flush, put, put_many, take
from tests.support.factories import DeadLetterFactory
from tests.workers import chores

ECHO = type_of(chores.echo)


def only(findings) -> Finding:
    """Return the only finding."""
    [finding] = findings
    return finding


def assert_finding(check, level: Level, text: str) -> None:
    """Assert the only finding of a check, and that it has a hint unless it is ok."""
    finding = only(check())
    assert (finding.level, text in finding.message) == (level, True), finding
    assert bool(finding.hint) == (level is not Level.OK)


@contextmanager
def configured(**values: object) -> Iterator[None]:
    """Set options of the real server for the block."""
    client = get_index()._client
    names = {name: name.replace("_", "-") for name in values}
    before = {name: client.config_get(names[name])[names[name]] for name in values}
    try:
        for name, value in values.items():
            client.config_set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            client.config_set(names[name], value)


def register_live(worker, *, silent: float = 0, **options) -> None:
    """Register the row of a worker."""
    identity = WorkerIdentity(id=worker.id, name="w1", host="h", pid=7, process_identity="elsewhere", version="1")
    register(identity, worker.profile, concurrency=4, heartbeat_seconds=10)
    Worker.objects.filter(pk=worker.id).update(last_heartbeat_at=timezone.now() - timedelta(seconds=silent), **options)


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


def test_without_postgresql_the_rest_is_examined(engine, monkeypatch):
    from django.db import OperationalError  # noqa: PLC0415

    def broken(*_):
        raise OperationalError("connection to postgresql://me:hunter2@db failed")

    monkeypatch.setattr(doctor, "fetch_all", broken)
    findings = list(doctor.examine())
    assert "hunter2" not in str(findings)
    assert findings[0].check == "postgresql"
    assert "eviction" in {finding.check for finding in findings}


# -- the project ----------------------------------------------------------------------------------


def test_settings_that_do_not_pass_the_checks(settings):
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


def test_a_snapshot_that_is_held(engine, monkeypatch):
    monkeypatch.setattr(servers, "SNAPSHOT_WARN", 3600.0)
    assert_finding(servers.check_snapshots, Level.OK, "none")
    monkeypatch.setattr(servers, "SNAPSHOT_WARN", 0.0)
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()[0]
        assert_finding(servers.check_snapshots, Level.WARN, f"pid {pid} ")
        monkeypatch.setattr(servers, "SNAPSHOT_FAIL", 0.0)
        assert_finding(servers.check_snapshots, Level.FAIL, "idle in transaction")
    finally:
        other.rollback()
        other.close()


def test_a_table_full_of_dead_rows(rows, monkeypatch):
    monkeypatch.setattr(servers, "DEAD_ROWS", 50)
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
    used = index._client.info("memory")["used_memory"]
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
    import time  # noqa: PLC0415

    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    assert_finding(servers.check_clocks, level, "this machine")


# -- work -----------------------------------------------------------------------------------------


def test_an_index_that_was_lost(engine):
    assert_finding(work.check_index, Level.OK, "generation 1, ready")
    flush(engine)
    assert_finding(work.check_index, Level.FAIL, "missing")


def test_an_index_that_is_being_rebuilt(engine, monkeypatch):
    from queue_app.sql import snapshot  # noqa: PLC0415

    number = snapshot.raise_generation()
    assert_finding(work.check_index, Level.FAIL, f"carries generation {number - 1}, the rows {number}")
    engine.index.begin_generation(number)
    assert_finding(work.check_index, Level.WARN, "rebuilding, for 0 s now")
    monkeypatch.setattr(work, "REBUILD_SECONDS", -1.0)
    assert_finding(work.check_index, Level.FAIL, "rebuilding")


def test_an_index_that_is_damaged_again_and_again(engine):
    for _ in range(3):
        assert_finding(work.check_index, Level.OK, "ready for")
        assert condemn("a key has the wrong type")
        IndexGeneration.objects.update(condemned_at=timezone.now() - timedelta(seconds=60))
        rebuild()
    assert_finding(work.check_index, Level.WARN, "condemned 3 times in a row and built anew, last because: a key has")
    IndexGeneration.objects.update(condemned_at=timezone.now() - timedelta(minutes=11))
    assert_finding(work.check_index, Level.OK, "ready for")


def test_no_scheduler(engine):
    assert_finding(work.check_scheduler, Level.FAIL, "none leads")
    take_lead("me", 15)
    assert_finding(work.check_scheduler, Level.OK, "one leads")


def test_overdue_maintenance(engine):
    assert_finding(work.check_maintenance, Level.WARN, "promote never ran")
    run_overdue(every=True)
    assert_finding(work.check_maintenance, Level.OK, "on time")
    MaintenanceJob.objects.filter(name="promote").update(succeeded_at=timezone.now() - timedelta(hours=1))
    assert_finding(work.check_maintenance, Level.WARN, "promote 3,6")
    MaintenanceJob.objects.filter(name="promote").update(error="ValueError: no")
    assert_finding(work.check_maintenance, Level.FAIL, "promote: ValueError: no")


def test_schedules_that_are_late_or_fail(engine):
    assert_finding(schedules.check_schedules, Level.OK, "0 tick")
    now = timezone.now()
    for name in ("nightly", "hourly"):
        create_schedule(name, {"task_type": ECHO, "args": [1], "every": 60}, now=now - timedelta(minutes=30))
    later = now + timedelta(hours=1)
    Schedule.objects.filter(name="hourly").update(due_at=later, next_instant=later)
    assert_finding(schedules.check_schedules, Level.FAIL, "1 due and not run: nightly for 1,")
    # A scheduler that cannot let it tick puts it off.
    Schedule.objects.filter(name="nightly").update(due_at=now + timedelta(minutes=1))
    assert_finding(schedules.check_schedules, Level.FAIL, "nightly")
    run_due(now=now + timedelta(minutes=1))
    assert_finding(schedules.check_schedules, Level.OK, "2 tick")


def test_a_schedule_fails_until_it_succeeds_or_is_paused(engine):
    now = timezone.now()
    schedule = create_schedule("nightly", {"task_type": ECHO, "args": [1], "every": 3600}, now=now)
    for hour, outcome in enumerate(["failed", "completed", "failed", "dead_letter", "expired"]):
        assert_finding(schedules.check_schedules, Level.OK, "1 tick")
        schedule.ticks.create(instant=now + timedelta(hours=hour), at=now, task_id=uuid4(), outcome=outcome)
    schedule.ticks.create(instant=now + timedelta(hours=5), at=now, reason="Skipped, because the earlier one runs.")
    schedule.ticks.create(instant=now + timedelta(hours=6), at=now, task_id=uuid4())  # still runs
    assert_finding(schedules.check_schedules, Level.WARN, "1 failed 3 times in a row or more: nightly (3 times)")
    pause_schedule("nightly")
    assert_finding(schedules.check_schedules, Level.OK, "1 tick")
    resume_schedule("nightly")
    schedule.ticks.filter(outcome=None).update(outcome="completed", task_id=uuid4())
    assert_finding(schedules.check_schedules, Level.OK, "1 tick")


def test_workers_that_are_missing_silent_or_dead(engine):
    assert_finding(work.check_workers, Level.WARN, "none is active")
    put()
    assert_finding(work.check_workers, Level.FAIL, "tasks wait")
    worker = engine.worker()
    register_live(worker)
    assert_finding(work.check_workers, Level.OK, "active: 1, slots: 4")
    register_live(worker, silent=100)
    assert_finding(work.check_workers, Level.FAIL, "w1 (h, pid 7) for 100 s")
    register_live(worker, status="dead", stopped_at=timezone.now())
    assert_finding(work.check_workers, Level.WARN, "1 declared dead")


def test_a_task_past_its_deadline(engine):
    worker = engine.worker()
    register_live(worker)
    task_id = put()
    take(worker)
    Task.objects.filter(pk=task_id).update(deadline=timezone.now() - timedelta(minutes=5))
    assert_finding(work.check_workers, Level.FAIL, str(task_id))


def test_tasks_that_no_worker_can_run(engine):
    put()
    assert_finding(work.check_queues, Level.FAIL, "no worker serves it")
    worker = engine.worker("a")
    register_live(worker)
    assert_finding(work.check_queues, Level.OK, "1 task queued")
    put("b")
    put("a", capabilities=("gpu",))
    assert_finding(work.check_queues, Level.FAIL, "2 kinds that no worker can run: a (needs gpu), b")


def test_pauses(engine):
    put()
    pause("default", by="ann", reason="moving")
    assert_finding(work.check_queues, Level.WARN, "default is paused by ann")
    Queue.objects.update(paused=False)
    register_live(engine.worker())
    RuntimeSettings.objects.update_or_create(pk=1, defaults={"paused": True, "paused_at": timezone.now()})
    assert_finding(work.check_queues, Level.WARN, "all are paused")


def test_an_index_that_lags_is_reported_and_not_repaired(engine, monkeypatch):
    monkeypatch.setattr(work, "SETTLE_SECONDS", 0.0)
    ids = put_many(120)
    assert_finding(work.check_agreement, Level.OK, "have the same counts")
    engine.index.remove([task.ref for task in take(engine.worker(), 0)] or [])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM queue_app_task WHERE status = 'queued'")
        assert cursor.fetchone()[0] == len(ids)
    flush(engine)
    assert_finding(work.check_agreement, Level.WARN, "queued tasks: 120 in the rows, 0 in the index")
    assert engine.index.queues() == []


def test_many_deaths(engine, monkeypatch):
    monkeypatch.setattr(work, "DEATHS_PER_MINUTE", 1)
    assert_finding(work.check_deaths, Level.OK, "0 within")
    DeadLetterFactory.create_batch(6)
    assert_finding(work.check_deaths, Level.WARN, "6 tasks died")


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
