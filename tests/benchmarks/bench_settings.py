"""Settings of the benchmarks: those of the tests, with the benchmarks' tasks."""

import os

from taskqueue_project.settings.test import *

INSTALLED_APPS = [*INSTALLED_APPS, "bench_app"]
ROOT_URLCONF = "bench_app.urls"
TASKQUEUE = {"REDIS_ALIAS": "default", "KEY_PREFIX": "taskqueue-bench", "INDEX": os.environ.get("BENCH_INDEX", "redis")}
DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = "BENCH_POLLS" in os.environ  # as behind a pooler of transactions
LOGGING = {"version": 1, "disable_existing_loggers": False}
