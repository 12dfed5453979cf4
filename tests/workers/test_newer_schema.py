"""Deploy without a pause: the code of one version goes on while the tables are those of the next.

A release may add to the tables, and a later one may remove what no running code uses any more. So code must not mind
columns and indexes that it does not know, in statements that it prepared before as well.
"""

import re
from importlib import import_module
from pathlib import Path

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import connection, migrations, models

from queue_app import chain
from queue_app.diagnose.explain import explain
from queue_app.migrations import __path__ as folder
from queue_app.models import DeadLetter, Task
from queue_app.schedules.backfill import run_schedule
from queue_app.schedules.edit import create_schedule
from queue_app.services import cancel, replay, reprioritise
from tests.support.engine import put, put_many
from tests.workers import chores
from tests.workers.stage import ECHO, RAISES, StillScheduler, StillWorker, tick

#: PostgreSQL's driver prepares a statement when it is executed for the sixth time.
OFTEN = 6


@pytest.fixture
def newer_schema():
    """Return a function that adds columns and an index to every table; take them away afterwards."""

    def change(statement):
        with connection.cursor() as cursor:
            for table in connection.introspection.django_table_names(only_existing=True):
                if not table.startswith("queue_app_"):
                    continue
                cursor.execute(statement.format(table=connection.ops.quote_name(table)))

    def upgrade():
        change("ALTER TABLE {table} ADD of_the_next_version text NOT NULL DEFAULT 'x', ADD and_this integer")
        change("CREATE INDEX ON {table} (of_the_next_version)")

    yield upgrade
    change("ALTER TABLE {table} DROP IF EXISTS of_the_next_version, DROP IF EXISTS and_this")


def a_day(worker, scheduler, name):
    """Do what a project does all day; return the states of the tasks that it left."""
    Task.objects.all().delete()
    put_many(3, ECHO, args=[1])
    put(RAISES, args=["value"], max_retries=0)
    cancel(put(ECHO, args=[2]))
    reprioritise(put(ECHO, args=[3]), "high")
    chain((chores.echo, 4), (chores.later, 5)).enqueue()
    create_schedule(name, {"task_type": ECHO, "args": [6], "every": 3600})
    run_schedule(name, by="ina")
    worker.until_empty()
    replay(DeadLetter.objects.filter(replayed_at=None).latest("died_at").pk, by="ina")
    explain(put(ECHO, args=[7]))
    worker.until_empty()
    tick(scheduler)
    return sorted(Task.objects.values_list("status", flat=True))


@pytest.mark.usefixtures("engine")
def test_old_code_works_on_the_tables_of_the_next_version(newer_schema):
    worker, scheduler = StillWorker(concurrency=4), StillScheduler()
    before = [a_day(worker, scheduler, f"before {number}") for number in range(OFTEN)]
    newer_schema()
    after = [a_day(worker, scheduler, f"after {number}") for number in range(OFTEN)]
    assert before[0].count("completed") == 8
    assert after == before


Groups = import_module("queue_app.migrations.0002_defaults").Groups
#: Operations that a migration may have while code of the version before runs, and load goes on. The last one writes a
#: few rows of Django's groups and permissions.
SAFE = (
    migrations.CreateModel,
    AddIndexConcurrently,
    migrations.SeparateDatabaseAndState,
    migrations.AlterModelOptions,
    Groups,
)
#: A statement of SQL; what is inside of a function is indented.
STATEMENT = re.compile(r"^(?:ALTER|CREATE|DELETE|DROP|INSERT|UPDATE)\b.*", re.MULTILINE)
#: One that makes something new, or an index of a small table, or locks nothing.
NEW = re.compile(
    r"CREATE (UNLOGGED TABLE|FUNCTION|INDEX \w+ ON queue_app_(rows_|queue\b|limit\b))|(CREATE|DROP) INDEX CONCURRENTLY"
)


def unsafe(operation):
    """Return whether an operation could stop code of the version before, or lock a large table."""
    if isinstance(operation, migrations.AddField):
        field = operation.field
        return isinstance(field, models.ForeignKey) or not (field.null or field.has_db_default())
    if isinstance(operation, migrations.RunSQL):
        text = "\n".join([operation.sql] if isinstance(operation.sql, str) else operation.sql)
        return not all(NEW.match(statement) for statement in STATEMENT.findall(text))
    return not isinstance(operation, SAFE)


def test_migrations_can_be_applied_under_load():
    """The first two are those of the first release."""
    for path in sorted(Path(folder[0]).glob("0*.py"))[2:]:
        migration = import_module(f"queue_app.migrations.{path.stem}").Migration
        assert [operation for operation in migration.operations if unsafe(operation)] == [], path.stem


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (migrations.AddField("task", "note", models.TextField(null=True)), False),
        (migrations.AddField("task", "note", models.TextField(db_default="")), False),
        (migrations.AddField("task", "note", models.TextField(default="")), True),
        (migrations.RemoveField("task", "user"), True),
        (migrations.AddIndex("task", models.Index(fields=["user"], name="by_note")), True),
        (AddIndexConcurrently("task", models.Index(fields=["user"], name="by_note")), False),
        (migrations.RunSQL("UPDATE queue_app_task SET weight = 1"), True),
        (migrations.RunSQL("CREATE INDEX by_note ON queue_app_task (weight)"), True),
        (migrations.RunSQL("CREATE INDEX CONCURRENTLY by_note ON queue_app_task (weight)"), False),
    ],
)
def test_which_operations_are_safe(operation, expected):
    assert unsafe(operation) is expected
