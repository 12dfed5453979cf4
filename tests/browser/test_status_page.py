"""The status page of a task in a browser: live, without barriers, and only for the task's user."""

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.models import Task, TaskProgress, TaskResult
from tests.browser.looks import LOOKS, barriers, problems_in_all_looks
from tests.queue_app.test_status_page import make_report
from tests.support.factories import move

pytestmark = pytest.mark.django_db(transaction=True)

FRAGMENT = "[data-task-status]"
POLL_MS = 2000


@pytest.fixture
def ann(visit):
    User.objects.create_user("ann")

    def open_tab(**options):
        visitor = visit(**(options or LOOKS["light"]))
        visitor.log_in("ann")
        visitor.page.clock.install()
        return visitor

    return open_tab


def enqueue(user: str = "ann"):
    return make_report.using(user=user).enqueue()


def run(result, fraction: float, message: str) -> None:
    row = move(Task.objects.get(pk=result.id), "executing")
    now = {"attempt": 1, "fraction": fraction, "message": message, "updated_at": timezone.now()}
    TaskProgress.objects.update_or_create(task=row, defaults=now)


def complete(result, value: object) -> None:
    move(Task.objects.get(pk=result.id), "completed")
    TaskResult.objects.update_or_create(task_id=result.id, defaults={"value": value})


def see(visitor, text: str, within: str = FRAGMENT) -> None:
    visitor.page.wait_for_selector(f"{within}:has-text('{text}')")


def look_at(visitor) -> list[str]:
    return problems_in_all_looks(visitor.page, repeated=())


def poll(visitor) -> None:
    """Let the page ask again now."""
    visitor.page.clock.fast_forward(POLL_MS)


def open_page(visitor, result) -> None:
    visitor.page.goto(visitor.address + result.get_absolute_url())


def test_it_follows_the_task_to_its_end_without_barriers(ann):
    result, visitor = enqueue(), ann()
    open_page(visitor, result)
    see(visitor, "It waits for its turn.")
    found = look_at(visitor)
    run(result, 0.5, "<b>page 3</b> of 6")
    poll(visitor)
    see(visitor, "<b>page 3</b> of 6")
    assert visitor.page.locator("progress").evaluate("(bar) => bar.value") == pytest.approx(0.5)
    found += look_at(visitor)
    complete(result, {"url": "/api/docs"})
    poll(visitor)
    see(visitor, "Done.")
    found += look_at(visitor)
    asked = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.page.clock.run_for(60_000)
    assert asked == [], "after the end it asks no more"
    visitor.page.click("text=Open the result")
    assert visitor.page.url.endswith("/api/docs")
    assert found == []
    assert visitor.problems == []


def test_the_owner_cancels_by_the_button(ann):
    result, visitor = enqueue(), ann()
    open_page(visitor, result)
    visitor.page.click("text=Cancel")
    see(visitor, "It was cancelled.")
    assert Task.objects.get(pk=result.id).status == Status.CANCELLED
    assert visitor.problems == []


def test_the_button_works_after_the_page_has_polled(ann):
    """The part brings a form with a token of its own."""
    result, visitor = enqueue(), ann()
    open_page(visitor, result)
    run(result, 0.1, "begun")
    poll(visitor)
    see(visitor, "begun")
    visitor.page.click("text=Cancel")
    see(visitor, "It is being stopped.")
    assert Task.objects.get(pk=result.id).cancel_requested_at is not None
    assert visitor.problems == []


def test_without_javascript_the_page_reloads_itself(ann):
    """Every five seconds; the test lets it be one."""

    def hasten(route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace('content="5"', 'content="1"'))

    result, visitor = enqueue(), ann(java_script_enabled=False)
    visitor.page.route(f"**{result.get_absolute_url()}", hasten)
    open_page(visitor, result)
    complete(result, "text")
    see(visitor, "Done.")
    assert visitor.page.locator("meta[http-equiv=refresh]").count() == 0
    assert visitor.problems == []


def test_another_users_task_is_not_found(ann):
    visitor = ann()
    open_page(visitor, enqueue("bob"))
    assert "It waits" not in visitor.page.content()
    assert [problem.split(" ")[0] for problem in visitor.problems if not problem.startswith("http")] == ["404"]


def test_a_page_of_the_project_shows_each_of_ones_tasks_live(ann, settings):
    """Two tags bring the script twice; each task is asked for once a turn."""
    settings.ROOT_URLCONF = "tests.support.status_urls"
    first, second, _other, visitor = enqueue(), enqueue(), enqueue("bob"), ann()
    asked = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.page.goto(f"{visitor.address}/mine/")
    sections = visitor.page.locator(f"section {FRAGMENT}")
    assert sections.count() == 2
    run(second, 0.25, "quarter")
    poll(visitor)
    see(visitor, "quarter")
    assert "quarter" not in sections.nth(0).inner_text()
    assert sum(first.id in url for url in asked) == 1
    assert barriers(visitor.page) == []
    assert visitor.problems == []
