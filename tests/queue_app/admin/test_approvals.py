"""The page on which staff send a waiting task its signal."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.models import AuditEntry, Signal, StepResult
from tests.queue_app.admin.test_actions import TASKS
from tests.support.factories import let_wait
from tests.support.pages import messages_of

FIELDS = {
    "approved": {"type": "boolean", "title": "Pay it back?"},
    "amount": {"type": "number"},
    "currency": {"type": "string", "enum": ["EUR", "SEK"]},
    "note": {"type": "string", "required": False, "description": "The customer reads this."},
}
FILLED = {"field_approved": "true", "field_amount": "12.5", "field_currency": "SEK", "field_note": "sorry"}


@pytest.fixture
def waiting(make_task):
    return let_wait(make_task(), schema=FIELDS, until=timezone.now() + timedelta(hours=3))


def page_of(task) -> str:
    return f"{TASKS}{task.pk}/signal/"


def test_the_task_page_says_what_it_waits_for_and_links_to_the_form(staff, waiting):
    page = staff.get(f"{TASKS}{waiting.pk}/change/").content.decode()
    assert "It waits for the signal approved until" in page
    assert page.index("Pay it back?") < page.index(page_of(waiting)) < page.index("Cancel task"), "first what is asked"
    assert "1. wait for approved" in page


def test_the_form_has_the_declared_fields(staff, waiting):
    page = staff.get(page_of(waiting)).content.decode()
    assert page.index("Pay it back?") < page.index("Amount") < page.index("Currency"), "in the declared order"
    for text in ("Pay it back?", "Amount", "The customer reads this.", '<option value="SEK">', "waits for the signal"):
        assert text in page


def test_an_approval_wakes_the_task_and_is_audited(staff, waiting):
    response = staff.post(page_of(waiting), FILLED | {"reason": "they were right"})
    assert messages_of(response) == ["The signal approved is sent; the task continues."]
    sent = Signal.objects.get()
    assert sent.payload == {"approved": True, "amount": 12.5, "currency": "SEK", "note": "sorry"}
    assert sent.sent_by == "superuser"
    waiting.refresh_from_db()
    assert waiting.status == Status.QUEUED
    entry = AuditEntry.objects.get(action="task.signal")
    assert (entry.by, entry.via, entry.reason) == ("superuser", "admin", "they were right")
    assert entry.after == {"signal": "approved", "payload": "********"}
    assert "they were right" in LogEntry.objects.get().change_message


def test_no_is_an_answer_and_an_empty_optional_field_is_left_out(staff, waiting):
    staff.post(page_of(waiting), FILLED | {"field_approved": "false", "field_note": ""})
    assert Signal.objects.get().payload == {"approved": False, "amount": 12.5, "currency": "SEK"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"field_approved": ""}, "This field is required."),
        ({"field_amount": "many"}, "Enter a number."),
        ({"field_currency": "USD"}, "Select a valid choice."),
        ({"reason": "a\nb"}, "reason contains control or invisible characters."),
    ],
)
def test_a_form_that_lacks_something_sends_nothing(staff, waiting, change, said):
    assert said in staff.post(page_of(waiting), FILLED | change).content.decode()
    assert not Signal.objects.exists()
    waiting.refresh_from_db()
    assert waiting.status == Status.BLOCKED


def test_the_second_of_two_people_sends_nothing(staff, waiting):
    staff.post(page_of(waiting), FILLED)
    assert messages_of(staff.post(page_of(waiting), FILLED))[-1] == "The task waits for no signal now."
    assert Signal.objects.count() == 1


def test_two_people_at_once_send_one_signal(staff, waiting, monkeypatch):
    """The second one's page was read before the first one's signal was sent."""
    from queue_app.admin import signals as workflow  # noqa: PLC0415

    plain = workflow.awaited_by_task

    def then_another(task_id):
        found = list(plain(task_id))
        if not Signal.objects.exists():
            workflow.signal(task_id, "approved", {"approved": True, "amount": 1, "currency": "EUR"}, by="ina")
        return found

    monkeypatch.setattr(workflow, "awaited_by_task", then_another)
    response = staff.post(page_of(waiting), FILLED)
    assert messages_of(response) == ["The task no longer waits for this signal. Nothing was sent."]
    assert [one.sent_by for one in Signal.objects.all()] == ["ina"]


def test_a_signal_without_declared_fields_takes_json(staff, make_task):
    task = let_wait(make_task())
    assert "This is not JSON" in staff.post(page_of(task), {"payload": "{"}).content.decode()
    staff.post(page_of(task), {"payload": '{"a": [1]}'})
    assert Signal.objects.get().payload == {"a": [1]}


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("canceller", 403), ("anonymous", 302)])
def test_who_may_send(client_of, waiting, role, status):
    client = client_of(role)
    for response in (client.get(page_of(waiting)), client.post(page_of(waiting), FILLED)):
        assert response.status_code == status
    assert not Signal.objects.exists()


def test_viewers_see_no_payloads_and_no_link(client_of, waiting):
    Signal.objects.create(task=waiting, name="early", payload={"pin": "canary"}, sent_at=timezone.now())
    StepResult.objects.create(
        task=waiting, name="first", position=0, kind="step", attempt=1, value="canary",
        stored_at=timezone.now(), done_at=timezone.now(),
    )  # fmt: skip
    page = client_of("viewer").get(f"{TASKS}{waiting.pk}/change/").content.decode()
    assert "early" in page
    assert "canary" not in page
    assert page_of(waiting) not in page
    assert "canary" in client_of("superuser").get(f"{TASKS}{waiting.pk}/change/").content.decode()
