"""Pages of the admin over a million tasks: time in the database, time in all, and first paint in Chromium."""

import statistics
import time
from contextlib import ExitStack

from bench import Clock, Table, analyze, register, reset
from bench_rows import fill
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from first_paint import browser

from queue_app.core import shared
from queue_app.models import Queue

ROWS = 1_000_000
TIMES = 5
#: A failed attempt of every tenth task, as where a tenth of all is retried once; one in a thousand names a host.
_ATTEMPTS = """
INSERT INTO queue_app_taskattempt (task_id, attempt, started_at, finished_at, exception_class, message, traceback)
SELECT id, 1, now(), now(), CASE WHEN n % 3 = 0 THEN 'builtins.ValueError' ELSE 'shop.errors.Declined' END,
    CASE WHEN n % 10000 = 0 THEN 'no route to host-' || n ELSE 'declined for order ' || n END, repeat('x', 500)
FROM (SELECT id, row_number() OVER () AS n FROM queue_app_task) AS numbered WHERE n % 10 = 0
"""
#: One task in fifty has a concurrency key, of 2,000; one key is rare.
_KEYS = """
UPDATE queue_app_task SET concurrency_key = CASE WHEN n % 100000 = 0 THEN 'rare' ELSE 'customer:' || n % 2000 END
FROM (SELECT id AS numbered_id, row_number() OVER (ORDER BY id) AS n FROM queue_app_task) AS numbered
WHERE id = numbered_id AND n % 50 = 0
"""
OVERVIEW, LIVE = "/admin/queue_app/", "/admin/queue_app/queue/live/"
_TASKS = "/admin/queue_app/task/"
_STATS = "/admin/queue_app/taskstats/"
#: Name -> (address, milliseconds of database time asked for).
PAGES = {
    "overview": (LIVE, "≤ 20"),
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
    "sort=oldest of a type that there is not": (f"{_TASKS}?sort=oldest&task_type=shop.none", "≤ 500"),
    "sort=oldest of one worker": (f"{_TASKS}?sort=oldest&worker_id=00000000-0000-7000-8000-000000000007", "≤ 500"),
    "sort=oldest of status=queued": (f"{_TASKS}?sort=oldest&status=queued", "≤ 500"),
    "sort=oldest of status=completed": (f"{_TASKS}?sort=oldest&status=completed", "≤ 500"),
    "sort=oldest of a rare key": (f"{_TASKS}?sort=oldest&concurrency_key=rare", "≤ 500"),
    "sort=slowest of a rare key": (f"{_TASKS}?sort=slowest&concurrency_key=rare", "≤ 500"),
    "concurrency_key= (none)": (f"{_TASKS}?concurrency_key=nothing", "≤ 500"),
    "concurrency_key= (ten)": (f"{_TASKS}?concurrency_key=rare", "≤ 500"),
    "concurrency_key= (500)": (f"{_TASKS}?concurrency_key=customer:1050", "≤ 500"),
    "a queue that there is not": (f"{_TASKS}?queue=nowhere", "≤ 500"),
    "a worker that there is not": (f"{_TASKS}?worker_id=00000000-0000-7000-8000-000000000077", "≤ 500"),
    "a rare type": (f"{_TASKS}?task_type=shop.tasks.rare", "≤ 500"),
    "priority=background (few)": (f"{_TASKS}?priority=background", "≤ 500"),
    "status=completed, ended=1h": (f"{_TASKS}?status=completed&ended=1h", "≤ 500"),
    "failed_any, ended=1m": (f"{_TASKS}?status=failed_any&ended=1m", "≤ 500"),
    "since=24h, status=failed": (f"{_TASKS}?since=24h&status=failed", "≤ 500"),
    "error_class (many)": (f"{_TASKS}?error_class=shop.errors.Declined", "≤ 500"),
    "error_class (none)": (f"{_TASKS}?error_class=shop.errors.Nothing", "≤ 500"),
    "schedule=nothing": (f"{_TASKS}?schedule=nothing", "≤ 500"),
    "a word": (f"{_TASKS}?q=declined", "≤ 500"),
    "the end of an id": (f"{_TASKS}?q=00000f4240", "≤ 500"),
    "key:rare": (f"{_TASKS}?q=key:rare", "≤ 500"),
    "types": (_STATS, "≤ 50"),
    "users": (f"{_STATS}?kind=user", "≤ 50"),
    "page of a type": (f"{_STATS}type/shop.tasks.3/", "≤ 500"),
    "page of a user": (f"{_STATS}user/user-7/", "≤ 500"),
    "page of a key (500)": (f"{_STATS}key/customer:1050/", "≤ 500"),
    "page of a key (none)": (f"{_STATS}key/nothing/", "≤ 500"),
    "dead letters": ("/admin/queue_app/deadletter/", "≤ 50"),
    "dead letters by cause": ("/admin/queue_app/deadletter/causes/", "≤ 50"),
    "workers": ("/admin/queue_app/worker/", "≤ 50"),
    "queues": ("/admin/queue_app/queue/", "≤ 50"),
    "page of a queue": ("/admin/queue_app/queue/queue-3/change/", "≤ 500"),
    "operations": ("/admin/queue_app/operation/", "≤ 50"),
    "audit log": ("/admin/queue_app/auditentry/", "≤ 50"),
    "maintenance": ("/admin/queue_app/maintenancejob/", "≤ 50"),
    "snapshots": ("/admin/queue_app/queuestats/", "≤ 50"),
}


def run(table: Table) -> None:
    """Fill the tables, and look at each page several times."""
    reset()
    register()
    rows = table.sized(ROWS)
    fill(rows)
    with connection.cursor() as cursor:
        cursor.execute(_ATTEMPTS)
        cursor.execute(_KEYS)
    Queue.objects.get_or_create(name="queue-3")
    analyze()
    user = User.objects.create_superuser(f"bench-{time.time_ns()}")
    client = Client()
    client.force_login(user)
    with ExitStack() as stack:
        stack.callback(reset)
        stack.callback(user.delete)
        paint = stack.enter_context(browser(user))
        paint("/admin/queue_app/")  # its style sheets and scripts are kept
        for name, (address, asked) in PAGES.items():
            database, whole, processor, painted = [], [], [], []
            for _ in range(TIMES):
                shared.forget()  # no other viewer has just filled it
                clock = Clock()
                began, used = time.perf_counter(), time.process_time()
                with connection.execute_wrapper(clock):
                    response = client.get(address)
                assert response.status_code == 200, (address, response.status_code)
                whole.append(time.perf_counter() - began)
                processor.append(time.process_time() - used)
                database.append(clock.seconds)
                painted.append(paint(OVERVIEW if address == LIVE else address))
            times = (database, whole, processor, painted)
            in_database, in_all, own, first = (statistics.median(each) * 1000 for each in times)
            table.add(
                f"admin, {name}, {rows:,} rows: ms in the database (in all; of Django's processor time; statements)",
                asked,
                f"{in_database:.1f} ({in_all:.0f}; {own:.0f}; {clock.statements})",
            )
            table.add(f"admin, {name}, {rows:,} rows: ms to the first paint", "≤ 500", f"{first:.0f}")
