"""Lists, counts, statistics and the export of the API over a million rows."""

import os
import resource
import statistics
import time
from datetime import datetime, timedelta

from bench import Clock, Table, analyze, register, reset
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Max, Min
from django.test import Client
from growth import processor_seconds

from queue_app.models import Task

ROWS = 1_000_000
TIMES = 7
_TASKS = """
INSERT INTO queue_app_task (id, task_type, queue, status, priority, capabilities, "user", attempt, failures,
    created_at, queued_at, worker_id, started_at, finished_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n %% 4096), 3, '0') || '8'
        || lpad(to_hex(n), 15, '0'))::uuid,
    'shop.tasks.' || CASE WHEN n %% 10000 = 77 THEN 'rare' ELSE (n %% 20)::text END, 'queue-' || n %% 5,
    CASE WHEN n %% 100 = 0 THEN 'failed' WHEN n %% 1000 = 1 THEN 'queued' ELSE 'completed' END,
    CASE WHEN n %% 10000 = 79 THEN 4 ELSE n %% 4 END, CASE WHEN n %% 100 = 3 THEN '{gpu}' ELSE '{}' END::text[],
    'user-' || n %% 1000, 1, 0, at, at,
    CASE WHEN n %% 1000 <> 1 THEN ('00000000-0000-7000-8000-' || lpad(to_hex(n %% 20), 12, '0'))::uuid END,
    CASE WHEN n %% 1000 <> 1 THEN at END, CASE WHEN n %% 1000 <> 1 OR n %% 100 = 0 THEN at END
FROM (SELECT n, now() - (%(rows)s - n) * interval '0.1 seconds' AS at FROM generate_series(1, %(rows)s) AS n) AS made
"""
_PAYLOADS = """
INSERT INTO queue_app_taskpayload (task_id, args, parameters)
SELECT id, '[]', jsonb_build_object('order_id', row_number() OVER (), 'kind', task_type, 'note', 'some words')
FROM queue_app_task
"""
_ATTEMPTS = """
INSERT INTO queue_app_taskattempt (task_id, attempt, started_at, finished_at, exception_class, message, traceback)
SELECT id, 1, created_at, created_at, 'shop.errors.Declined',
    CASE WHEN n % 10000 = 0 THEN 'no route to host-' || n ELSE 'declined for order ' || n END, repeat('x', 500)
FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) AS n FROM queue_app_task) AS made WHERE n % 20 = 0
"""
#: What is listed and counted; {old}, {new}: ten minutes after the first task, and before the last one;
#: {middle}: halfway; {later}: ten minutes after it.
FILTERS = {
    "no filter": "",
    "status=pending": "status=pending",
    "status=failed, a queue": "status=failed&queue=queue-0",
    "a user": "user=user-7",
    "a type, of 5 %": "task_type=shop.tasks.3",
    "a type, of 0.01 %": "task_type=shop.tasks.rare",
    "a type that there is not": "task_type=shop.tasks.none",
    "a queue, of 20 %": "queue=queue-3",
    "a queue that there is not": "queue=nowhere",
    "a band, of 25 %": "priority=high",
    "a band, of 0.01 %": "priority=background",
    "an effective band, of 0.01 %": "effective_priority=background",
    "a worker, of 5 %": "worker=00000000-0000-7000-8000-000000000007",
    "a worker that there is not": "worker=00000000-0000-7000-8000-000000000077",
    "a capability, of 1 %": "capability=gpu",
    "created in the last ten minutes": "created_after={new}",
    "created in the first ten minutes": "created_before={old}",
    "created before the middle": "created_before={middle}",
    "created in ten minutes of the middle": "created_after={middle}&created_before={later}",
    "a type, of 5 %, created before the middle": "task_type=shop.tasks.3&created_before={middle}",
    "finished before the middle": "finished_before={middle}",
    "finished in the first ten minutes": "finished_before={old}",
    "a type, of 0.01 %, created in the last ten minutes": "task_type=shop.tasks.rare&created_after={new}",
    "an error, of 5 %": "error=declined",
    "an error, of 0.01 %": "error=host-",
    "an error that there is not": "error=nothing-like-it",
    "parameters, of one task": "parameters__order_id=4242",
    "parameters, of 5 %": "parameters__kind=shop.tasks.3",
    "parameters, of 5 %, status=failed": "parameters__kind=shop.tasks.3&status=failed",
}


def fill(rows: int) -> None:
    """Make tasks with parameters: one in a hundred failed, one in a thousand queued, the others completed."""
    with connection.cursor() as cursor:
        cursor.execute(_TASKS, {"rows": rows})
        cursor.execute(_PAYLOADS)


def run(table: Table) -> None:
    """Fill the tables, ask each question several times, and stream everything once."""
    reset()
    register()
    rows = table.sized(ROWS)
    fill(rows)
    with connection.cursor() as cursor:
        cursor.execute(_ATTEMPTS)
    analyze()
    user = User.objects.create_user(f"bench-{time.time_ns()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_task", "view_payload", "view_queue"]))
    client = Client()
    client.force_login(user)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM queue_app_task ORDER BY id OFFSET %s LIMIT 1", [rows // 10])
            deep = cursor.fetchone()[0].hex
        first, last = Task.objects.aggregate(Min("created_at"), Max("created_at")).values()
        times = {"old": _text(first + timedelta(minutes=10)), "new": _text(last - timedelta(minutes=10))}
        middle = first + (last - first) / 2
        times |= {"middle": _text(middle), "later": _text(middle + timedelta(minutes=10))}
        for name, query in FILTERS.items():
            for what, path in (("list", "tasks"), ("count", "tasks/count")):
                _add(table, client, f"{what}, {name}", f"/api/v1/{path}?{query.format(**times)}")
        _add(table, client, "list, a page 900,000 rows deep", f"/api/v1/tasks?cursor={deep}")
        _add(table, client, "statistics", "/api/v1/queue/stats")
        _add(table, client, "exact count of all", "/api/v1/tasks/count?exact=true", "-")
        _export(table, client)
    finally:
        user.delete()
        reset()


def _text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _add(table: Table, client: Client, name: str, address: str, asked: str = "≤ 50 ms") -> None:
    whole, database = [], []
    used = processor_seconds(os.getpid())
    for _ in range(TIMES):
        clock = Clock()
        began = time.perf_counter()
        with connection.execute_wrapper(clock):
            response = client.get(address)
        whole.append(time.perf_counter() - began)
        database.append(clock.seconds)
        assert response.status_code == 200, response.content
    used = (processor_seconds(os.getpid()) - used) / TIMES * 1000
    of_it = statistics.median(database) * 1000
    took = f"{statistics.median(whole) * 1000:.1f} ms, of it {of_it:.1f} in the database"
    table.add(name, asked, f"{took}; processor time {used:.0f} ms")


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
