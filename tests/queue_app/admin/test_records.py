"""Pages about what people did: sentences, links, differences, search and filters."""

import pytest
from django.utils import timezone

from queue_app.models import AuditEntry, MaintenanceJob, Operation
from queue_app.models.operation import OperationKind
from queue_app.services.control.audit import record

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
    assert "Change the priority: 120 tasks → high" in text
    assert "2 chosen one by one; queue: mail" in text
    assert "118 of 120, 2 left alone" in text
    assert staff.get(f"{ADMIN}/operation/?q=sale").context["cl"].result_count == 1
    assert staff.get(f"{ADMIN}/operation/?q=nothing").context["cl"].result_count == 0


def test_maintenance_jobs_say_what_they_do_and_what_is_wrong(staff):
    MaintenanceJob.objects.create(name="purge", succeeded_at=timezone.now(), error="OperationalError: <no disk>")
    text = text_of(staff.get(f"{ADMIN}/maintenancejob/"))
    assert "deletes what is past its retention" in text
    assert "OperationalError: &lt;no disk&gt;" in text
