"""System checks, by their ids."""

import ast
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import OperationalError, ProgrammingError, connection
from django.test import override_settings
from psycopg import IsolationLevel

from queue_app import checks, registry, signals, telemetry
from queue_app.diagnose import doctor
from queue_app.exceptions import IndexDamaged, IndexUnavailable
from queue_app.hooks import callbacks
from tests.workers import chores


def ids(messages) -> list[str]:
    """Return the ids of the messages."""
    return [message.id for message in messages]


def test_the_test_project_has_no_problems():
    assert run_checks(tags=["taskqueue"]) == []


def test_problems_of_the_settings_have_suggestions():
    with override_settings(TASKQUEUE={"WORKER": {"CONCURENCY": 1}, "KEY_PREFIX": ""}):
        messages = checks.check_settings()
    assert ids(messages) == ["queue_app.E001", "queue_app.E001"]
    assert "WORKER.CONCURENCY" in messages[0].msg
    assert "CONCURRENCY" in messages[0].hint


def test_a_task_module_that_cannot_be_imported_is_one_error(tmp_path, monkeypatch):
    (tmp_path / "shop_with_bug").mkdir()
    (tmp_path / "shop_with_bug" / "__init__.py").touch()
    (tmp_path / "shop_with_bug" / "tasks.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "shop_with_bug"]):
        (found,) = run_checks(tags=["taskqueue"])
        (finding,) = doctor.check_settings()
    assert found.id == "queue_app.E023"
    assert found.msg.startswith(
        "The task module shop_with_bug.tasks cannot be imported: ModuleNotFoundError: No module"
    )
    assert found.msg.endswith("tasks.py, line 1)")
    assert "shop_with_bug.tasks" in finding.message


@pytest.mark.parametrize("name", ["task", "workers.tasks"])  # a typo, and a path with its app
def test_a_task_module_that_no_app_has_causes_a_warning(name):
    with override_settings(TASKQUEUE={"TASK_MODULES": ["tasks", name]}):
        (found,) = run_checks(tags=["taskqueue"])
    assert (found.id, repr(name) in found.msg) == ("queue_app.W004", True)


@pytest.mark.parametrize(("leader", "due", "wrong"), [(15, 0.5, False), (2, 1, True), (2.1, 1, False), (1, 5, True)])
def test_leadership_must_outlast_the_interval(leader, due, wrong):
    with override_settings(TASKQUEUE={"SCHEDULER": {"LEADER_SECONDS": leader, "DUE_SECONDS": due}}):
        assert ids(checks.check_settings()) == ["queue_app.E006"] * wrong


def test_types_need_typeguard(monkeypatch):
    with override_settings(TASKQUEUE={"TYPED_ARGUMENTS": True}):
        assert checks.check_typed_arguments() == []
        monkeypatch.setattr(checks, "find_spec", lambda _name: None)
        assert ids(checks.check_typed_arguments()) == ["queue_app.E022"]
    assert checks.check_typed_arguments() == []


def test_times_need_a_zone():
    with override_settings(USE_TZ=False):
        assert ids(run_checks(tags=["taskqueue"])) == ["queue_app.E008"]
    assert checks.check_time_zone() == []


@pytest.mark.parametrize(
    ("engine", "wrong"),
    [
        ("django.db.backends.postgresql", False),
        ("django.contrib.gis.db.backends.postgis", False),
        ("django_prometheus.db.backends.postgresql", False),
        ("django.db.backends.sqlite3", True),
        ("django.db.backends.mysql", True),
        ("", True),
    ],
)
def test_the_rows_need_postgresql(databases, engine, wrong):
    databases["rows"] = {"ENGINE": engine}
    with override_settings(TASKQUEUE={"DATABASE_ALIAS": "rows"}):
        assert ids(checks.check_database()) == ["queue_app.E002"] * wrong


class RowsRouter:
    """Sends the models of the queue to the database `rows`."""

    def db_for_write(self, model, **hints):
        return "rows" if model._meta.app_label == "queue_app" else None


@pytest.mark.parametrize(("alias", "routers"), [("rows", []), ("default", [RowsRouter()])])
def test_the_models_and_the_alias_name_one_database(alias, routers):
    with override_settings(TASKQUEUE={"DATABASE_ALIAS": alias}, DATABASE_ROUTERS=routers):
        [message] = checks.check_router()
    assert message.id == "queue_app.E009"
    assert repr(alias) in message.hint
    with override_settings(TASKQUEUE={"DATABASE_ALIAS": "rows"}, DATABASE_ROUTERS=[RowsRouter()]):
        assert checks.check_router() == []


@pytest.mark.parametrize("app", ["queue_app", "queue_app.apps.QueueAppConfig"])
def test_the_rows_are_not_in_schemas_of_tenants(app):
    with override_settings(SHARED_APPS=[app], TENANT_APPS=["shop", app]):
        assert ids(checks.check_router()) == ["queue_app.E025"]
    with override_settings(SHARED_APPS=[app], TENANT_APPS=["shop"]):
        assert checks.check_router() == []


@pytest.mark.parametrize(
    ("level", "wrong"),
    [
        (None, False),
        (IsolationLevel.READ_UNCOMMITTED, False),
        (IsolationLevel.READ_COMMITTED, False),
        (IsolationLevel.REPEATABLE_READ, True),
        (IsolationLevel.SERIALIZABLE, True),
    ],
)
def test_transactions_must_see_what_others_commit(databases, level, wrong):
    options = {"isolation_level": level} if level else {}
    databases["rows"] = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": options}
    with override_settings(TASKQUEUE={"DATABASE_ALIAS": "rows"}):
        messages = checks.check_database()
    assert ids(messages) == ["queue_app.E007"] * wrong
    if wrong:
        assert level.name.lower().replace("_", " ") in messages[0].msg


@pytest.mark.django_db
def test_a_server_whose_default_is_stricter_is_refused():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_isolation = 'serializable'")
    [message] = checks.check_server(databases=["default"])
    assert message.id == "queue_app.E007"
    assert "the server's default there is serializable" in message.msg


def test_a_database_that_is_not_defined(settings):
    with override_settings(TASKQUEUE={"DATABASE_ALIAS": "nowhere"}):
        [message] = checks.check_database()
    assert "nowhere" in message.msg


@pytest.mark.django_db
@pytest.mark.parametrize(("version", "wrong"), [((14, 22), True), ((15, 0), False), ((18, 1), False)])
def test_an_old_server_is_refused(monkeypatch, version, wrong):
    monkeypatch.setattr(connection, "get_database_version", lambda: version)
    assert ids(checks.check_server(databases=["default"])) == ["queue_app.E003"] * wrong


def test_the_server_is_queried_only_when_databases_are_checked():
    assert checks.check_server() == []
    assert checks.check_server(databases=["other"]) == []


@pytest.mark.parametrize(
    ("alias", "cache", "found"),
    [
        ("default", None, []),
        ("missing", None, ["queue_app.E004"]),
        ("memory", {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, ["queue_app.W001"]),
        ("memory", {}, ["queue_app.W001"]),
    ],
)
def test_the_index_needs_django_redis(settings, alias, cache, found):
    caches = settings.CACHES | ({alias: cache} if cache is not None else {})
    with override_settings(TASKQUEUE={"REDIS_ALIAS": alias, "INDEX": "redis"}, CACHES=caches):
        assert ids(checks.check_redis()) == found


def test_a_schedule_that_cannot_tick_is_reported_where_it_is_declared(settings):
    declared = {"nightly": {"task": registry.type_of(chores.echo), "args": [1], "cron": "0 0 30 2 *"}}
    with override_settings(TASKQUEUE=settings.TASKQUEUE | {"SCHEDULES": declared}):
        (found,) = run_checks(tags=["taskqueue"])
    assert found.id == "queue_app.E013"
    assert "'nightly' is declared with an invalid cron: '0 0 30 2 *' never ticks" in found.msg


def test_callbacks_wait_for_settings_that_can_be_used(monkeypatch):
    """Their names are looked for in the task modules, which the settings name."""
    monkeypatch.setattr(callbacks, "declared_by", lambda _: {"on_success": "shop.nowhere"})
    assert "queue_app.E019" in ids(run_checks(tags=["taskqueue"]))
    with override_settings(TASKQUEUE={"WORKER": {"CONCURENCY": 1}}):
        assert ids(run_checks(tags=["taskqueue"])) == ["queue_app.E001"]
    with override_settings(USE_TZ=False):
        assert ids(checks.check_callbacks()) == []


def test_an_option_with_a_wrong_value_is_reported_before_the_first_enqueue(known_tasks):
    wrong = chores.quick.using(timeout="30")
    known_tasks[registry.type_of(wrong)] = wrong
    (found,) = checks.check_task_options()
    assert found.id == "queue_app.E024"
    assert found.msg.endswith("can be stored: timeout must be a number of seconds.")


# -- telemetry -------------------------------------------------------------------------------------------------------


SERVICES = Path(telemetry.__file__).parents[1] / "services"
HINTS = {"notify_index", "on_commit"}


def hints():
    """Yield the name of every index notification."""
    for path in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in HINTS:
                yield from (part.value for part in node.args[1:] if isinstance(part, ast.Constant))


def test_every_notification_has_a_line_for_its_loss():
    found = set(hints())
    assert {"push", "release", "retire"} <= found
    assert found <= telemetry._LOST.keys()


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        ("release", "the index was not notified that slots are free; the reconciler will end their leases: gone"),
        ("mine", "the index was not notified of mine; the reconciler will repair it from the rows: gone"),
    ],
)
def test_the_line_of_a_lost_notification_is_not_repeated_at_once(caplog, monkeypatch, operation, line):
    for _ in range(3):
        signals.index_unreachable.send(None, operation=operation, error=IndexUnavailable("gone"))
    assert caplog.messages == [line]


