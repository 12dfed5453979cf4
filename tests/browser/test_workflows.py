"""A workflow in the browser: no barriers, live, and without scripts."""

from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from queue_app import Workflow
from queue_app.models import StepResult, Task, Workflow as Row
from tests.browser.looks import LOOKS, problems_in_all_looks
from tests.support.factories import StaffFactory, move
from tests.workers import chores

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def order() -> Workflow:
    """An order of many parcels, of which one label failed."""
    flow = Workflow("ship order 4711", user="ina")
    pay = flow.add(chores.echo, 1, compensate=chores.quick)
    packed = [flow.add(chores.quick, number, after=[pay]) for number in range(60)]
    label = flow.add(chores.returns, "x", after=[pay])
    flow.add(chores.slow, after=[*packed, label])
    flow.enqueue()
    start = timezone.now() - timedelta(days=3)
    for number, task in enumerate(Task.objects.filter(workflow_id=flow.id).order_by("id")[:50]):
        began = start + timedelta(seconds=0 if not number else 20 + number)
        move(task, "completed", started_at=began, finished_at=began + timedelta(seconds=15))
    move(
        Task.objects.get(pk=label.id),
        "failed",
        started_at=start + timedelta(seconds=20),
        finished_at=start + timedelta(seconds=40),
    )
    Row.objects.update(held_at=timezone.now())
    return flow


@pytest.fixture
def asked(order) -> Workflow:
    """The same order, of which a task waits for a person too."""
    task = Task.objects.get(workflow_id=order.id, task_type__endswith="slow")
    Task.objects.filter(pk=task.pk).update(attempt=1, started_at=timezone.now() - timedelta(days=2))
    StepResult.objects.create(
        task=task, name="wait for checked", position=1, kind="signal", attempt=1, signal="checked",
        stored_at=timezone.now(),
    )  # fmt: skip
    return order


def test_no_barriers(visit, asked, screenshot):
    """Without errors in the console, violations of the policy, or barriers that axe finds; nothing is cut off."""
    StaffFactory(username="root", is_superuser=True)
    visitor = visit(**LOOKS["light"])
    visitor.log_in("root")
    found = {}
    for name, path in (("s", ""), ("", f"{asked.id}/change/"), ("-signal", f"{asked.id}/signal/")):
        visitor.go(f"workflow/{path}")
        found[path] = problems_in_all_looks(visitor.page, partial(screenshot, visitor.page, f"workflow{name}"))
        assert visitor.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    assert not any(found.values()), found
    assert visitor.problems == []


def test_the_page_shows_what_happens_and_keeps_what_is_typed(visit, asked):
    StaffFactory(username="root", is_superuser=True)
    visitor = visit(viewport={"width": 1280, "height": 1400})
    visitor.log_in("root")
    visitor.page.clock.install()
    visitor.go(f"workflow/{asked.id}/change/")
    page = visitor.page
    assert page.locator(".tq-graph .tq-node").count() == 4
    assert page.get_by_role("heading", name="What holds it").is_visible()
    assert page.locator(".tq-node-state", has_text="waits for: checked").count() == 1
    page.get_by_label("Reason", exact=True).fill("the printer is broken")
    label = Task.objects.get(workflow_id=asked.id, status="failed")
    move(label, "completed", started_at=label.started_at)
    Row.objects.update(held_at=None)
    visitor.see("#tq-flow:not(:has(h2:text-is('What holds it')))")
    assert page.locator(".tq-graph .tq-node-failed").count() == 0, "the classes of the picture change too"
    assert page.get_by_label("Reason", exact=True).input_value() == "the printer is broken"
    assert "waiting" in page.locator("#tq-flow-status").inner_text(), "it is told to screen readers"
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("paused by root: the printer is broken").first.wait_for()
    assert visitor.problems == []


def test_the_page_works_without_scripts(visit, asked):
    StaffFactory(username="root", is_superuser=True)
    visitor = visit(java_script_enabled=False)
    visitor.log_in("root")
    visitor.go(f"workflow/{asked.id}/change/")
    page = visitor.page
    assert page.locator(".tq-graph .tq-node").count() == 4
    page.get_by_role("link", name="Answer…").click()
    page.get_by_label("Payload").fill('"yes"')
    page.get_by_role("button", name="Send").click()
    assert page.url.endswith(f"/workflow/{asked.id}/change/"), "back on the page of the workflow"
    assert visitor.problems == []
