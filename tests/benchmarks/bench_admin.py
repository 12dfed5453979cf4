"""Pages of the admin over a million tasks: time in the database, and in all."""

import statistics
import time
from contextlib import ExitStack

from bench import Clock, Table, analyze, register, reset
from bench_rows import fill
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from queue_app.dashboard import cache

ROWS = 1_000_000
TIMES = 5
#: A failed attempt of every tenth task, as where a tenth of all is retried once; one in a thousand names a host.
_ATTEMPTS = """
INSERT INTO queue_app_taskattempt (task_id, attempt, started_at, finished_at, exception_class, message, traceback)
SELECT id, 1, now(), now(), CASE WHEN n % 3 = 0 THEN 'builtins.ValueError' ELSE 'shop.errors.Declined' END,
    CASE WHEN n % 10000 = 0 THEN 'no route to host-' || n ELSE 'declined for order ' || n END, repeat('x', 500)
FROM (SELECT id, row_number() OVER () AS n FROM queue_app_task) AS numbered WHERE n % 10 = 0
"""
_TASKS = "/admin/queue_app/task/"
#: Name -> (address, milliseconds of database time asked for).
PAGES = {
    "overview": ("/admin/queue_app/queue/live/", "≤ 20"),
    "tasks, first page": (_TASKS, "≤ 50"),
    "tasks, page 100": (f"{_TASKS}?p=99", "≤ 50"),
    "status=failed": (f"{_TASKS}?status=failed", "≤ 50"),
    "status=pending": (f"{_TASKS}?status=pending", "≤ 50"),
    "status=expired (none)": (f"{_TASKS}?status=expired", "≤ 50"),
    "one queue": (f"{_TASKS}?queue=queue-3", "≤ 50"),
    "one priority": (f"{_TASKS}?priority=critical", "≤ 50"),
    "user:": (f"{_TASKS}?q=user:user-7", "≤ 50"),
    "parameters.order_id:4242": (f"{_TASKS}?q=parameters.order_id:4242", "≤ 50"),
    "parameters.kind: (many)": (f"{_TASKS}?q=parameters.kind:shop.tasks.3", "-"),
    "error:host- (few)": (f"{_TASKS}?q=error:host-", "-"),
    "error:declined (many)": (f"{_TASKS}?q=error:declined", "-"),
    "error:nowhere (none)": (f"{_TASKS}?q=error:nowhere", "-"),
    "error:host- of status=failed": (f"{_TASKS}?status=failed&q=error:host-", "≤ 50"),
    "sort=oldest": (f"{_TASKS}?sort=oldest", "≤ 500"),
    "sort=slowest": (f"{_TASKS}?sort=slowest", "≤ 500"),
    "sort=attempts of one queue": (f"{_TASKS}?sort=attempts&queue=queue-3", "≤ 500"),
    "concurrency_key= (none)": (f"{_TASKS}?concurrency_key=nothing", "≤ 500"),
    "dead letters by cause": ("/admin/queue_app/deadletter/causes/", "≤ 50"),
}


def run(table: Table) -> None:
    """Fill the tables, and look at each page several times."""
    reset()
    register()
    rows = table.sized(ROWS)
    fill(rows)
    with connection.cursor() as cursor:
        cursor.execute(_ATTEMPTS)
    analyze()
    user = User.objects.create_superuser(f"bench-{time.time_ns()}")
    client = Client()
    client.force_login(user)
    try:
        for name, (address, asked) in PAGES.items():
            database, whole = [], []
            for _ in range(TIMES):
                cache.forget()  # no other viewer has just filled it
                clock = Clock()
                began = time.perf_counter()
                with ExitStack() as stack:
                    stack.enter_context(connection.execute_wrapper(clock))
                    response = client.get(address)
                    assert response.status_code == 200, (address, response.status_code)
                whole.append(time.perf_counter() - began)
                database.append(clock.seconds)
            table.add(
                f"admin, {name}, {rows:,} rows: ms in the database (in all; statements)",
                asked,
                f"{statistics.median(database) * 1000:.1f} ({statistics.median(whole) * 1000:.0f}; {clock.statements})",
            )
    finally:
        user.delete()
        reset()
