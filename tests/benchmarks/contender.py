"""This project as a contender of a comparison harness, as a stranger's Django project would use it.

`./dev bench peers` copies it into the harness's `contenders/` as `this_checkout.py`. It can be imported there only:
`base` and `probe` are the harness's. Only the documented interface is used: settings, `@task`, `enqueue`,
`enqueue_many`, commands.
"""

import datetime as dt
import sys

from base import PYTHON, VALKEY_URL, VARIANT, Contender, django_configure, migrate, payload
from probe import body

BY_ROWS = VARIANT == "rows"  # without Redis
WITH_REDIS = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": VALKEY_URL}}

django_configure(
    [
        "django.contrib.auth",
        "django.contrib.sessions",
        "django.contrib.messages",
        "django.contrib.admin",
        "rest_framework",
        "queue_app",
    ],
    ROOT_URLCONF="django.urls",
    **({} if BY_ROWS else {"CACHES": WITH_REDIS}),
    TASKS={"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}},
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
)

from django.core.management import execute_from_command_line  # noqa: E402 - all of these need the settings above
from django.db import connection  # noqa: E402
from django.tasks import default_task_backend  # noqa: E402

from queue_app import task  # noqa: E402


@task
def work(task_id, ms=0, data=""):
    body(task_id, ms, data)


class ThisCheckout(Contender):
    """Two workers of eight threads, with schedulers, and default settings."""

    title = "this checkout" + (" without Redis" if BY_ROWS else "")
    packages = ("Django", "psycopg") if BY_ROWS else ("Django", "psycopg", "redis")
    needs = ("pg",) if BY_ROWS else ("pg", "valkey")
    records = "task row in PostgreSQL from enqueue on"
    has_bulk = True
    parked_as = "same queue, run_after 1 day ahead"
    config = "2 x manage.py runworker --concurrency 8 --with-scheduler (threads)"

    def prepare(self):
        migrate()

    def connect(self):
        connection.ensure_connection()

    def enqueue(self, task_id, ms=0):
        work.enqueue(**payload(task_id, ms))

    def enqueue_many(self, ids):
        default_task_backend.enqueue_many(work, [((), payload(number)) for number in ids])

    def park(self, n):
        later = work.using(run_after=dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
        for start in range(0, n, 5_000):
            numbers = range(start, min(n, start + 5_000))
            default_task_backend.enqueue_many(later, [((), payload(number)) for number in numbers])

    def worker_argv(self):
        manage = [PYTHON, "-m", __name__]
        return [[*manage, "runworker", "--concurrency", "8", "--with-scheduler"]] * 2


CONTENDER = ThisCheckout()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
