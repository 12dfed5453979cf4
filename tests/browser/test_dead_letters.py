"""Staff replay dead letters in a real browser."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.core.records import NewTask
from queue_app.models import Operation, Task, TaskPayload
from queue_app.services import discard, enqueue_many
from queue_app.services.operations.run import run_operations
from tests.support.factories import DeadLetterFactory, move
from tests.support.rows import forget_known_queues

pytestmark = pytest.mark.django_db(transaction=True)

SIZES = {"phone": {"width": 390, "height": 844}, "light": {"width": 1440, "height": 900}}


@pytest.fixture
def letters():
    """Create dead letters of a shop."""
    forget_known_queues()
    User.objects.create_superuser("alice")
    new = NewTask(
        task_type="shop.tasks.charge_card",
        queue="mail",
        user="ina",
        parameters={"order": 4711, "token": "tok_5f2c9e81"},
    )
    now = timezone.now()
    ids = [stored.id for stored in enqueue_many([new] * 6)]
    letters = [
        DeadLetterFactory(
            task=move(task, "dead_letter", attempt=4, failures=4),
            attempts=4,
            exception_class="shop.gateway.CardDeclined",
            message="The gateway declined order 4711 with token=tok_5f2c9e81; ask the customer to try again.",
            died_at=now - timedelta(minutes=n),
        )
        for n, task in enumerate(Task.objects.filter(pk__in=ids).order_by("pk"))
    ]
    discard(letters[5].id, by="bob", reason="customer is gone")
    yield letters
    forget_known_queues()


def test_replay_in_the_browser(visit, letters, screenshot):
    visitor = visit(viewport=SIZES["light"], color_scheme="light")
    visitor.log_in("alice")
    page, base = visitor.page, f"{visitor.address}/admin/queue_app"

    def shot(name):
        for size, pixels in SIZES.items():
            page.set_viewport_size(pixels)
            screenshot(page, f"{name}-{size}")
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
        assert "tok_5f2c9e81" not in page.content()

    page.goto(f"{base}/deadletter/")
    shot("dead-letters")
    page.click("text=CardDeclined >> nth=0")
    shot("dead-letter")
    page.click("text=Replay with edited arguments")
    text = page.input_value("textarea[name=parameters]")
    page.fill("textarea[name=parameters]", text.replace('"token"', '"note"'))
    page.click("input[type=submit]")
    assert "holds the mask" in page.inner_text(".errorlist")
    shot("dead-letter-edit")
    page.fill("textarea[name=parameters]", text.replace("4711", "4712"))
    page.click("input[type=submit]")
    assert "queued again" in page.inner_text(".messagelist")
    assert TaskPayload.objects.get(pk=letters[0].task_id).parameters == {"order": 4712, "token": "tok_5f2c9e81"}
    page.goto(f"{base}/deadletter/?state=open")
    page.check("#action-toggle")
    page.select_option("select[name=action]", "replay_selected")
    page.click("button[name=index]")
    page.fill("input[name=reason]", "the gateway works again")
    page.fill("input[name=rate]", "0.5")
    shot("replay-confirm")
    page.click(".submit-row button")
    page.click(".messagelist a")
    run_operations()
    page.reload()
    assert "1 of 4" in page.inner_text("#content")
    shot("replay")
    page.click("text=Stop >> nth=0")
    assert "stopped" in page.inner_text(".messagelist")
    assert Operation.objects.get().state == "cancelled"
    page.goto(f"{base}/operation/")
    shot("replays")
    assert visitor.problems == []
