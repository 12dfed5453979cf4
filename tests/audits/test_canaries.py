"""Leave a canary of each kind wherever a task can leave something, then read every page and answer as everyone.

``./dev canaries`` runs this alone and prints what it read. A new address fails the test until it has arguments here.
"""

import json
import logging
import re
from importlib import import_module
from urllib.parse import quote

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.shortcuts import redirect
from django.test import Client
from django.urls import NoReverseMatch, get_resolver, reverse
from django.utils import timezone

from queue_app import Workflow, signal, webhooks
from queue_app.core.states import Status
from queue_app.models import DeadLetter, Limit, Operation, Schedule, Task, TaskProgress, Workflow as Row
from queue_app.models.operation import OperationKind
from queue_app.registry import type_of
from queue_app.schedules.backfill import run_schedule
from queue_app.schedules.edit import create_schedule, update_schedule
from queue_app.services.lifecycle.actions import run_again
from queue_app.services.operations.request import Action, start_operation
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.requests import consume
from tests.audits import canary_tasks as made
from tests.audits.canary_tasks import MASKED, SEALED, VISIBLE
from tests.queue_app.admin.test_audit import own_admins
from tests.support.asking import ask
from tests.support.contents import index_text, tables
from tests.support.factories import StaffFactory, move
from tests.workers.test_encryption import FIRST, work

GROUPS = ("Task queue: Viewer", "Task queue: Operator", "Task queue: Admin")
#: Streams without an end, which tests of events read; status pages, which are added below; workers with a token.
ELSEWHERE = {"events", "execution-events", "workflow-events", "task-status", "worker-register", "missing"}
KINDS = {"masked": MASKED, "sealed": SEALED}
#: The parameter that holds the canary.
HOLDERS = {"masked": "card", "sealed": "account"}
SECRET = "whsec_" + "YWFh" * 11


@pytest.fixture
def bodies(monkeypatch):
    """The bodies of webhooks, which are not sent."""
    sent = []

    class Answered:
        def __init__(self, *_args, **_options): ...

        def request(self, _method, _path, body, _headers):
            sent.append(body.decode())

        def getresponse(self):
            return type("Answer", (), {"status": 204, "headers": {}})

        def close(self): ...

    monkeypatch.setattr(webhooks, "_Connection", Answered)
    return sent


@pytest.fixture
def callbacks():
    """Webhooks of the tasks; not in the decorators, because the checks of every other test would miss the endpoint."""

    def declare(name):
        for kind in KINDS:
            for end, option in (("done", "on_success"), ("fails", "on_failure")):
                object.__setattr__(getattr(made, f"{kind}_{end}"), option, name)

    declare("webhook:crm")
    yield
    declare(None)


@pytest.fixture
def house(hire, captured, settings, exporter, bodies, callbacks, caplog):
    """A project in which every kind of record holds canaries; return the tasks whose status pages are open."""
    caplog.set_level(logging.INFO)
    settings.TASKQUEUE = settings.TASKQUEUE | {
        "ENCRYPTION": {"KEYS": [FIRST], "TASKS": ["tests.audits.canary_tasks.sealed_*"]},
        "WEBHOOKS": {"crm": {"url": "https://crm.example.com/", "secrets": [SECRET]}},
        "REQUESTS": {"ENABLED": True},
    }
    results = []
    for kind, canary in KINDS.items():
        done, fails, waits = (getattr(made, f"{kind}_{end}") for end in ("done", "fails", "waits"))
        call = {HOLDERS[kind]: canary, "note": VISIBLE}
        results += [done.enqueue(**call), fails.enqueue(**call), done.enqueue(canary, VISIBLE), waits.enqueue(**call)]
        name = create_schedule(f"{kind}-hourly", {"task_type": type_of(done), "parameters": call, "every": 3600}).name
        create_schedule(f"{kind}-args", {"task_type": type_of(done), "args": [canary, VISIBLE], "every": 3600})
        run_schedule(name, by="ann")
        flow = Workflow(f"{kind} flow")
        first = flow.add(done, **call)
        flow.add(fails, **(call | {"note": first.result["note"]}), after=first)
        for other in (done, fails, waits):  # the row holds a reference in the place of the canary
            flow.add(other, **(call | {HOLDERS[kind]: first.result[HOLDERS[kind]]}), after=first)
        flow.enqueue()
        asked = {"task_type": type_of(done), "parameters": json.dumps(call)}
        by_api(kind, type_of(done), call)
        ask(**asked)
        consume()
        work(hire())
        signal(results[-1], "answer", call, by="ann")
        work(hire())
        run_again(results[-4].id)
        work(hire())
        update_schedule(name, {"every": 7200})
        asked = TaskFilter(parameters=[call]) if kind == "masked" else TaskFilter(error=VISIBLE)
        start_operation(Action(kind=OperationKind.CANCEL), asked, by="ann")
        results.append(running := done.enqueue(**call))
        move(Task.objects.get(pk=running.id), Status.EXECUTING)
        said = f"charging {canary}" if kind == "masked" else "charging"
        TaskProgress.objects.create(
            task_id=running.id, attempt=1, fraction=0.5, message=said, updated_at=timezone.now()
        )
    return results


