"""What a migration does with rows that are there; forth and back within one transaction, which is rolled back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from queue_app.core.ids import uuid7

BEFORE, AFTER = ("0015_tasks_by_type", "0016_one_kind_of_operation")
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def migrate(name):
    executor = MigrationExecutor(connection)
    return executor.migrate([("queue_app", name)]).apps


@pytest.mark.django_db
def test_replays_of_many_become_operations_and_back():
    apps = migrate(BEFORE)
    replays, audit = apps.get_model("queue_app", "ReplayOperation"), apps.get_model("queue_app", "AuditEntry")
    common = {"total": 9, "by": "ann", "reason": "fixed", "created_at": AT, "paced_at": AT, "filter": {"queue": "mail"}}
    paced = replays.objects.create(
        id=uuid7(), pace=0.5, replayed=2, skipped=1, after_id=uuid7(), after_died_at=AT, cleared_at=AT, **common
    )
    stopped = replays.objects.create(id=uuid7(), state="stopped", failed_again=5, finished_at=AT, **common)
    audit.objects.create(
        id=uuid7(), at=AT, action="deadletter.replay_many", target="replayoperation", target_id=paced.id
    )
    action = apps.get_model("queue_app", "Operation").objects.create(id=uuid7(), kind="cancel", total=1, created_at=AT)
    old = {row["id"]: row for row in replays.objects.values()}

    apps = migrate(AFTER)
    operations = apps.get_model("queue_app", "Operation").objects
    carried = operations.get(pk=paced.pk)
    assert (carried.kind, carried.target, carried.state) == ("replay", "dead_letters", "running")
    assert (carried.rate, carried.limit, carried.stop_after_failures) == (0.5, 9, 5)
    assert (carried.changed, carried.skipped, carried.after_id, carried.paced_at) == (2, 1, paced.after_id, AT)
    assert (carried.filter, carried.by, carried.cleared_at) == ({"queue": "mail"}, "ann", AT)
    other = operations.get(pk=stopped.pk)
    assert (other.state, other.failed_again, other.rate, other.paced_at) == ("stopped", 5, None, None)
    assert operations.get(pk=action.pk).target == "tasks"
    assert apps.get_model("queue_app", "AuditEntry").objects.get().target == "operation"

    operations.create(id=uuid7(), kind="replay", state="stopped", total=1, created_at=AT, finished_at=AT)
    apps = migrate(BEFORE)
    assert {row["id"]: row for row in apps.get_model("queue_app", "ReplayOperation").objects.values()} == old
    assert set(apps.get_model("queue_app", "Operation").objects.values_list("state", flat=True)) == {
        "running", "cancelled",
    }  # fmt: skip
    assert apps.get_model("queue_app", "AuditEntry").objects.get().target == "replayoperation"
