"""What staff see while Redis is away, while PostgreSQL is away, and while no worker can run what waits."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.db.backends.postgresql.base import DatabaseWrapper
from django.utils import timezone

from queue_app.admin import unavailable
from queue_app.core import shared
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, get_index
from queue_app.models import Task
from queue_app.services import enqueue_many
from queue_app.services.notify.index import breaker
from queue_app.services.repair.rebuild import rebuild
from tests.support.factories import WorkerFactory, move
from tests.support.rows import forget_known_queues

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shop():
    """Three tasks wait for a GPU, two for code that no worker has, and one that could run; one is running."""
    forget_known_queues()
    breaker.reset()
    User.objects.create_superuser("alice")
    worker = WorkerFactory(name="web-1", task_types=["shop.train", "shop.mail"], concurrency=5)
    kinds = [NewTask(task_type="shop.train", queue="models", capabilities=("gpu",))] * 3
    kinds += [NewTask(task_type="shop.renamed", queue="models")] * 2
    kinds += [NewTask(task_type="shop.mail", queue="mail"), NewTask(task_type="shop.mail", queue="mail")]
    ids = [stored.id for stored in enqueue_many(kinds)]
    long_ago = timezone.now() - timedelta(minutes=45)
    Task.objects.filter(pk__in=ids[:3]).update(queued_at=long_ago, created_at=long_ago)
    move(Task.objects.get(pk=ids[6]), Status.EXECUTING, timezone.now(), worker_id=worker.id)
    rebuild()
    yield
    breaker.reset()
    shared.forget()


@pytest.fixture
def patch():
    """Return a patch that a test undoes itself; the one of the fixtures stays."""
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture
def staff(visit, shop):
    visitor = visit(viewport={"width": 1440, "height": 900})
    visitor.log_in("alice")
    visitor.page.clock.install()
    visitor.go("")
    visitor.page.wait_for_selector("#tq-overview[data-drawn]")
    return visitor


def tile(page, number):
    return page.inner_text(f".tq-tiles > div:nth-child({number}) dd").split()[0]


def test_no_worker_can_run_what_waits(staff):
    page = staff.page
    banner = page.inner_text("#tq-reasons")
    assert "models: No live worker of this queue offers gpu. Closest: web-1 lacks gpu." in banner
    assert re.search(r"3 tasks wait, the oldest for 45 min", banner)
    assert banner.index("offers gpu") < banner.index("knows the task type shop.renamed"), "the longest wait first"
    assert "2 tasks wait" in banner
    assert "Start `manage.py runworker --capabilities gpu`" in banner
    assert page.locator("body").inner_text().count("offers gpu") == 1, "the row and the suggestions do not repeat it"
    assert page.inner_text("#tq-row-models .tq-stuck-label") == "5 stuck"
    assert page.locator("#tq-why-mail, #tq-row-mail .tq-stuck-label").count() == 0, "its task can run"
    beside = page.evaluate("getComputedStyle(document.querySelector('#tq-row-mail .tq-number a')).display")
    assert beside == "inline", "what runs and the limit stand in one line"
    # Each number leads to as many tasks.
    page.click("#tq-reasons a:has-text('3 tasks wait')")
    page.wait_for_selector("#result_list")
    assert page.locator("#result_list tbody tr").count() == 3
    # They were promoted to high: the count, its link, the list and the target go by that band.
    staff.go("")
    page.click("#tq-row-models .tq-count:has-text('high') a")
    page.wait_for_selector("#result_list")
    assert page.locator("#result_list tbody tr").count() == 3
    staff.go("queue/models/change/")
    assert "No live worker of this queue offers gpu" in page.inner_text("#content")
    assert staff.problems == []


def test_redis_is_away(staff, patch):
    page = staff.page
    assert (tile(page, 1), tile(page, 2)) == ("6", "1")

    def fail(*_):
        raise IndexUnavailable("Redis at redis://127.0.0.1:1/0 failed: Connection refused.")

    patch.setattr(Index, "_call", fail)
    enqueue_many([NewTask(task_type="shop.mail", queue="mail")])
    staff.see("#tq-reasons:has-text('Redis cannot be reached')")
    assert "The numbers of queued and running tasks are PostgreSQL's." in page.inner_text("#tq-reasons")
    staff.see("[data-value='7']")
    assert tile(page, 2) == "1"
    assert "offers gpu" in page.inner_text("#tq-reasons"), "the rows of PostgreSQL say why, too"
    staff.go("queue/")
    assert "The numbers of queued and running tasks are PostgreSQL's." in page.inner_text(".messagelist")
    assert "high 3 normal 2" in page.inner_text("#result_list tr:has-text('models')").replace("\n", " ")
    staff.go("queue/models/change/")
    assert "The numbers of queued and running tasks are PostgreSQL's." in page.inner_text("#content")
    patch.undo()
    staff.go("")
    page.wait_for_selector("#tq-live:not(:has-text('Redis cannot be reached'))")
    assert staff.problems == []


def test_postgresql_is_away(staff, patch):
    page = staff.page
    assert page.is_hidden("#tq-away")

    def refuse(*_):
        raise OperationalError("connection to server at 127.0.0.1 failed: Connection refused")

    patch.setattr(DatabaseWrapper, "get_new_connection", refuse)
    page.wait_for_selector("#tq-overview.tq-stale", timeout=5_000)
    assert re.match(r"PostgreSQL has not answered since \d\d:\d\d:\d\d", page.inner_text("#tq-away"))
    assert page.evaluate("document.getElementById('tq-away').getBoundingClientRect().bottom < innerHeight")
    assert page.evaluate("getComputedStyle(document.getElementById('tq-live')).opacity") == "0.45"
    for path in ("task/", "", f"task/{Task.objects.first().pk}/change/"):
        answer = page.request.get(f"{staff.address}/admin/queue_app/{path}")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5"), path
        assert "PostgreSQL does not answer" in answer.text()
    patch.setattr(unavailable, "RETRY_SECONDS", 1)
    staff.go("task/")
    assert "This page tries again every 1 seconds." in page.inner_text("main")
    patch.undo()
    page.wait_for_selector("#result_list")  # it tried again
    assert all(problem.startswith("503 ") for problem in staff.problems)


def test_rows_of_a_list_do_not_look_alive_while_postgresql_is_away(staff, patch):
    page = staff.page
    staff.go("task/")
    patch.setattr(DatabaseWrapper, "get_new_connection", lambda *_: (_ for _ in ()).throw(OperationalError("no")))
    staff.see("#tq-list-state:has-text('no answer from the server since')")
    assert page.evaluate("getComputedStyle(document.getElementById('result_list')).opacity") == "0.45"
    patch.undo()
    staff.see("#result_list:not(.tq-stale-rows)")
    assert page.inner_text("#tq-list-state") == ""


def test_a_session_ends(staff):
    Session.objects.all().delete()
    for path in ("", "task/"):
        if path:
            staff.log_in("alice")
            staff.go(path)
            Session.objects.all().delete()
        staff.see("#tq-logged-out:has-text('You are logged out')")
        assert "/admin/queue_app/" in staff.page.get_attribute("#tq-logged-out a", "href")
        assert staff.page.locator("#tq-away:visible").count() == 0, "the server does answer"
    staff.log_in("alice")
    staff.see("body:not(:has(#tq-logged-out))")
    assert staff.problems == []


def test_the_page_of_a_queue_is_live(staff):
    page = staff.page
    staff.go("queue/mail/change/")
    assert "web-1" in page.inner_text(".tq-tiles"), "who serves it"
    assert "web-1" in page.inner_text("[data-tq-part=now] .tq-panel"), "who runs what"
    enqueue_many([NewTask(task_type="shop.mail", queue="mail") for _ in range(3)])
    get_index().flush()
    staff.see(".tq-tiles > div:nth-child(2):has-text('4')")
    assert staff.problems == []


def test_the_overview_comes_back_by_itself(staff, patch):
    page = staff.page
    patch.setattr(DatabaseWrapper, "get_new_connection", lambda *_: (_ for _ in ()).throw(OperationalError("no")))
    staff.see("#tq-overview.tq-stale")
    patch.undo()
    staff.see("#tq-overview:not(.tq-stale)")
    assert page.is_hidden("#tq-away")


def test_an_update_keeps_what_staff_are_doing(staff):
    """The mark of j and k, an open form with what was typed, and selected text survive the updates."""
    page = staff.page
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.get_attribute("tr.tq-here", "id") == "tq-row-mail"
    page.click("button[aria-label='Pause mail']")
    page.fill("#tq-pause-mail input[name=reason]", "new templa")
    enqueue_many([NewTask(task_type="shop.mail", queue="a-new-queue") for _ in range(3)])
    get_index().flush()
    staff.see("#tq-row-a-new-queue")
    assert page.get_attribute("tr.tq-here", "id") == "tq-row-mail", "although a row came before it"
    assert page.input_value("#tq-pause-mail input[name=reason]") == "new templa"
    page.keyboard.type("tes")
    assert page.input_value("#tq-pause-mail input[name=reason]") == "new templates"
    page.click("#tq-pause-mail button[type=submit]")
    page.wait_for_selector("#tq-row-mail .tq-paused")
    assert page.url.endswith("/admin/queue_app/")
    page.click("button[aria-label='Resume mail']")
    page.wait_for_selector("#tq-row-mail:not(:has(.tq-paused))")
    assert staff.problems == []