def test_an_outage_has_one_line_however_many_calls_of_a_process_fail(caplog):
    def lose_a_connection():
        telemetry.log_error(OperationalError("gone"), "due failed: %s", "gone")

    for operation in ("release", "push", "retire"):
        signals.index_unreachable.send(None, operation=operation, error=IndexUnavailable("gone"))
        lose_a_connection()
    assert [message[:11] for message in caplog.messages] == ["the index w", "due failed:"], "one for each server"
    telemetry.outage_over()
    lose_a_connection()
    assert len(caplog.messages) == 3
    for _ in range(2):  # the servers answer
        telemetry.log_error(IndexDamaged("damaged"), "rebuild failed")
        telemetry.log_error(ProgrammingError("no such column"), "due failed")
    assert len(caplog.messages) == 7


def test_the_tasks_of_a_dead_worker_are_named(caplog):
    tasks = [SimpleNamespace(task_type="shop.tasks.die", id=number) for number in range(5)]
    signals.worker_reaped.send(None, worker_id=uuid.uuid4(), name="web-1:77")
    signals.tasks_orphaned.send(None, tasks=tasks)
    died, again = caplog.messages
    assert died == "worker web-1:77 is gone and was declared dead; its tasks are queued again"
    named = "shop.tasks.die (task 0), shop.tasks.die (task 1), shop.tasks.die (task 2), 2 others"
    assert again == f"their worker died, so these tasks run again: {named}"
