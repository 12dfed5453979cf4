"""Settings of the benchmarks: those of the tests, with the benchmarks' tasks."""

from taskqueue_project.settings.test import *

INSTALLED_APPS = [*INSTALLED_APPS, "bench_app"]
ROOT_URLCONF = "bench_app.urls"
TASKQUEUE = {"REDIS_ALIAS": "default", "KEY_PREFIX": "taskqueue-bench"}
LOGGING = {"version": 1, "disable_existing_loggers": False}
