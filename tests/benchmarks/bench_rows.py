"""Lists, counts, statistics and the export of the API over a million rows, and what the index over parameters costs."""

import resource
import statistics
import time

from bench import Table, analyze, register, reset
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client

ROWS = 1_000_000
TIMES = 7
_TASKS = """
INSERT INTO queue_app_task (id, task_type, queue, status, priority, capabilities, "user", attempt, failures,
    created_at, queued_at, started_at, finished_at)
SELECT (lpad(to_hex(1780000000000 + n), 12, '0') || '7' || lpad(to_hex(n %% 4096), 3, '0') || '8'
        || lpad(to_hex(n), 15, '0'))::uuid,
    'shop.tasks.' || n %% 20, 'queue-' || n %% 5,
    CASE WHEN n %% 100 = 0 THEN 'failed' WHEN n %% 1000 = 1 THEN 'queued' ELSE 'completed' END,
    n %% 5, '{}', 'user-' || n %% 1000, 1, 0, at, at,
    CASE WHEN n %% 1000 <> 1 THEN at END, CASE WHEN n %% 1000 <> 1 OR n %% 100 = 0 THEN at END
FROM (SELECT n, now() - (%(rows)s - n) * interval '0.1 seconds' AS at FROM generate_series(1, %(rows)s) AS n) AS made
"""
_PAYLOADS = """
INSERT INTO queue_app_taskpayload (task_id, args, parameters)
SELECT id, '[]', jsonb_build_object('order_id', row_number() OVER (), 'kind', task_type, 'note', 'some words')
FROM queue_app_task
"""
QUERIES = {
    "list, first page": "/api/v1/tasks",
    "list, status=pending": "/api/v1/tasks?status=pending",
    "list, status=failed and a queue": "/api/v1/tasks?status=failed&queue=queue-0",
    "list, one user": "/api/v1/tasks?user=user-7",
    "list, parameters__order_id=4242": "/api/v1/tasks?parameters__order_id=4242",
    "list, a page 900,000 rows deep": "/api/v1/tasks?cursor={deep}",
    "count, all": "/api/v1/tasks/count",
    "count, status=pending": "/api/v1/tasks/count?status=pending",
    "count, a task type": "/api/v1/tasks/count?task_type=shop.tasks.3",
    "count, parameters": "/api/v1/tasks/count?parameters__order_id=4242",
    "stats of the queue": "/api/v1/queue/stats",
}


def fill(rows: int) -> None:
    """Make so many tasks with parameters: one in a hundred failed, one in a thousand queued, the others completed."""
    with connection.cursor() as cursor:
        cursor.execute(_TASKS, {"rows": rows})
        cursor.execute(_PAYLOADS)


def run(table: Table) -> None:
    """Fill the tables, ask each question several times, and stream everything once."""
    reset()
    register()
    rows = table.sized(ROWS)
    fill(rows)
    analyze()
    user = User.objects.create_user(f"bench-{time.time_ns()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_task"))
    client = Client()
    client.force_login(user)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM queue_app_task ORDER BY id OFFSET %s LIMIT 1", [rows // 10])
            deep = cursor.fetchone()[0].hex
        for name, address in QUERIES.items():
            times = [_timed(client, address.format(deep=deep)) for _ in range(TIMES)]
            table.add(f"{name}, {rows:,} rows", "≤ 50 ms", f"{statistics.median(times) * 1000:.1f} ms")
        times = [_timed(client, "/api/v1/tasks/count?exact=true") for _ in range(3)]
        table.add(f"exact count of all, {rows:,} rows", "-", f"{statistics.median(times) * 1000:.0f} ms")
        _export(table, client)
    finally:
        user.delete()
        reset()


def _timed(client: Client, address: str) -> float:
    began = time.perf_counter()
    response = client.get(address)
    assert response.status_code == 200, response.content
    return time.perf_counter() - began


def _export(table: Table, client: Client) -> None:
    for name in ("ndjson", "csv"):
        response = client.get(f"/api/v1/tasks/export?format={name}")
        parts = iter(response.streaming_content)
        count = 0
        for _ in range(20):  # until everything that is loaded once has been
            count += next(parts, b"").count(b"\n")
        before, began = _rss(), time.perf_counter()
        for part in parts:
            count += part.count(b"\n")
        took = time.perf_counter() - began
        table.add(f"growth of RSS over the export of {count:,} rows, {name}", "≤ 20 MB", f"{_rss() - before:.1f} MB")
        table.add(f"export, {name}, rows/s", "-", f"{count / took:,.0f}")


def _rss() -> float:
    """Return the peak of the resident memory, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
