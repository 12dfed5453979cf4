"""Tasks that the app enqueues itself are not for sale: each public door refuses them, whoever asks."""

import io
import json

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from queue_app import registry, webhooks
from queue_app.models import DeadLetter, Schedule, Task
from queue_app.registry import type_of
from queue_app.schedules.backfill import run_schedule
from queue_app.services.requests import consume
from queue_app.workflows import builder  # noqa: F401 - the latter registers a task
from tests.support.asking import answers, ask, plain
from tests.support.factories import DeadLetterFactory, ScheduleFactory, move

PLAIN, OTHER = type_of(plain), "https://attacker.example.com/"
CALL = {"endpoint": "crm", "event": "order.paid", "data": "forged"}
WHEN = {"every": "60", "zone": "UTC", "instants": "[]", "jitter": "0", "catch_up": "last", "catch_up_limit": "10",
        "catch_up_seconds": "86400", "grace_seconds": "60", "overlap": "allow", "name": "forged",
        "args": "[]"}  # fmt: skip


def own_types() -> list[str]:
    """Return the types that the app enqueues itself, but for those of its testing kit."""
    registry.discover()
    found = [name for name in registry.known_types() if registry.known(name).func.__module__.startswith("queue_app.")]
    return [name for name in found if ".testing." not in name]


@pytest.fixture(autouse=True)
def rows(engine, settings):
    """Real rows, because the request stream reads them."""
    settings.TASKQUEUE = settings.TASKQUEUE | {
        "WEBHOOKS": {"crm": {"url": "https://crm.example.com/", "secrets": ["whsec_" + "YWFh" * 11]}},
        "REQUESTS": {"ENABLED": True},
    }


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def sent(client, method, path, body):
    call = getattr(client, method)
    found = call(f"/api/v1/{path}", body, content_type="application/json", headers={"If-Match": "*"})
    return f"{found.status_code} {found.content.decode()}"


def said(*words) -> str:
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("taskqueue", *map(str, words), stdout=out, stderr=err)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - how a command refuses
        err.write(str(error))
    return out.getvalue() + err.getvalue()


def by_stream(kind):
    ask(task_type=kind, parameters=json.dumps(CALL))
    consume()
    return json.dumps(answers()[-1].details)


def by_beat(kind, settings):
    settings.CELERY_BEAT_SCHEDULE = {"forged": {"task": kind, "kwargs": CALL, "schedule": 60}}
    return said("schedule", "import-beat")


NODE = {"name": "a", "task_type": PLAIN}
#: Door -> what it answers when it is asked for a task of this type.
DOORS = {
    "POST /tasks": lambda kind, c, **_: sent(c, "post", "tasks", {"task_type": kind, "parameters": CALL}),
    "POST /tasks/bulk": lambda kind, c, **_: sent(
        c, "post", "tasks/bulk", {"tasks": [{"task_type": kind, "parameters": CALL}]}
    ),
    "POST /schedules": lambda kind, c, **_: sent(
        c, "post", "schedules", {"name": "forged", "task_type": kind, "parameters": CALL, "every": 60}
    ),
    "PATCH /schedules": lambda kind, c, **_: sent(
        c, "patch", f"schedules/{ScheduleFactory(task_type=PLAIN).pk}", {"task_type": kind, "parameters": CALL}
    ),
    "POST /workflows": lambda kind, c, **_: sent(
        c, "post", "workflows", {"name": "f", "tasks": [NODE | {"task_type": kind, "parameters": CALL}]}
    ),
    "compensate": lambda kind, c, **_: sent(
        c, "post", "workflows", {"name": "f", "tasks": [NODE | {"compensate": kind}]}
    ),
    "page of a new schedule": lambda kind, c, **_: c.post(
        "/admin/queue_app/schedule/add/", WHEN | {"task_type": kind, "parameters": json.dumps(CALL)}
    ).content.decode(),
    "page of a new task": lambda kind, c, **_: c.post(
        "/admin/queue_app/task/new/", {"task_type": kind, "parameters": json.dumps(CALL)}
    ).content.decode(),
    "request stream": lambda kind, **_: by_stream(kind),
    "taskqueue submit": lambda kind, **_: said("submit", kind, "--json-params", json.dumps(CALL)),
    "taskqueue schedule add": lambda kind, **_: said("schedule", "add", "forged", kind, "--every", "60"),
    "import-beat": lambda kind, settings, **_: by_beat(kind, settings),
}  # fmt: skip


def test_the_app_has_tasks_of_its_own():
    assert own_types() == ["queue_app.webhooks.deliver", "queue_app.workflows.builder.expand"]


@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_a_task_of_the_app(door, root, settings):
    for kind in own_types():
        answered = DOORS[door](kind, c=root, settings=settings)
        assert "which only code enqueues" in answered or "unknown_task_type" in answered, answered[:500]
        assert not Schedule.objects.filter(task_type=kind).exists()
        assert not Task.objects.filter(task_type=kind).exists()
        Schedule.objects.all().delete()


@pytest.mark.parametrize("option", ["on_success", "on_failure", "metadata"])
def test_no_door_takes_a_callback(option, root):
    """A callback may be a webhook, and metadata name callbacks."""
    plain_call = {"task_type": PLAIN, option: {"on_success": "webhook:crm"} if option == "metadata" else "webhook:crm"}
    places = {
        "tasks": plain_call, "tasks/bulk": {"tasks": [plain_call]},
        "workflows": {"name": "f", "tasks": [NODE | plain_call]},
        "schedules": plain_call | {"name": "forged", "every": 60},
    }  # fmt: skip
    for path, body in places.items():
        answer = sent(root, "post", path, body)
        assert "unknown_field" in answer or "read_only_field" in answer, path
    ask(**{name: value if isinstance(value, str) else json.dumps(value) for name, value in plain_call.items()})
    consume()
    assert answers()[-1].details["code"] == "unknown_field"
    assert not Task.objects.exists()


def test_a_schedule_of_before_the_upgrade_enqueues_nothing(root):
    found = ScheduleFactory(task_type=registry.DELIVER, parameters=CALL)
    with pytest.raises(Exception, match="which only code enqueues"):
        run_schedule(found.name, by="ann")
    assert not Task.objects.exists()


@pytest.mark.parametrize("edited", [{"data": "forged"}, {"url": OTHER}, {}])
def test_a_delivery_is_repeated_as_it_was_or_not_at_all(root, edited):
    webhooks.send("crm", "order.paid", {"order": 7})
    task = move(move(Task.objects.get(), "executing"), "dead_letter", failures=1)
    args = {"endpoint": "crm", "event": "order.paid", "data": {"order": 7}} | edited
    form = {"args": json.dumps(args), "parameters": "{}"}
    page = root.post(f"/admin/queue_app/task/{task.pk}/run-again/", form, follow=True).content.decode()
    letter = DeadLetterFactory(task=task)
    replay = sent(root, "post", f"dlq/{letter.pk}/replay", {"parameters": {"data": "forged"}} if edited else {})
    copies = Task.objects.exclude(pk=task.pk).count()
    if edited:
        assert "which only code enqueues" in page or "url" in edited, "the form knows only arguments that were given"
        assert "which only code enqueues" in replay
        assert (copies, DeadLetter.objects.open().count()) == (0, 1)
    else:
        assert copies == 1
        assert replay.startswith("200")
