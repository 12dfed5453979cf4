"""A workflow in the browser: the graph without errors, in light and dark, and its buttons."""

from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app import Workflow
from queue_app.models import Task
from queue_app.models import Workflow as Row
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
    start = timezone.now() - timedelta(minutes=5)
    for number, task in enumerate(Task.objects.filter(workflow_id=flow.id).order_by("id")[:50]):
        began = start + timedelta(seconds=0 if not number else 20 + number)
        move(task, "completed", started_at=began, finished_at=began + timedelta(seconds=15))
    move(Task.objects.get(pk=label.id), "failed", started_at=start + timedelta(seconds=20))
    Row.objects.update(held_at=timezone.now())
    return flow


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_workflow(visit, order, screenshots, scheme):
    StaffFactory(username="root", is_superuser=True)
    visitor = visit(color_scheme=scheme, viewport={"width": 1280, "height": 1400})
    visitor.log_in("root")
    visitor.go(f"workflow/{order.id}/change/")
    page = visitor.page
    assert page.locator(".tq-graph .tq-node").count() == 4
    assert page.get_by_role("heading", name="What holds it").is_visible()
    page.screenshot(path=screenshots / f"workflow-{scheme}.png", full_page=True)
    page.get_by_label("Reason").fill("the printer is broken")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("paused by root: the printer is broken").first.wait_for()
    visitor.go("workflow/")
    page.screenshot(path=screenshots / f"workflows-{scheme}.png")
    assert visitor.problems == []


def test_the_page_fits_a_phone(visit, order, screenshots):
    StaffFactory(username="root", is_superuser=True)
    visitor = visit(viewport={"width": 390, "height": 844})
    visitor.log_in("root")
    visitor.go(f"workflow/{order.id}/change/")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.page.screenshot(path=screenshots / "workflow-phone.png")
    assert visitor.problems == []
