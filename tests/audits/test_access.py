"""Call every address as everyone, about own, foreign and missing objects: no error, no foreign object, no change.

``./dev audit-access`` runs this alone and prints what it called. A new address joins by itself; an address with a new
kind of object fails the test until ``objects`` has one.
"""

import re
import uuid

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import get_resolver, reverse
from django.utils import timezone

from queue_app.core.records import NewTask
from queue_app.models import Operation, SavedView, Task, Workflow
from queue_app.remote import tokens
from queue_app.services import enqueue
from queue_app.services.control.api_keys import create_key, forget_keys
from tests.audits.test_canaries import GROUPS, admin_pages
from tests.queue_app.admin.test_actions import groups  # noqa: F401 - a fixture
from tests.support.contents import rows_without
from tests.support.factories import (
    DeadLetterFactory,
    LimitFactory,
    QueueFactory,
    ScheduleFactory,
    StaffFactory,
    WorkerFactory,
    move,
)

OWN, FOREIGN, MISSING = "own", "foreign", "missing"
NOBODY = "01a1fc14-da10-717b-a823-56ad4650e023"
METHODS = ("get", "post", "put", "patch", "delete")
#: What everybody may read.
PUBLIC = {"live", "ready", "schema", "docs"}
#: Who must not see, or learn of, what belongs to others.
STRANGERS = ("customer", "all permissions, but no staff", "staff without permissions", "key without scopes for it")


#: Who is nobody to the API: the last one belongs to the protocol of workers only.
OUTSIDE = ("nobody", "inactive superuser", "made up key", "worker")
#: Arguments that name what belongs to a user.
OWNED = {"task_id", "letter_id", "operation_id", "workflow_id"}


@pytest.fixture
def objects(groups):  # noqa: F811
    """Return {argument of addresses: {own, foreign, missing: value}}; own is the customer's, foreign is bob's."""

    def owned(user):
        task = Task.objects.get(pk=enqueue(NewTask(task_type="shop.tasks.mail", user=user)).id)
        ended = Task.objects.get(pk=enqueue(NewTask(task_type="shop.tasks.mail", user=user)).id)
        ended = move(move(ended, "executing"), "dead_letter", failures=1)
        now = timezone.now()
        operation = Operation.objects.create(
            kind="cancel", target="tasks", filter={}, arguments={}, by=user, total=0, created_at=now, paced_at=now
        )
        flow = Workflow.objects.create(name="flow", user=user, created_at=now)
        return {
            "task_id": task.pk, "letter_id": DeadLetterFactory(task=ended).pk, "operation_id": operation.pk,
            "workflow_id": flow.pk,
        }  # fmt: skip

    own, foreign = owned("customer"), owned("bob")
    found = {name: {OWN: own[name], FOREIGN: foreign[name], MISSING: NOBODY} for name in own}
    SavedView.objects.create(name="mine", of="task", query="status=failed", user="bob")
    shared = {
        "schedule_id": (ScheduleFactory().pk, 999_999), "limit_id": (LimitFactory().pk, 999_999),
        "name": (QueueFactory().name, "nowhere"), "ref": (QueueFactory().name, "nowhere"), "band": ("high", "nothing"),
        "worker_id": (WorkerFactory().pk, uuid.UUID(NOBODY)),
    }  # fmt: skip
    return found | {name: {FOREIGN: one, MISSING: none} for name, (one, none) in shared.items()}


@pytest.fixture
def people(groups, settings):  # noqa: F811
    """Return {who: client}."""
    limits = {f"{name}_PER_MINUTE": 0 for name in ("SUBMITS", "READS", "HEAVY")}
    settings.TASKQUEUE = settings.TASKQUEUE | {"API": limits}
    forget_keys()
    every = [
        "view_task",
        "cancel_task",
        "view_queue",
        "pause_queue",
        "view_payload",
        "change_schedule",
        "view_workflow",
    ]
    users = {
        "customer": User.objects.create_user("customer"),
        "all permissions, but no staff": StaffFactory(permissions=every),
        "staff without permissions": StaffFactory(),
        "inactive superuser": User.objects.create_superuser("gone", is_active=False),
        "superuser": User.objects.create_superuser("root"),
    }
    users["all permissions, but no staff"].is_staff = False
    users["all permissions, but no staff"].save()
    for name in GROUPS:
        users[name] = StaffFactory()
        users[name].groups.add(Group.objects.get(name=name))
    found = {"nobody": Client()}
    for name, user in users.items():
        found[name] = Client()
        found[name].force_login(user)
    found["key without scopes for it"] = bearer(create_key(users["customer"], "k", scopes=["discard_deadletter"])[1])
    found["worker"] = bearer(tokens.create("far")[1])
    found["made up key"] = bearer("tq_" + "x" * 40)
    yield found
    forget_keys()


