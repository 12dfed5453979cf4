"""Call everything that changes something, found by introspection: each call leaves exactly one audit record.

A new page, call or verb fails the test until it has data here. Those listed as read-only are called too.
"""

import io
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone

from queue_app.management import verbs
from queue_app.models import AuditEntry, Limit, PriorityPolicy, Queue, RuntimeSettings, Schedule, Task
from queue_app.schedules.edit import version_of
from queue_app.services.control.pause import pause_type
from tests.queue_app.admin.test_audit import ADMIN, CALLS, PAGES, READS, api_views, own_admins, stage  # noqa: F401 - a fixture
from tests.support.contents import rows_without
from tests.support.engine import rolled_back
from tests.support.factories import LimitFactory, QueueFactory, ScheduleFactory

NOBODY = "01a1fc14-da10-717b-a823-56ad4650e023"
PAUSE = {"reason": "because", "seconds": ""}


def everything():
    return rows_without(AuditEntry)


def assert_one_record(act, via, by="superuser"):
    """Call ``act``, and check that it changes rows and leaves one record."""
    before, known = everything(), AuditEntry.objects.count()
    act()
    assert everything() != before, "nothing changed: give it data that changes something"
    assert AuditEntry.objects.count() == known + 1
    entry = AuditEntry.objects.first()
    assert (entry.by, entry.via) == (by, via)
    return entry


def assert_nothing(act):
    """Call ``act``, and check that it changes nothing."""
    before, known = everything(), AuditEntry.objects.count()
    answer = act()
    assert everything() == before
    assert AuditEntry.objects.count() == known
    return answer


# -- the admin --------------------------------------------------------------------------


def test_a_read_only_page_changes_nothing(staff, stage):  # noqa: F811
    for name in (name for name, how in PAGES.items() if how is READS):
        args = [stage.waiting.pk] if "task_live" in name else ["name"] * ("taskstats" in name or "queue_now" in name)
        assert_nothing(lambda name=name, args=args: staff.post(reverse(f"admin:{name}", args=args)))


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_limits_are_paused_and_resumed_with_a_record(verb, staff):
    limit = LimitFactory() if verb == "pause" else pause_type("shop.mail")
    address = reverse(f"admin:queue_app_limit_{verb}", args=[limit.pk])
    assert assert_one_record(lambda: staff.post(address, PAUSE), "admin").reason == "because"


QUEUE = {"order": "fifo", "fair_by": "user", "fair_weights": "{}", "max_concurrent": "7", "reason": "because"}
POLICY = {"max_retries": "9", "timeout_seconds": "30", "promote_after_seconds": "", "reason": "because"}
SCHEDULE = {
    "task_type": "taskqueue_project.demo.tasks.count_words", "args": "[]", "parameters": '{"document_id": 1}',
    "every": "60", "zone": "UTC", "instants": "[]", "jitter": "0", "catch_up": "last", "catch_up_limit": "10",
    "catch_up_seconds": "86400", "grace_seconds": "60", "overlap": "allow", "weight": "1", "priority": "2",
}  # fmt: skip
ROW = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "_save": "Save", "edit_reason": "because"}
#: (model, form) -> posted data; for a list, of its first row.
FORMS = {
    ("Queue", "add"): QUEUE | {"name": "new"},
    ("Queue", "change"): QUEUE,
    ("Queue", "delete"): {"post": "yes"},
    ("Queue", "list"): ROW | {"form-0-max_concurrent": "7"},
    ("Limit", "add"): {"scope": "key", "name": "customer", "max_concurrent": "3"},
    ("Limit", "change"): {"max_concurrent": "5", "reason": "because"},
    ("Limit", "delete"): {"post": "yes"},
    ("Limit", "list"): ROW | {"form-0-max_concurrent": "7"},
    ("PriorityPolicy", "change"): POLICY,
    ("PriorityPolicy", "list"): ROW | {f"form-0-{name}": value for name, value in POLICY.items() if name != "reason"},
    ("Schedule", "add"): SCHEDULE | {"name": "new"},
    ("Schedule", "change"): SCHEDULE | {"queue": "default", "reason": "because"},
    ("Schedule", "delete"): {"post": "yes"},
    ("ApiKey", "add"): {"name": "reports", "username": "superuser", "scopes": ["read"], "lifetime": "2592000"},
    ("WorkerToken", "add"): {"name": "renderer", "queues": "video", "max_in_flight": "5", "lifetime": "0"},
    ("RuntimeSettings", "change"): {"max_concurrent": "12", "max_length": "5000", "reason": "because"},
}


