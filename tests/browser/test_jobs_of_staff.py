"""Ten jobs of staff, from the overview, with their clicks counted: at most three, at most five for many tasks.

Typing and Enter are no clicks; choosing from a menu is one.
"""

import pytest

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import DeadLetter, Operation, Queue, Task, TaskStats
from queue_app.services import enqueue_many
from queue_app.services.operations.run import run_operations
from queue_app.services.upkeep import task_stats
from tests.browser.looks import DESKTOP
from tests.browser.test_admin import shop  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)

ONE, MANY = 3, 5


class Hands:
    """Clicks in a page, and counts them."""

    def __init__(self, visitor) -> None:
        self.visitor, self.page, self.clicks = visitor, visitor.page, 0

    def click(self, selector: str) -> None:
        self.clicks += 1
        self.page.click(selector)

    def choose(self, selector: str, value: str) -> None:
        self.clicks += 1
        self.page.select_option(selector, value)

    def find(self, text: str) -> None:
        self.page.keyboard.press("/")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#result_list")

    def see(self, selector: str) -> None:
        self.page.wait_for_selector(selector)


@pytest.fixture
def hands(visit, shop):  # noqa: F811
    visitor = visit(viewport=DESKTOP)
    visitor.log_in("alice")
    visitor.go("")
    visitor.page.wait_for_selector("#tq-overview[data-drawn]")
    yield Hands(visitor)
    assert visitor.problems == []


def test_why_a_task_is_stuck(hands):
    hands.see("#tq-reasons:has-text('No live worker')")
    hands.click("#tq-reasons li:has-text('No live worker') a >> nth=0")
    hands.see("#result_list")
    hands.click("#result_list .field-type a >> nth=0")
    hands.see(".tq-hint")
    assert hands.clicks <= ONE


def test_reprioritise_one(hands, shop):  # noqa: F811
    hands.find(str(shop["waiting"])[-8:])
    hands.click("#result_list .field-type a >> nth=0")
    hands.choose("#tq-priority", "critical")
    hands.click("text=Change priority")
    hands.see("text=The priority is now critical.")
    assert Task.objects.get(pk=shop["waiting"]).band is Band.CRITICAL
    assert hands.clicks <= ONE


def test_reprioritise_all_that_match(hands):
    enqueue_many([NewTask(task_type="shop.tasks.send_newsletter", queue="mail") for _ in range(60)])
    get_index().flush()
    hands.find("send_newsletter")
    hands.choose("select[name=action]", "reprioritise_selected")
    hands.click("button[name=index]")
    hands.page.fill("input[name=reason]", "the sale ends")
    hands.click("text=to high")
    hands.see("text=What became of each")
    assert Operation.objects.get().changed >= 60
    assert hands.clicks <= ONE


def test_replay_a_cause(hands):
    hands.click(".tq-tiles a:has-text('Dead letters')")
    hands.click("text=By cause")
    hands.click("text=Replay or discard… >> nth=0")
    hands.page.fill("input[name=reason]", "the mail server is back")
    hands.click("button[value=replay]")
    hands.see("text=see the progress")
    run_operations()
    assert DeadLetter.objects.filter(replayed_by="alice").exists()
    assert hands.clicks <= MANY


def test_pause_a_queue_with_reason_and_end(hands):
    hands.click("button[aria-label='Pause mail']")
    hands.page.keyboard.type("new templates")  # the dialog has taken the focus
    hands.choose("#tq-pause-mail select", "3600")
    hands.click("#tq-pause-mail button[type=submit]")
    hands.see("#tq-row-mail .tq-paused")
    queue = Queue.objects.get(pk="mail")
    assert (queue.paused_reason, queue.resume_at is not None) == ("new templates", True)
    assert hands.clicks <= ONE


def test_cancel_a_running_task(hands):
    hands.click(".tq-tiles a:has-text('Running')")
    hands.click("#result_list .field-type a >> nth=0")
    hands.click("text=Ask to stop")
    hands.see(".messagelist")
    assert Task.objects.filter(status=Status.EXECUTING, cancel_requested_at__isnull=False).count() == 1
    assert hands.clicks <= ONE


def test_the_tasks_of_a_user(hands):
    hands.find("omar")
    assert hands.page.locator("#result_list tbody tr").count() == 3
    hands.click("#result_list .field-where a:has-text('omar') >> nth=0")
    hands.see("text=Newest tasks")
    assert hands.clicks <= ONE


def test_who_runs_what(hands):
    hands.click(".tq-tiles a:has-text('Workers')")
    hands.click("#result_list a:has-text('web-1.fra')")
    assert "shop.tasks" in hands.page.inner_text("text=Running now >> xpath=..")
    assert hands.clicks <= ONE


def test_which_types_are_slow(hands):
    task_stats.collect()
    assert TaskStats.objects.exists()
    hands.click("#nav-sidebar a:has-text('Task types')")
    hands.click("text=Which got slower?")
    hands.see("th[aria-sort=descending]:has-text('Now: run, p95')")
    hands.click("#result_list tbody a >> nth=0")
    hands.see("text=Run times by hour, 7 days")
    assert hands.clicks <= ONE


def test_who_changed_what(hands):
    Queue.objects.filter(pk="mail").update(max_concurrent=4)
    hands.click("button[aria-label='Resume payments']")
    hands.see("#tq-row-payments:not(:has(.tq-paused))")
    hands.clicks = 0
    hands.click("#nav-sidebar a:has-text('Audit log')")
    listed = hands.page.inner_text("#result_list")
    assert "alice resumed queue payments" in listed
    assert hands.clicks <= ONE
