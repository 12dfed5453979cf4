"""Staff answer a waiting task in a real browser."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import expect

from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.models import Signal, StepResult, Task
from queue_app.services.enqueue.store import enqueue
from tests.support.factories import let_wait
from tests.support.rows import forget_known_queues

pytestmark = pytest.mark.django_db(transaction=True)

DESKTOP, PHONE = {"width": 1280, "height": 1000}, {"width": 390, "height": 844}
FIELDS = {
    "approved": {"type": "boolean", "title": "Pay it back?"},
    "amount": {"type": "number", "description": "In the currency of the order."},
    "account": {"type": "string", "enum": ["card", "bank account"]},
    "note": {"type": "string", "required": False, "description": "The customer reads this."},
}


@pytest.fixture
def refund() -> Task:
    """Store a refund that waits for an approval."""
    forget_known_queues()
    User.objects.create_superuser("alice")
    stored = enqueue(NewTask(task_type="shop.tasks.refund", parameters={"order_id": 7}, user="ina"))
    task = let_wait(Task.objects.get(pk=stored.id), schema=FIELDS, until=timezone.now() + timedelta(days=2))
    now = timezone.now()
    StepResult.objects.filter(task=task).update(position=3)
    for position, (name, value) in enumerate([("find payment", {"payment": "p-7"}), ("ask the shop", "shipped")], 1):
        StepResult.objects.create(
            task=task, name=name, position=position, kind="step", attempt=1, value=value, stored_at=now, done_at=now
        )
    return task


@pytest.mark.parametrize(("size", "colours"), [("desktop", "light"), ("phone", "dark")])
def test_an_approval_by_keyboard(visit, refund, screenshot, size, colours):
    visitor = visit(viewport=DESKTOP if size == "desktop" else PHONE, color_scheme=colours)
    visitor.log_in("alice")
    page = visitor.page
    visitor.go(f"task/{refund.pk}/change/")
    screenshot(page, f"waits-{size}-{colours}")
    page.get_by_role("link", name="Answer…").press("Enter")
    expect(page.get_by_role("heading", name="Send the signal approved")).to_be_visible()
    page.get_by_label("Yes").press("Space")
    page.get_by_label("Amount").fill("12.5")
    page.get_by_label("Account").select_option("card")
    page.get_by_label("Reason").fill("they were right")
    screenshot(page, f"approval-{size}-{colours}")
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, "nothing sticks out"
    page.get_by_label("Reason").press("Enter")
    expect(page.get_by_text(re.compile("The signal approved is sent"))).to_be_visible()
    screenshot(page, f"approved-{size}-{colours}")
    refund.refresh_from_db()
    assert refund.status == Status.QUEUED
    assert Signal.objects.get().payload == {"approved": True, "amount": 12.5, "account": "card"}
    assert visitor.problems == []


def test_a_form_that_lacks_an_answer_says_so_beside_the_field(visit, refund, screenshot):
    visitor = visit(viewport=DESKTOP)
    visitor.log_in("alice")
    page = visitor.page
    visitor.go(f"task/{refund.pk}/signal/")
    page.get_by_role("button", name="Send").evaluate("button => button.form.noValidate = true")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("This field is required.").first).to_be_visible()
    screenshot(page, "approval-errors")
    assert not Signal.objects.exists()
    assert visitor.problems == []