def by_api(kind, task_type, call):
    """Leave the canary by the API too, twice with a key: the first answer is kept for the second request."""
    client = Client()
    client.force_login(User.objects.get_or_create(username="api", is_staff=True, is_superuser=True)[0])
    body = {"task_type": task_type, "parameters": call}
    calls = [
        ("tasks", body),
        ("tasks/bulk", {"tasks": [body]}),
        ("workflows", {"name": kind, "tasks": [body | {"name": "a"}]}),
        ("schedules", body | {"name": f"{kind}-api", "every": 3600}),
    ]
    for place, content in calls:
        for _ in range(2):
            headers = {"Idempotency-Key": f"{kind}-{place}"}
            found = client.post(f"/api/v1/{place}", content, content_type="application/json", headers=headers)
            assert found.status_code in {200, 201}, found.content
            assert not [canary for canary in KINDS.values() if canary in found.content.decode()]
    refused = client.post("/api/v1/tasks", body | {"parameters": call | {"wrong": 1}}, content_type="application/json")
    assert refused.status_code == 422
    assert not [canary for canary in KINDS.values() if canary in refused.content.decode()]


def people():
    """Yield the name and the client of someone of each stock group, and of a superuser."""
    import_module("queue_app.migrations.0002_defaults").create_groups(apps, "default")
    found = {}
    for name in GROUPS:
        user = StaffFactory(username=name)
        user.groups.add(Group.objects.get(name=name))
        found[name] = user
    found["superuser"] = User.objects.create_superuser("root")
    for name, user in found.items():
        client = Client()
        client.force_login(user)
        yield name, client


def admin_pages():
    """Yield the address of each page of the admin, for each object that it can be about."""
    yield "/admin/"
    yield "/admin/queue_app/"
    for model, one in own_admins().items():
        keys = [None, *_ids(model)]
        for pattern in one.get_urls():
            if pattern.name is None:
                continue
            for key in keys:
                arguments = [] if key is None else [quote(str(key), safe="")]
                arguments = ["default"] if pattern.name.startswith("queue_app_taskstats_") else arguments
                try:
                    yield reverse(f"admin:{pattern.name}", args=arguments)
                except NoReverseMatch:
                    continue


#: Argument of an address of the API -> the values that it takes here.
def _arguments():
    models = {"letter_id": DeadLetter, "operation_id": Operation, "schedule_id": Schedule, "task_id": Task,
              "workflow_id": Row, "limit_id": Limit}  # fmt: skip
    return {name: _ids(model) for name, model in models.items()} | {
        "name": ["default"],
        "ref": ["default"],
        "band": ["high"],
    }


def _ids(model):
    """Return the ids of all objects; of tasks and dead letters, of one for each type and state."""
    alike = {Task: ("task_type", "status"), DeadLetter: ("task_type",)}.get(model)
    found = model.objects.order_by(*alike).distinct(*alike) if alike else model.objects.all()
    return [str(pk) for pk in found.values_list("pk", flat=True)]


def api_pages():
    """Yield the address of each answer of the API, for each object that it can be about."""
    arguments = _arguments()
    rooms = [each for each in get_resolver().url_patterns if str(getattr(each, "app_name", "")).startswith("queue_app")]
    for app, pattern in ((room.app_name, pattern) for room in rooms for pattern in room.url_patterns):
        names = list(pattern.pattern.converters or pattern.pattern.regex.groupindex)
        if pattern.name in ELSEWHERE or "worker_id" in names or not hasattr(pattern.callback.view_class, "get"):
            continue
        for value in arguments[names[0]] if names else [None]:
            yield reverse(f"{app}:{pattern.name}", args=[value] if names else [])


def read(client, address, *, by_browser):
    """Return what an address answers to a program or, as every page does, to a browser."""
    text = ""
    for accept in ("text/html",) * by_browser + ("application/json",) * address.startswith("/api"):
        answer = client.get(address, headers={"Accept": accept})
        assert answer.status_code < 500, address
        text += b"".join(answer.streaming_content if answer.streaming else [answer.content]).decode()
    return text


@pytest.mark.timeout(1200)  # almost two thousand readings
def test_no_page_and_no_answer_shows_a_canary(house, capsys):
    pages = [*admin_pages(), *api_pages()]
    leaks, seen, count = [], {}, 0
    for name, client in people():
        for address in [*pages, *(redirect(result)["Location"] for result in house)]:
            text = read(client, address, by_browser=name == "superuser" or not address.startswith("/api"))
            count += 1
            seen[name] = seen.get(name, 0) + text.count(VISIBLE)
            leaks += [(name, address, kind) for kind, canary in KINDS.items() if canary in text]
    with capsys.disabled():
        print(f"\ncanaries: {len(pages)} addresses as {len(seen)} people, {count} readings, {len(leaks)} leaks")
    assert not {(name, re.sub(r"[0-9a-f-]{36}|\d+", "…", address), kind) for name, address, kind in leaks}
    assert {name: number > 10 for name, number in seen.items()} == {
        "Task queue: Viewer": False, "Task queue: Operator": True, "Task queue: Admin": True,
        "superuser": True,
    }  # fmt: skip


def test_nothing_that_leaves_the_project_holds_a_canary(house, exporter, bodies, caplog):
    exported = "".join(span.to_json() for span in exporter.get_finished_spans())
    for place in (exported, "".join(bodies)):
        assert not [kind for kind, canary in KINDS.items() if canary in place]
    assert "ValueError" in exported
    assert "task.completed" in "".join(bodies)
    assert "task.dead_letter" in "".join(bodies)
    lines = [(record.name, caplog.handler.format(record)) for record in caplog.get_records("setup")]
    assert {name for name, line in lines for canary in KINDS.values() if canary in line} == {"shop"}, "the task itself"
    assert any(name.startswith("taskqueue") for name, _ in lines)
    kept = tables() + index_text()
    assert SEALED not in kept
    assert MASKED in kept, "PostgreSQL holds what is not encrypted; pages mask it"
    assert MASKED not in index_text()
