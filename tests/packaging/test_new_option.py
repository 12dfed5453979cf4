"""A new option of tasks takes three files: the table of options, the columns, a migration. Then it works everywhere."""

import json
import os
import shutil
import sys

import pytest
from django.conf import settings

from tests.docs.pages import ROOT
from tests.integration.test_migrations import database
from tests.stock.environments import run

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(600)]

#: {file: [(line before which it is added, what is added)]}
EDITS = {
    "queue_app/core/options.py": [
        (
            "\n\n@dataclass(frozen=True, kw_only=True)\nclass CallOptions",
            '    region: str = option("", kind=Text(20), about="region in which the task must run", unset="any")\n',
        ),
        ("\n\nclass CallValues", "    region: str\n"),
        ("    concurrency_key: str | None = None\n", "    region: str | None = None\n"),
    ],
    "queue_app/models/task.py": [
        (
            "    capabilities = NamesField(",
            '    region = models.CharField(max_length=20, default="", db_default="", blank=True)\n',
        )
    ],
}
TASKS = """
from queue_app import schedule, task

@schedule(every=3600, region="declared")
@task(region="of the task")
def hello():
    pass
"""
USE = """
import json, os, sys
from io import StringIO
import django
django.setup()
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.tasks import default_task_backend
from django.test import Client, override_settings
from trial_tasks import hello
from queue_app import testing
from queue_app.api.views.docs import document
from queue_app.models import Schedule, Task
from queue_app.services import run_schedule
from queue_app.services.requests import consume
from queue_app.schedules.declare import synchronise
from queue_app.sql.columns import CLAIMED

TYPE = "trial_tasks.hello"
found = {}

def region(task_id):
    return Task.objects.get(pk=task_id).region

def printed(*words):
    out = StringIO()
    call_command("taskqueue", *words, stdout=out)
    return out.getvalue().strip()

result = hello.using(region="used").enqueue()
many = default_task_backend.enqueue_many(hello, [((), {})])
found["code"] = [region(result.id), region(many[0].id), default_task_backend.get_result(result.id).task.region]
try:
    hello.using(region="x" * 21).enqueue()
except Exception as error:
    found["refused"] = str(error)

client = Client(headers={"accept": "application/json"})
client.force_login(User.objects.create_superuser("ina"))
def post(path, body):
    return client.post(path, json.dumps(body), content_type="application/json").json()
stored = post("/api/v1/tasks", {"task_type": TYPE, "region": "api"})
detail = client.get(f"/api/v1/tasks/{stored['id']}").json()
listed = client.get("/api/v1/tasks", {"region": "api"}).json()["results"]
found["api"] = [detail["region"], [each["id"] for each in listed] == [stored["id"]]]
found["api refuses"] = post("/api/v1/tasks", {"task_type": TYPE, "region": "x" * 21})["errors"][0]["field"]
properties = document()["components"]["schemas"]
found["openapi"] = sorted(name for name, each in properties.items() if "region" in each.get("properties", ()))

found["command"] = region(printed("submit", TYPE, "--region", "cli"))
printed("schedule", "add", "nightly", TYPE, "--cron", "0 3 * * *", "--region", "of the schedule")
found["schedule"] = region(run_schedule("nightly", by="ina").task_id)
synchronise(force=True)
found["declared"] = Schedule.objects.get(name="hello").region
made = post("/api/v1/schedules", {"name": "api", "task_type": TYPE, "cron": "0 3 * * *", "region": "by the API"})
found["schedule of the API"] = made.get("region", made)

stream = redis.from_url(settings.REDIS_URL)
with override_settings(TASKQUEUE=settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True, "USER": "*"}}):
    from queue_app.index import get_index
    consume()
    key = next(iter(stream.scan_iter("*requests*")), None) or "{%s}:requests" % settings.TASKQUEUE["KEY_PREFIX"]
    request = {"event": "ExecutionRequested", "request_id": "one", "task_type": TYPE, "region": "stream"}
    stream.xadd(key, request)
    consume()
found["stream"] = Task.objects.get(idempotency_key="one").region

page = client.get(f"/admin/queue_app/task/{result.id}/change/", headers={"accept": "text/html"}).content.decode()
found["page"] = "Region" in page and "used" in page
rows = client.get("/admin/queue_app/task/", {"region": "api"}, headers={"accept": "text/html"}).content.decode()
found["list"] = stored["id"] in rows and str(result.id) not in rows
form = client.get("/admin/queue_app/schedule/add/", headers={"accept": "text/html"}).content.decode()
found["form"] = 'name="region"' in form
found["claim"] = 't."region"' in CLAIMED
print(json.dumps(found))
"""


def test_an_option_is_added_in_three_files(tmp_path):
    tree = tmp_path / "tree"
    for name in ("queue_app", "workers", "taskqueue_project", "templates", "docs"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "manage.py", tree)
    for path, edits in EDITS.items():
        text = (tree / path).read_text()
        for before, added in edits:
            assert text.count(before) == 1, before
            text = text.replace(before, added + before)
        (tree / path).write_text(text)
    (tree / "trial_tasks.py").write_text(TASKS)
    with database("new_option") as url:
        environment = os.environ | {
            "DATABASE_URL": url,
            "REDIS_URL": settings.REDIS_URL,
            "PYTHONPATH": str(tree),
            "DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.test",
            "TASKQUEUE_TEST_RUN": "new-option",
        }
        for command in (["makemigrations", "queue_app", "-n", "region"], ["migrate"]):
            run(sys.executable, "-W", "ignore", "manage.py", *command, "-v0", cwd=tree, env=environment)
        found = json.loads(run(sys.executable, "-W", "ignore", "-c", USE, cwd=tree, env=environment).splitlines()[-1])
        run(sys.executable, "-W", "ignore", "docs/generate.py", cwd=tree, env=environment)
    assert found == {
        "code": ["used", "of the task", "used"],
        "refused": "region has 21 characters; the limit is 20.",
        "api": ["api", True],
        "api refuses": "region",
        "openapi": [
            "BodyFilter",
            "ClaimedTask",
            "NewSchedule",
            "NodeSubmission",
            "Schedule",
            "ScheduleEdit",
            "Submission",
            "TaskDetail",
        ],
        "command": "cli",
        "schedule": "of the schedule",
        "declared": "declared",
        "schedule of the API": "by the API",
        "stream": "stream",
        "page": True,
        "list": True,
        "form": True,
        "claim": True,
    }
    for page in ("task-options", "http-api", "commands"):
        assert "region" in (tree / f"docs/reference/{page}.md").read_text(), page
