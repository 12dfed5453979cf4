"""A project without Redis: neither client library can be imported, and everything but the two streams works."""

import json
import os
import sys

import pytest

from queue_app.diagnose.servers import WITHOUT_REDIS
from tests.docs.pages import ROOT
from tests.integration.test_migrations import database
from tests.stock.environments import run

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(300)]

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"redis", "django_redis"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from taskqueue_project.settings import test as project
project.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
"""
MANAGE = "from django.core.management import execute_from_command_line; execute_from_command_line(sys.argv)"
USE = """
import django
django.setup()
import json
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from queue_app.diagnose.doctor import examine
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.services.notify import events
from queue_app.workers.scheduler import Scheduler
from tests.workers import chores

found = {"way": get_index().way}
results = [chores.echo.enqueue(number) for number in range(3)]
call_command("runworker", burst=True, verbosity=0)
found["values"] = [(result.refresh(), result.return_value)[1] for result in results]
waiting = chores.echo.enqueue(3)
scheduler = Scheduler()
found["jobs"] = scheduler.run_once()
found["failed"] = [job.name for job in scheduler.jobs if job.failures]
found["doctor"] = [f"{each.check}: {each.message}" for each in examine()]
client = Client()
client.force_login(User.objects.create_superuser("ina"))
pages = [f"/admin/queue_app/{model._meta.model_name}/" for model in admin.site._registry
         if model._meta.app_label == "queue_app"]
pages += ["/admin/queue_app/", "/metrics", "/readyz", f"/api/v1/tasks/{waiting.id}/explain"]
found["pages"] = {page: client.get(page, follow=True).status_code for page in pages}
position = client.post("/api/v1/tasks", {"task_type": "tests.workers.chores.echo", "parameters": {"value": 1}},
                       content_type="application/json")
found["position"] = position.json()["queue_position"]
try:
    events.read("0-0")
except IndexUnavailable as error:
    found["events"] = str(error)
found["imported"] = [name for name in sys.modules if name.partition(".")[0] in {"redis", "django_redis"}]
print(json.dumps(found))
"""


def test_a_project_needs_no_redis():
    def without(code, *words):
        return run(sys.executable, "-W", "ignore", "-c", ABSENT + code, *words, cwd=ROOT, env=environment)

    with database("no_redis") as url:
        environment = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.test"}
        without(MANAGE, "check")
        without(MANAGE, "migrate", "-v0")
        found = json.loads(without(USE).splitlines()[-1])
    assert found["way"] == "rows"
    assert found["values"] == [0, 1, 2]
    assert {"rebuild", "reconcile", "fallback", "watchdog"} <= set(found["jobs"])
    assert found["failed"] == []
    assert f"index: {WITHOUT_REDIS}" in found["doctor"]
    assert found["pages"] == dict.fromkeys(found["pages"], 200)
    assert found["position"] == 2
    assert "INDEX is 'rows'" in found["events"]
    assert found["imported"] == []