@pytest.fixture
def editable():
    """Create one row of each editable model; the queue has no tasks, so that it can be deleted."""
    QueueFactory(name="a-quiet-one")
    LimitFactory()
    ScheduleFactory()
    RuntimeSettings.objects.get_or_create(pk=1)


@pytest.mark.parametrize("form", ["add", "change", "delete", "list"])
@pytest.mark.parametrize("model", own_admins(), ids=lambda model: model.__name__)
def test_every_form_leaves_a_record_or_is_refused(model, form, staff, editable):
    model_admin = own_admins()[model]
    request = RequestFactory().get("/")
    request.user = staff.get(ADMIN).wsgi_request.user
    allowed = {
        "add": lambda: model_admin.has_add_permission(request),
        "change": lambda: model_admin.has_change_permission(request),
        "delete": lambda: model_admin.has_delete_permission(request),
        "list": lambda: bool(model_admin.list_editable),
    }[form]()
    first = model.objects.order_by(*model_admin.ordering or ("pk",)).first()
    pk = NOBODY if first is None else first.pk
    names = {"add": ("add", []), "list": ("changelist", [])}
    name, args = names.get(form, (form, [pk]))
    address = reverse(f"admin:queue_app_{model._meta.model_name}_{name}", args=args)
    if not allowed:
        answer = assert_nothing(lambda: staff.post(address, {"post": "yes", "_save": "Save"}))
        assert answer.status_code in {200, 302} if form == "list" else answer.status_code == 403 or first is None
        return
    data = dict(FORMS[model.__name__, form])  # a KeyError here means a new form: add its data to FORMS
    if (model, form) == (Schedule, "change"):
        data["version"] = version_of(first)
    if form == "list":
        data[f"form-0-{model._meta.pk.name}"] = pk
    entry = assert_one_record(lambda: staff.post(address, data), "admin")
    assert entry.target == model._meta.model_name
    assert LogEntry.objects.count() == 1
    if form in {"change", "list"}:
        assert entry.reason == "because"
        assert entry.before != entry.after


def test_an_invalid_reason_stops_the_edit_of_a_list(staff, editable):
    data = FORMS["Queue", "list"] | {"form-0-name": "a-quiet-one", "edit_reason": "r" * 201}
    answer = assert_nothing(lambda: staff.post(f"{ADMIN}queue/", data, follow=True))
    assert "Nothing was changed" in answer.content.decode()


@pytest.mark.parametrize("model", [Queue, Limit], ids=lambda model: model.__name__)
def test_every_action_of_a_list_that_edits_leaves_a_record(model, staff, editable):
    for action in ("pause_selected", "resume_selected", "delete_selected"):
        data = {"action": action, "index": "0", "_selected_action": [model.objects.first().pk], "post": "yes", **PAUSE}
        assert_one_record(lambda data=data: staff.post(f"{ADMIN}{model._meta.model_name}/", data), "admin")


# -- the API ----------------------------------------------------------------------------

EDITS = {
    "queue": ("patch", "queues/default", {"max_concurrent": 3}),
    "policy": ("patch", "policies/low", {"max_retries": 7}),
    "limit-list": ("post", "limits", {"scope": "key", "name": "customer", "max_concurrent": 3}),
    "limit": ("patch", "limits/{limit}", {"max_concurrent": 4}),
    "limits-everything": ("patch", "limits/everything", {"max_concurrent": 4}),
    "limits-pause": ("post", "limits/pause", {"scope": "type", "name": "shop.mail"}),
    "limits-resume": ("post", "limits/resume", {"scope": "type", "name": "paused.type"}),
}


