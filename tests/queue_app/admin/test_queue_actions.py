"""Queues and policies in the admin."""

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from queue_app.models import AuditEntry, PriorityPolicy, Queue, RuntimeSettings
from queue_app.services import pause
from tests.queue_app.admin.test_actions import QUEUES
from tests.support.pages import messages_of, select

QUEUE_FORM = {"order": "fifo", "fair_by": "user", "fair_weights": "{}"}


# -- queues ---------------------------------------------------------------------------


def test_pause_and_resume_selected(staff):
    queues = [Queue.objects.get(pk="default"), Queue.objects.create(name="with_under.score")]
    response = select(staff, QUEUES, "pause_selected", queues, reason="printer on fire")
    assert messages_of(response) == ["Paused: 2."]
    for queue in queues:
        queue.refresh_from_db()
        assert (queue.paused, queue.paused_by, queue.paused_reason) == (True, "superuser", "printer on fire")
    assert messages_of(select(staff, QUEUES, "pause_selected", queues))[-1] == "Skipped 2 (already paused)."
    assert messages_of(select(staff, QUEUES, "resume_selected", queues[:1]))[-1] == "Resumed: 1."
    log = LogEntry.objects.filter(object_id="default").order_by("id").values_list("change_message", flat=True)
    assert list(log) == ["Paused: printer on fire", "Resumed."]


def test_pause_and_resume_buttons(staff):
    name = Queue.objects.create(name="with_under.score").name
    address = reverse("admin:queue_app_queue_pause", args=["with_5Funder.score"])
    page = staff.post(address, {"reason": "r" * 201}, follow=True).content.decode()
    assert "the limit is 200" in page
    page = staff.post(address, {"reason": "maintenance", "seconds": "5"}, follow=True).content.decode()
    assert "the length of the pause is unknown" in page
    assert not Queue.objects.get(pk=name).paused
    page = staff.post(address, {"reason": "maintenance", "seconds": "3600"}, follow=True).content.decode()
    assert "maintenance" in page
    assert "resumes" in page
    assert Queue.objects.get(pk=name).resume_at is not None
    assert "Resume" in page
    assert Queue.objects.get(pk=name).paused
    page = staff.post(address, {}, follow=True).content.decode()
    assert "paused already" in page
    staff.post(reverse("admin:queue_app_queue_resume", args=["with_5Funder.score"]))
    assert not Queue.objects.get(pk=name).paused
    assert staff.post(f"{QUEUES}none/pause/").status_code == 302


def test_limits_are_edited_in_the_list_and_on_the_page(staff, committed):
    form = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-name": "default", "_save": "Save"}
    staff.post(QUEUES, form | {"form-0-max_concurrent": "7"})
    assert Queue.objects.get(pk="default").max_concurrent == 7
    assert staff.post(QUEUES, form | {"form-0-max_concurrent": "0"}).status_code == 200
    assert Queue.objects.get(pk="default").max_concurrent == 7
    staff.post(f"{QUEUES}default/change/", QUEUE_FORM | {"description": "all the rest", "reason": "quiet days"})
    queue = Queue.objects.get(pk="default")
    assert (queue.max_concurrent, queue.description) == (None, "all the rest")
    entry = AuditEntry.objects.filter(action="queue.edit").first()
    assert (entry.before["max_concurrent"], entry.after["max_concurrent"], entry.reason) == (7, None, "quiet days")
    page = staff.get(f"{QUEUES}default/change/").content.decode()
    assert "max concurrent: 7 → -" in page
    assert "quiet days" in page
    bad = staff.post(f"{QUEUES}default/change/", QUEUE_FORM | {"rate_count": "5"}).content.decode()
    assert "Enter the period in seconds" in bad


def test_an_edit_does_not_undo_a_concurrent_pause(staff, monkeypatch):
    from queue_app.admin.queue import QueueAdmin  # noqa: PLC0415

    real = QueueAdmin.save_model

    def pause_first(self, request, obj, form, change):
        pause("default", by="another user", reason="now")
        real(self, request, obj, form, change)

    monkeypatch.setattr(QueueAdmin, "save_model", pause_first)
    staff.post(f"{QUEUES}default/change/", QUEUE_FORM | {"description": "new", "max_concurrent": "3"})
    queue = Queue.objects.get(pk="default")
    assert (queue.paused, queue.paused_by, queue.max_concurrent) == (True, "another user", 3)


@pytest.mark.parametrize("how", ["page", "bulk"])
def test_a_queue_with_pending_tasks_is_not_deleted(how, staff, make_task, end_task):
    make_task(queue="busy")
    end_task(make_task(queue="quiet"))

    def delete(name):
        if how == "page":
            return staff.post(f"{QUEUES}{name}/delete/", {"post": "yes"})
        return select(staff, QUEUES, "delete_selected", [Queue.objects.get(pk=name)], post="yes")

    assert "pending tasks" in delete("busy").content.decode()
    delete("quiet")
    names = set(Queue.objects.values_list("name", flat=True))
    assert "busy" in names
    assert "quiet" not in names


def test_a_queue_is_added_once_and_keeps_its_name(staff):
    assert staff.post(f"{QUEUES}add/", QUEUE_FORM | {"name": "new", "max_concurrent": "2"}).status_code == 302
    assert staff.post(f"{QUEUES}add/", QUEUE_FORM | {"name": "not a name"}).status_code == 200
    staff.post(f"{QUEUES}new/change/", QUEUE_FORM | {"name": "renamed", "description": "x", "max_concurrent": "2"})
    assert set(Queue.objects.values_list("name", flat=True)) == {"default", "new"}


# -- policies -------------------------------------------------------------------------


def test_policies_are_edited(staff):
    page = "/admin/queue_app/prioritypolicy/0/change/"
    data = {"max_retries": "9", "timeout_seconds": "30", "promote_after_seconds": ""}
    assert staff.post(page, data).status_code == 302
    assert PriorityPolicy.objects.get(pk=0).max_retries == 9
    assert staff.post(page, data | {"timeout_seconds": "0"}).status_code == 200
    limits = {"max_concurrent": "12", "max_length": "5000"}
    assert staff.post("/admin/queue_app/runtimesettings/1/change/", limits).status_code == 302
    assert RuntimeSettings.objects.get().max_concurrent == 12
    assert staff.post("/admin/queue_app/runtimesettings/1/delete/", {"post": "yes"}).status_code == 403
    assert staff.post("/admin/queue_app/indexgeneration/1/change/", {"number": "5"}).status_code == 403
