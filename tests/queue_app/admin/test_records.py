"""Pages about what people did: sentences, links, differences, search and filters."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from queue_app.core import shared
from queue_app.core.priorities import Band
from queue_app.dashboard import charts
from queue_app.dashboard.sentences import change_text, entry_sentence
from queue_app.models import AuditEntry, MaintenanceJob, Operation, Task
from queue_app.models.operation import OperationKind
from queue_app.services.control.audit import record
from queue_app.services.upkeep.maintenance import run_overdue

ADMIN = "/admin/queue_app"


def text_of(answer):
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


@pytest.fixture
def log():
    record("queue.pause", "queue", ["mail"], by="ina", via="admin", reason="gateway is down")
    record("cancel.post", "task", ["01a1fc14-da10-717b-a823-56ad4650e023"], by="omar", via="api")
    record("replay", "deadletter", [1, 2, 3], by="ina", via="command")
    before = {"max_concurrent": 3, "description": "Letters", "password": "old"}
    record("queue.edit", "queue", ["mail"], by="ina", via="admin", before=before, after=before | {"max_concurrent": 4})
    return list(AuditEntry.objects.order_by("id"))


def test_the_log_is_written_in_sentences_with_links(staff, log):
    text = text_of(staff.get(f"{ADMIN}/auditentry/"))
    assert '<strong>ina</strong> paused queue <a href="/admin/queue_app/queue/mail/change/">mail</a>' in text
    assert "<strong>omar</strong> cancelled task <a" in text
    assert "<strong>ina</strong> replayed 3 dead letter" in text


def test_an_entry_shows_the_difference(staff, log):
    text = text_of(staff.get(f"{ADMIN}/auditentry/{log[-1].pk}/change/"))
    assert "<del>3</del>" in text
    assert "<ins>4</ins>" in text
    assert text.count("<ins>") == 1, "what stayed is not marked"
    assert "old" not in text.split("What changed")[1].split("</table>")[0]


@pytest.mark.parametrize(
    ("query", "found"), [("?by=omar", 1), ("?target=queue", 2), ("?q=gateway", 1), ("?q=mail", 2), ("?via=command", 1)]
)
def test_the_log_is_filtered_and_searched(staff, log, query, found):
    assert staff.get(f"{ADMIN}/auditentry/{query}").context["cl"].result_count == found


def test_a_name_from_outside_is_escaped(staff):
    record("queue.pause", "queue", ["<b>mail</b>"], by="<script>", via="api")
    text = text_of(staff.get(f"{ADMIN}/auditentry/"))
    assert "<script>" not in text.split("result_list")[1].split("</table>")[0]
    assert "<b>mail" not in text


@pytest.mark.parametrize("action", ["pause.post", "add", "made.up", "queue.edit"])
def test_every_action_has_a_sentence(staff, action):
    record(action, "strange-thing", ["x"], by="", via="command")
    assert "strange thing x" in text_of(staff.get(f"{ADMIN}/auditentry/"))


def test_operations_say_what_they_do_to_what(staff):
    Operation.objects.create(
        kind=OperationKind.REPRIORITISE, target="tasks", total=120, changed=118, skipped=2, by="ina", reason="sale",
        filter={"queue": "mail", "ids": ["a", "b"]}, arguments={"priority": "high"}, created_at=timezone.now(),
        state="done", finished_at=timezone.now(),
    )  # fmt: skip
    text = text_of(staff.get(f"{ADMIN}/operation/"))
    words = " ".join(strip_tags(text.replace("<br>", " ")).split())
    assert "ina changed the priority of 120 tasks → high 2 chosen; queue: mail" in words
    assert '<a href="/admin/queue_app/queue/mail/change/">mail</a>' in text
    assert "118 of 120, 2 left alone" in text
    assert staff.get(f"{ADMIN}/operation/?q=sale").context["cl"].result_count == 1
    assert staff.get(f"{ADMIN}/operation/?q=nothing").context["cl"].result_count == 0


# -- promotion and maintenance jobs ----------------------------------------------------------------------------------


TASKS = reverse("admin:queue_app_task_changelist")


@pytest.mark.parametrize("page", ["list", "task", "type"])
def test_pages_show_both_bands_of_a_promoted_task(staff, make_task, page):
    task = make_task(priority=Band.LOW)
    address = {
        "list": TASKS,
        "task": reverse("admin:queue_app_task_change", args=[task.pk]),
        "type": reverse("admin:queue_app_taskstats_type", args=[task.task_type]),
    }[page]
    assert "↑" not in staff.get(address).content.decode()
    Task.objects.filter(pk=task.pk).update(queued_at=timezone.now() - timedelta(seconds=1900))
    page = staff.get(address).content.decode()
    assert '<span class="tq-label tq-band-high">high</span>' in page
    assert "↑ low" in page


def test_the_jobs_show_their_last_success(staff):
    run_overdue()
    MaintenanceJob.objects.filter(pk="purge").update(succeeded_at=None, error="RuntimeError: <b>no</b>")
    page = staff.get(reverse("admin:queue_app_maintenancejob_changelist")).content.decode()
    for text in ("promote", "expire", "snapshot", "purge", "deletes what is past its retention"):
        assert text in page
    assert "just now" in page
    assert "never" in page
    assert "RuntimeError: &lt;b&gt;no&lt;/b&gt;" in page


@pytest.mark.parametrize("view", ["change", "delete"])
def test_the_jobs_cannot_be_edited(staff, view):
    MaintenanceJob.objects.create(name="purge")
    page = staff.post(reverse(f"admin:queue_app_maintenancejob_{view}", args=["purge"]), {"name": "x", "post": "yes"})
    assert page.status_code == 403
    assert MaintenanceJob.objects.get().name == "purge"


# -- sentences -------------------------------------------------------------------------------------------------------


REPLAY = "01a206d4-8707-7597-8f0b-81e978a4ea6e"


def entry(action="queue.pause", target="queue", target_id="mail", **options):
    options |= {"target": target, "target_id": target_id, "by": "otto", "via": "admin", "at": timezone.now()}
    return AuditEntry.objects.create(action=action, **options)


@pytest.mark.parametrize(
    ("action", "target", "target_id", "count", "words"),
    [
        ("queue.pause", "queue", "mail", 1, "otto paused queue mail"),
        ("deadletter.replay_many", "operation", REPLAY, 1, "otto replayed 1 dead letter"),
        ("task.cancel_all", "operation", REPLAY, 1, "otto cancelled 1 task"),
        ("deadletter.discard_many", "deadletter", "", 74, "otto discarded 74 dead letters"),
        ("operation.simulate", "operation", REPLAY, 1, "otto simulated a change of limits"),
        ("prioritypolicy.edit", "prioritypolicy", "2", 1, "otto edited policy normal"),
    ],
)
def test_an_action_is_a_sentence(rows, action, target, target_id, count, words):
    found = entry(action, target, target_id, count=count)
    assert strip_tags(entry_sentence(found, lambda model, pk: f"/{model}/{pk}/")) == words


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"paused": False, "by": "", "reason": ""}, {"paused": True}, "paused: no → yes"),
        ({}, {"rate": None, "filter": {"queue": "mail", "user": None}}, "filter: queue: mail"),
        ({"max_concurrent": None}, {"max_concurrent": 4}, "tasks at the same time: - → 4"),
        ({"target_seconds": 300.0}, {"target_seconds": 60.0}, "target for the wait: 5 min → 1 min"),
        ({}, {"scope": "type", "scopes": ["view_task"]}, "limit of: task type; may do: view task"),
        ({}, {"capabilities": ["gpu", "ssd"], "weights": {}}, "capabilities: gpu, ssd"),
        ({}, {}, ""),
    ],
)
def test_a_change_names_only_what_says_something(rows, before, after, words):
    assert change_text(entry(before=before, after=after)) == words


def test_pages_and_charts_say_it_in_the_same_words(staff, make_task):
    make_task(queue="mail")
    entry(after={"paused": True}, before={"paused": False}, reason="it's <late>")
    shared.forget()
    [mark] = charts.marks("1h")
    assert mark["text"] == "otto paused queue mail"
    page = strip_tags(staff.get("/admin/queue_app/queue/mail/change/").content.decode())
    assert "otto paused queue mail via admin" in " ".join(page.split())