def test_every_call_of_the_api_changes_something_and_leaves_one_record(staff, stage):  # noqa: F811
    limit = LimitFactory()
    pause_type("paused.type")
    PriorityPolicy.objects.get_or_create(pk=3)
    assert EDITS.keys() | CALLS.keys() <= api_views().keys()
    for name in EDITS.keys() | CALLS.keys():
        method, address, body = EDITS[name] if name in EDITS else CALLS[name](stage)
        call = partial(getattr(staff, method), f"/api/v1/{address.format(limit=limit.pk)}", body, "application/json")
        with rolled_back():
            assert_one_record(lambda call=call: call(headers={"If-Match": "*"}), "api")


# -- commands ---------------------------------------------------------------------------

AS = ["--as", "ina"]
#: Verb -> arguments that make it change something.
CHANGES = {
    "cancel": lambda s: [s.waiting.pk, *AS],
    "reprioritise": lambda s: ["low", s.waiting.pk, *AS],
    "encrypt": lambda _: AS,
    "pause": lambda _: ["default", *AS],
    "resume": lambda _: ["paused", *AS],
    "limit": lambda _: ["queue:default.max_concurrent=3", *AS],
    "replay": lambda s: [s.letter.pk, *AS],
    "purge": lambda _: AS,
    "rebuild": lambda _: AS,
    "key": lambda _: ["create", "superuser", *AS],
    "schedule": lambda s: ["pause", s.schedule.name, *AS],
    "signal": lambda s: [s.waiting.pk, "approved", *AS],
    "workflow": lambda s: ["pause", s.flow.pk, *AS],
    "token": lambda _: ["create", "renderer", *AS],
    "stack": lambda s: [s.running.pk, "--wait", 0, *AS],
}
#: A submitted task is its own record: the row names its user.
SUBMITS = {"submit": ["taskqueue_project.demo.tasks.needs_gpu", "--param", "run_id=7", *AS]}
#: It reads until the user ends it; its own tests do.
FOLLOWS = {"tail"}
SCENARIO = Path(__file__).with_name("scenario.toml")
LOOKS = {
    "doctor": lambda _: [],
    "explain": lambda s: [s.waiting.pk],
    "simulate": lambda _: ["--scenario", SCENARIO],
    "stats": lambda _: [],
    "top": lambda _: ["--once"],
}


def say(verb, *words):
    try:
        call_command("taskqueue", verb, *map(str, words), stdout=io.StringIO(), stderr=io.StringIO())
    except SystemExit as end:
        assert end.code in {0, 1}  # noqa: PT017 - the doctor found something


def test_every_verb_is_covered():
    assert set(CHANGES) | set(SUBMITS) | set(LOOKS) | FOLLOWS == set(verbs.names())


@pytest.mark.parametrize("verb", CHANGES)
def test_a_verb_leaves_a_record(verb, staff, stage, settings):  # noqa: F811
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": ["k:" + 42 * "a" + "A"]}}
    Task.objects.filter(pk=stage.failed.pk).update(finished_at=timezone.now() - timedelta(days=999))
    words = CHANGES[verb](stage)
    assert_one_record(lambda: say(verb, *words), "command", by="ina")


def test_a_submission_records_its_user(stage):  # noqa: F811
    say("submit", *SUBMITS["submit"])
    assert Task.objects.filter(user="ina").count() == 1


def test_a_read_only_verb_changes_nothing(stage):  # noqa: F811
    for verb, words in LOOKS.items():
        assert_nothing(lambda verb=verb, words=words: say(verb, *words(stage)))


def test_revoking_an_unknown_token_leaves_no_record():
    from queue_app.exceptions import TaskQueueError  # noqa: PLC0415
    from queue_app.management.verbs import Call  # noqa: PLC0415
    from queue_app.remote import verb as token  # noqa: PLC0415

    call = Call({"action": "revoke", "name": "nobody", "by": "ina"}, io.StringIO(), io.StringIO(), None)
    with pytest.raises(TaskQueueError):
        token.run(call)
    assert not AuditEntry.objects.exists()