def bearer(secret):
    return Client(HTTP_AUTHORIZATION=f"Bearer {secret}")


def routes():
    """Yield (name, address, arguments in it, methods) of each address of the API."""
    for app in ("queue_app", "queue_app_compat"):
        room = next(each for each in get_resolver().url_patterns if getattr(each, "app_name", "") == app)
        for pattern in room.url_patterns:
            names = list(pattern.pattern.regex.groupindex)
            if pattern.name not in {"missing", "task-status"}:
                methods = [method for method in METHODS if hasattr(pattern.callback.view_class, method)]
                address = reverse(f"{app}:{pattern.name}", kwargs={name: f"_{name}_" for name in names})
                yield pattern.name, address, names, methods


def answer(client, method, address):
    found = getattr(client, method)(address, **({} if method == "get" else {"content_type": "application/json"}))
    body = b"".join(found.streaming_content) if found.streaming else found.content
    return found.status_code, body.decode()


def sweep(client, objects, which):
    """Return {(name, method): (status, body)} of all calls about objects that are own, foreign or missing."""
    found = {}
    for name, template, arguments, methods in routes():
        address = template
        if any(which not in objects[each] for each in arguments):
            continue
        for each in arguments:
            address = address.replace(f"_{each}_", str(objects[each][which]))
        for method in methods:
            found[name, method] = answer(client, method, address)
    return found


def without_ids(text):
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|queue-\d+|nowhere|\b\d+\b", "…", text)


def differences(found):
    """Yield what tells a stranger that an object of somebody else exists."""
    owned = {name for name, _, arguments, _ in routes() if set(arguments) & OWNED}
    for who in STRANGERS:
        for call, (status, body) in found[who, FOREIGN].items():
            missing, told = found[who, MISSING][call]
            if call[0] in owned and (status, without_ids(body)) != (missing, without_ids(told)):
                yield who, *call, status, missing


def open_doors(found):
    """Yield what answers somebody who is nobody to it."""
    for who, kind in found:
        if who in OUTSIDE:
            for (name, method), (status, _) in found[who, kind].items():
                is_worker = who == "worker" and name.startswith("worker-") and name != "worker-list"
                if name not in PUBLIC and not is_worker and status not in {401, 405}:
                    yield who, name, method, status


def test_every_address_as_everyone(objects, people, capsys, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"METRICS": {"ACCESS": "staff"}}
    before, found = rows_without(), {}
    for who, client in people.items():
        for kind in (FOREIGN, MISSING) if who in {*STRANGERS, *OUTSIDE} else (MISSING,):  # the others may change them
            found[who, kind] = sweep(client, objects, kind)
    broken = [(*which, *call, status) for which, calls in found.items() for call, (status, _) in calls.items()
              if status >= 500 and status not in {501, 503}]  # fmt: skip
    wrong = [*broken, *differences(found), *open_doors(found)]
    changed = {table for table, rows in rows_without().items() if rows != before[table]}
    with capsys.disabled():
        count = sum(map(len, found.values()))
        print(f"\naccess: {len(list(routes()))} addresses, {len(people)} people, {count} calls, {len(wrong)} findings")
    assert not wrong
    assert changed <= {"queue_app_worker", "queue_app_workertoken", "queue_app_apikey"}, "a worker, and last uses"


def test_customers_see_their_own(objects, people):
    calls = sweep(people["customer"], objects, OWN)
    assert {name for (name, method), (status, _) in calls.items() if method == "get" and status == 200} >= {
        "task", "task-list", "dead-letter", "operation", "workflow",
    }  # fmt: skip


def test_pages_of_the_admin_are_closed_to_those_without_permissions(objects, people, capsys):
    pages, strangers, wrong = list(admin_pages()), (*STRANGERS, *OUTSIDE), []
    for who in strangers:
        closed = {403, 404, 405} if who == "staff without permissions" else {302, 405}
        for page in pages:
            status = people[who].get(page).status_code
            if status not in closed | {302} and not (who == "staff without permissions" and page == "/admin/"):
                wrong.append((who, page, status))
    with capsys.disabled():
        count = len(pages) * len(strangers)
        print(
            f"\naccess: {len(pages)} pages of the admin, {len(strangers)} people, {count} calls, {len(wrong)} findings"
        )
    assert not wrong
