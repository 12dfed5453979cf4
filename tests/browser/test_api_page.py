"""A user submits and reprioritises a task on the API's pages in a real browser."""

import json

import pytest
from django.contrib.auth.models import User

from queue_app.models import Queue, Task
from queue_app.services.enqueue.store import forget_known_queues

pytestmark = pytest.mark.django_db(transaction=True)
TYPE = "taskqueue_project.demo.tasks.needs_gpu"


@pytest.fixture
def queue():
    forget_known_queues()
    User.objects.create_superuser("alice")
    yield Queue.objects.get_or_create(name="reports")
    forget_known_queues()


def test_submit_and_reprioritise(visit, queue, screenshot):
    visitor = visit(viewport={"width": 390, "height": 844})
    visitor.log_in("alice")
    page, tasks = visitor.page, f"{visitor.address}/api/v1/tasks"
    page.goto(tasks)
    post = page.locator("form[data-method=POST]")
    assert "task_type" in post.locator("textarea").input_value()
    post.locator("textarea").fill(json.dumps({"task_type": TYPE, "parameters": {"run_id": 7}}))
    post.locator("button").click()
    post.locator(".answer:has-text('201')").wait_for()
    task = Task.objects.get()
    page.goto(f"{tasks}/{task.id}")
    put = page.locator("form[data-method=PUT]")
    put.locator("textarea").fill('{"priority": "critical"}')
    put.locator("button").click()
    put.locator(".answer:has-text('200')").wait_for()
    task.refresh_from_db()
    assert task.band.label == "critical"
    screenshot(page, "api-task-phone")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert visitor.problems == []
