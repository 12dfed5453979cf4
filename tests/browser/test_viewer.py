"""A person who may only look: every page, every link on it, no button that would be refused, and no payload."""

import json
import random
import re
from collections import defaultdict
from importlib import import_module
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.test import Client

from queue_app.models import Queue, Task
from tests.browser.looks import DESKTOP
from tests.browser.test_admin import shop  # noqa: F401 - a fixture
from tests.browser.test_barriers import everything  # noqa: F401 - a fixture
from tests.support.rows import forget_known_queues

pytestmark = pytest.mark.django_db(transaction=True)

#: Pages that change something or show credentials, and so are not for viewers.
NOT_FOR_VIEWERS = {"keys", "key", "new key", "tokens", "token", "new token", "new queue", "new limit", "confirm"}
#: What only parameters, results and messages of errors say.
PAYLOAD = ("tok_5f2c9e81", "49.90", "message_id", "declined with", "unexpectedly closed", "epochs", "gateway.charge")
OFFERED = """() => ({
  links: [...document.querySelectorAll("main a[href], nav a[href]")].map((link) => link.href.split("#")[0]),
  fields: [...document.querySelectorAll("main form[method=post i] :is(input, select, textarea, button)")]
    .filter((field) => field.type !== "hidden").map((field) => field.name || field.textContent),
})"""


#: How many links are tried that differ only in ids and values; each run draws them anew.
OF_A_KIND = 3


def drawn(links):
    """Return some links of each kind."""
    kinds = defaultdict(list)
    for link in sorted(links):
        _, _, path, query, _ = urlsplit(link)
        names = tuple(name for name, _ in parse_qsl(query, keep_blank_values=True))
        kinds[re.sub(r"[0-9a-f-]{36}|\d+", "*", path), names].append(f"{path}?{query}")
    return [link for kind in kinds.values() for link in random.sample(kind, min(len(kind), OF_A_KIND))]


@pytest.fixture
def viewer(visit, everything):  # noqa: F811 - the fixture
    user = User.objects.create_user("vera", is_staff=True)
    import_module("queue_app.migrations.0002_defaults").create_groups(apps, "default")
    user.groups.add(Group.objects.get(name="Task queue: Viewer"))
    visitor = visit(viewport=DESKTOP)
    visitor.client = Client()
    visitor.client.force_login(user)
    visitor.log_in("vera")
    return visitor


def test_every_page_and_link_works_and_nothing_is_offered_that_is_refused(everything, viewer):  # noqa: F811
    page, base = viewer.page, f"{viewer.address}/admin/"
    links, found = set(), {}
    for name, path in everything.items():
        if name in NOT_FOR_VIEWERS:
            continue
        viewer.go(path)
        if not path:
            page.wait_for_selector("#tq-overview[data-drawn]")
        content, offered = page.content(), page.evaluate(OFFERED)
        links.update(link for link in offered["links"] if link.startswith(base))
        shown = [text for text in PAYLOAD if text in content]
        if offered["fields"] or shown:
            found[name] = (offered["fields"], shown)
    refused = {link for link in drawn(links) if viewer.client.get(link).status_code >= 400}
    assert found == {}
    assert refused == set()
    assert viewer.problems == []


# -- the API page ----------------------------------------------------------------------------------------------------


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
