"""The purge reads only rows that it deletes, not rows that are kept for longer."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.models import Task
from queue_app.services.upkeep import maintenance as module
from queue_app.services.upkeep.maintenance import purge
from queue_app.sql import upkeep
from queue_app.sql.database import connection, fetch_all, fetch_column
from tests.support.engine import put_many

DAY = 86_400


def ended(count: int, status: Status = Status.COMPLETED, **ago: float) -> list:
    ids = put_many(count)
    Task.objects.filter(pk__in=ids).update(status=status, finished_at=timezone.now() - timedelta(**ago))
    return ids


@pytest.fixture
def read(monkeypatch):
    """Purge; return how many tasks each statement read."""
    counts = {}

    def explained(sql, params):
        if "doomed" not in sql:  # it finds workflows
            return fetch_column(sql, params)
        fetch_all("SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)")
        kind = "completed" if upkeep.COMPLETED in sql else "unsuccessful"
        with connection().cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {sql}", params)
            plan = "\n".join(line for (line,) in cursor.fetchall())
        inner = plan[plan.index("CTE doomed") : plan.index("CTE payloads")]
        [found] = re.findall(r"using taskqueue_\w+ on queue_app_task .*?rows=(\d+)(?:\.\d+)? loops=1\)", inner)
        [*over] = re.findall(r"Rows Removed by Filter: (\d+)", inner)
        counts[kind] = int(found) + sum(map(int, over))
        return []

    def look():
        counts.clear()
        with monkeypatch.context() as patch:
            patch.setattr(upkeep, "fetch_column", explained)
            purge()
        return counts

    return look


def test_successes_that_are_kept_for_longer_are_not_read(db, retention, read):
    retention(success=5, failure=2)
    ended(200, days=3)
    ended(3, Status.FAILED, days=3)
    assert read() == {"completed": 0, "unsuccessful": 3}


def test_failures_that_are_kept_for_longer_are_read_once_an_hour(db, retention, read, override):
    retention(success=2, failure=30)
    ended(200, Status.FAILED, days=5)
    ended(3, days=2.5)
    assert purge() == 3
    ended(2, days=2.4)
    assert read() == {"completed": 2, "unsuccessful": 0}
    override(module, FULL_PASS=timedelta())
    assert read() == {"completed": 200, "unsuccessful": 0}
    assert set(Task.objects.values_list("status", flat=True)) == {Status.FAILED}


def test_skipped_rows_are_purged_within_the_hour(db, retention, override):
    retention(success=2, failure=30)
    assert purge() == 0
    ended(1, days=20)  # as one that was locked, or kept for its idempotency key, when the others went
    assert purge() == 0
    override(module, FULL_PASS=timedelta())
    assert purge() == 1


def test_another_retention_begins_at_the_beginning(db, retention):
    retention(success=25, failure=30)
    ended(1, days=20)
    assert purge() == 0
    retention(success=2, failure=30)
    assert purge() == 1
