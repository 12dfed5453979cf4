"""The verdict of the overview and of the home page, and the rows below it: what needs a person, the worst first."""

import re
import time
from datetime import timedelta

import psutil
import pytest
from django.db import connections
from django.utils import timezone

from queue_app.core import shared
from queue_app.core.priorities import Band
from queue_app.dashboard.labels import duration
from queue_app.diagnose import live, stalls
from queue_app.index import get_index
from queue_app.models import AuditEntry, DeadLetter, Limit, PriorityPolicy, Queue, Task
from queue_app.models.stats import StatsKind, TaskStats
from queue_app.models.workflow import Workflow
from queue_app.services import pause
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.jobs import take_lead
from tests.queue_app.admin.test_audit import own_admins
from tests.support.factories import (
    AttemptFactory,
    DeadLetterFactory,
    PayloadFactory,
    TaskFactory,
    WorkerFactory,
    let_wait,
    move,
)
from tests.support.index_state import client_of
from tests.support.pages import log_in, url, words_of
from tests.support.proxy import Proxy
from tests.support.waiting import until

LIVE, HOME, OVERVIEW = "/admin/queue_app/queue/live/", "/admin/", "/admin/queue_app/"
CHARGE = "shop.tasks.charge"


@pytest.fixture(autouse=True)
def well():
    """A worker with free slots, and a scheduler that leads and looks for what stands still."""
    rebuild()
    WorkerFactory(name="web-1", task_types=[CHARGE], concurrency=10)
    take_lead("me", 15)
    stalls.write([])


def seen(client, path=LIVE):
    """Return the words of a page, read now."""
    shared.forget()
    return words_of(client.get(path))


def ends(failed=0, completed=0, *, task_type=CHARGE, ago=5.0, **error):
    """Let attempts fail, and tasks complete, some seconds ago."""
    at = timezone.now() - timedelta(seconds=ago)
    for _ in range(failed):
        task = TaskFactory(task_type=task_type, status="scheduled", attempt=1, failures=1, run_after=at)
        AttemptFactory(task=task, started_at=at, exception_class="shop.CardDeclined", **error)
    for _ in range(completed):
        TaskFactory(task_type=task_type, status="completed", started_at=at, finished_at=at)


def test_all_is_well(staff):
    ends(completed=3)
    text = "All is well: 3 tasks completed within the last minute, and no task waits longer than its target"
    assert text in seen(staff)
    assert text in seen(staff, HOME), "the home page says the same"


def test_the_home_page_does_without_the_tables_of_the_queue(staff):
    """Such as before they are migrated: other apps share the page."""
    with connections["default"].cursor() as cursor:
        cursor.execute("ALTER TABLE queue_app_queue RENAME TO elsewhere")
    page = seen(staff, HOME)
    assert "▲ The task queue cannot be read now" in page
    assert "Recent actions" in page


@pytest.mark.parametrize(
    ("failed", "completed", "said"),
    [
        (60, 0, r"60 of 60 attempts failed within \d+ s \(100 %\)\."),
        (5, 45, r"5 of 50 attempts failed within \d+ s \(10 %\)\."),
        (2, 0, None),  # two failures are chance
        (3, 97, None),  # 3 % are too
    ],
)
def test_a_type_that_fails_is_said_though_its_tasks_are_tried_again(staff, failed, completed, said):
    ends(failed, completed)
    page = seen(staff)
    if said is None:
        assert "All is well" in page
        return
    assert re.search(f"✖ 1 thing needs you \\(1 urgent\\) urgent charge : {said}", page), page[:600]
    assert "1 thing needs you" in seen(staff, HOME)


def test_what_failed_as_often_before_is_no_news(staff):
    now = timezone.now()
    stats = TaskStats.objects.create(
        kind=StatsKind.TYPE, name=CHARGE, since=now - timedelta(hours=3), last_at=now - timedelta(hours=2),
        completed=900, failures=100,
    )  # fmt: skip
    ends(5, 45)
    assert "All is well" in seen(staff), "a tenth has always failed"
    TaskStats.objects.filter(pk=stats.pk).update(completed=998, failures=2)
    assert "attempts failed within 5 s (10 %). In the day before, 0.2 % failed." in seen(staff)


def test_a_trouble_ends_when_its_type_completes_again(staff):
    ends(6, ago=300)
    page = seen(staff)
    assert "6 of 6 attempts failed within under 1 s (100 %). It began 5 min ago. None has completed since." in page
    ends(completed=1)
    assert "All is well" in seen(staff)


def test_a_trouble_is_as_old_as_its_first_failure(staff):
    for ago in range(5, 240, 40):
        ends(2, 1, ago=ago)
    assert re.search(r"4 of 6 attempts failed within 1 min.* \(67 %\)\. It began 3 min 2\d s ago\.", seen(staff))


def test_the_cause_is_for_those_who_may_see_payloads(staff):
    ends(3, message="No funds on card 42")
    secret = TaskFactory(task_type=CHARGE, status="scheduled", attempt=1, failures=1, payload=None)
    PayloadFactory(task=secret, parameters={"password": "hunter22"})
    AttemptFactory(task=secret, exception_class="shop.CardDeclined", message="refused hunter22")
    cause = "Most often, 4 times: shop.CardDeclined: refused"
    assert cause in (page := seen(staff))
    assert "hunter22" not in page
    page = seen(log_in("view_queue", "view_task"))
    assert "4 of 4 attempts failed" in page
    assert "CardDeclined" not in page
    page = seen(log_in("view_queue"))
    assert "All is well" in page, "who may not see tasks learns nothing of their types"
    assert "charge" not in page


def test_a_type_that_fails_is_paused_from_its_row(staff):
    ends(3)
    hold = {"name": CHARGE, "reason": "the bank is down", "seconds": "3600", "next": "overview"}
    assert f'name="name" value="{CHARGE}"' in staff.get(LIVE).content.decode()
    assert staff.post("/admin/queue_app/limit/hold/", hold).url == OVERVIEW
    limit = Limit.objects.get()
    assert (limit.scope, limit.name, limit.paused, limit.paused_reason) == ("type", CHARGE, True, "the bank is down")
    assert limit.resume_at is not None
    [entry] = AuditEntry.objects.filter(action="limit.pause")
    assert (entry.target_id, entry.reason) == (str(limit.pk), "the bank is down")
    assert "▲ 1 thing needs you to do charge" in (page := seen(staff)), "it is not urgent any more"
    assert "The type is paused." in page
    assert "Resume…" in page
    viewer = log_in("view_queue", "view_task", "view_limit")
    assert "Resume…" not in seen(viewer)
    assert viewer.post("/admin/queue_app/limit/hold/", hold).status_code == 403


def test_tasks_that_wait_for_an_answer(staff):
    tasks = [let_wait(TaskFactory(task_type=name, status="queued")) for name in ("shop.refund", "shop.publish")]
    page = seen(staff)
    assert "2 tasks wait for an answer" in page
    refund, publish = (str(task.pk)[-8:] for task in tasks)
    assert f"Answer refund {refund}: approved Answer publish {publish}: approved" in page
    assert f"/admin/queue_app/task/{tasks[0].pk}/signal/" in staff.get(LIVE).content.decode()
    assert f"Answer refund {refund}: approved" in seen(staff, HOME), "the home page has the first rows too"
    assert "All is well" in seen(log_in("view_queue"))


def test_an_answer_names_its_workflow(staff):
    flow = Workflow.objects.create(name="order 7", created_at=timezone.now())
    let_wait(TaskFactory(task_type="shop.refund", status="queued", workflow_id=flow.pk))
    assert "Answer order 7: approved" in seen(staff)


def test_answers_without_a_workflow_are_told_apart(staff):
    tasks = [
        let_wait(TaskFactory(task_type="shop.approve", status="queued", concurrency_key=key))
        for key in ("order:7", "", "")
    ]
    page = seen(staff)
    for name in ("order:7", *(str(task.pk)[-8:] for task in tasks[1:])):
        assert page.count(f"Answer approve {name}: approved") == 1


def let_grow_old(task):
    """Let a task wait for a quarter of an hour."""
    Task.objects.filter(pk=task.pk).update(queued_at=timezone.now() - timedelta(minutes=15))
    rebuild()


def test_a_queue_whose_pause_was_forgotten(staff, make_task):
    WorkerFactory(task_types=["shop.tasks.send_mail"])
    task, _ = make_task(queue="news"), make_task(queue="news")
    pause("news", by="ina", reason="The text has a mistake.")
    Queue.objects.filter(pk="news").update(paused_at=timezone.now() - timedelta(minutes=18, seconds=5))
    assert "All is well" in seen(staff), "a short wait is no news"
    let_grow_old(task)
    page = seen(staff)
    assert "▲ 1 thing needs you" in page
    said = "The queue news is paused by ina (18 min 5 s ago): The text has a mistake."
    assert f"{said} 2 tasks wait, the oldest for 15 min" in page
    assert page.count("is paused by ina") == 1, "its row does not repeat it"
    shared.forget()
    needs = staff.get(LIVE).content.decode().partition('id="tq-reasons"')[2].partition("</ul>")[0]
    assert 'action="/admin/queue_app/queue/news/resume/"' in needs


def test_a_pause_that_ends_by_itself_needs_no_one(staff, make_task):
    WorkerFactory(task_types=["shop.tasks.send_mail"])
    let_grow_old(make_task(queue="news"))
    pause("news", by="ina", reason="", resume_at=timezone.now() + timedelta(hours=1))
    assert "Nothing needs you: tasks wait longer than their target only in paused queues" in seen(staff)


def test_dead_letters_that_come(staff):
    now = timezone.now()
    for _ in range(2):
        DeadLetterFactory(task_type="shop.refund", died_at=now - timedelta(minutes=50))
    DeadLetterFactory(died_at=now - timedelta(hours=5))
    page = seen(staff)
    assert "▲ 1 thing needs you to do 2 dead letters came within an hour: refund 2. By cause Dead letters" in page
    ends(3, task_type="shop.refund")
    page = seen(staff)
    assert "dead letters came" not in page, "the row of the type that fails leads to them"
    assert "Dead letters Replay 10…" in page
    links = re.findall(r'href="([^"]*deadletter/(?:matching/)?\?[^"]*refund[^"]*)"', staff.get(LIVE).content.decode())
    assert len(links) == 2
    for link in links:
        assert re.search("2 (open )?dead letters", words_of(staff.get(link.replace("&amp;", "&")))), link
    assert "3 dead letters" not in (page := seen(log_in("view_queue", "view_deadletter")))
    assert "2 dead letters came" in page, "who may not see tasks has no row of the type"
    assert "All is well" in seen(log_in("view_queue"))


def test_a_queue_behind_its_target(staff, make_task):
    PriorityPolicy.objects.filter(pk=Band.HIGH).update(target_seconds=30)
    task = make_task(CHARGE, queue="mail", priority=Band.HIGH)
    Task.objects.filter(pk=task.pk).update(queued_at=timezone.now() - timedelta(minutes=5))
    rebuild()
    page = seen(staff)
    assert "to do mail : Its high tasks wait longer than their target of 30 s. 1 task waits, for 5 min" in page
    pause("mail", by="ina")
    assert "✔ Nothing needs you: tasks wait longer than their target only in paused queues" in seen(staff)


def test_a_silent_scheduler_is_said_before_its_leadership_ends(staff):
    assert "scheduler" not in seen(staff)
    take_lead("me", 15 * (1 - live.SILENT_SHARE) - 0.5)
    assert "The scheduler has been silent for 6 s: it has died, or does one long job." in seen(staff)


def test_urgent_things_come_first(staff, make_task):
    let_wait(TaskFactory(task_type="shop.refund", status="queued"))
    ends(3)
    page = seen(staff)
    assert page.index("2 things need you (1 urgent)") < page.index("charge : 3 of 3") < page.index("wait")


def number(page, word):
    """Return the number behind a word of a page."""
    return int(re.search(rf"{word} ([\d,]+)", page)[1].replace(",", ""))


def test_pages_of_one_moment_say_the_same(staff, make_task):
    """Each figure has one source, so the overview, the lists and the pages of objects agree."""
    for _ in range(5):
        make_task("shop.unknown", queue="mail")
    for task in (make_task(CHARGE, queue="mail") for _ in range(3)):
        move(task, "executing")
    DeadLetterFactory(queue="mail")
    ends(completed=4)
    rebuild()
    overview, queue = seen(staff), seen(staff, "/admin/queue_app/queue/mail/change/")
    row = words_of(staff.get("/admin/queue_app/queue/"))
    assert number(overview, "Queued") == number(queue, "Queued") == number(row, "mail - normal") == 5
    assert "5 tasks wait" in overview
    assert "5 stuck" in overview
    assert number(overview, "Running") == number(queue, "Running") == 3
    for name, word in (("queued", "Queued"), ("executing", "Running")):
        tasks = words_of(staff.get("/admin/queue_app/task/", {"status": name}))
        assert int(re.search(r"(\d+) tasks", tasks)[1]) == number(overview, word)
    assert number(overview, "Completed per minute") == 4
    sources = staff.get(LIVE).content.decode().count('title="counted by the index in Redis"')
    assert sources == 5, "two tiles and three columns name it"
    assert number(overview, "Dead letters") == DeadLetter.objects.open().count() == 1


def test_a_paused_queue_does_not_blame_its_workers(staff, make_task):
    make_task(CHARGE, queue="mail")
    for _ in range(13):
        move(make_task(CHARGE, queue="mail"), "executing", worker_id=worker().pk)
    rebuild()
    page = seen(staff)
    assert "All slots of the only worker that could run it are taken." in page
    assert "Running 13 3 wait in a worker" in page, "it has 10 slots, and fetched three tasks ahead"
    assert "13 / 10 slots 3 wait in a worker" in page
    pause("mail", by="ina")
    page = seen(staff)
    assert "The queue mail is paused by ina" in page
    assert "All slots" not in page


def worker():
    """Return the worker of all tests."""
    return live.Worker.objects.get(name="web-1")


def test_the_run_time_of_a_failed_task_is_the_same_everywhere(staff):
    """The worker's clock and the database's end an attempt at two moments; pages show the database's."""
    at = timezone.now() - timedelta(minutes=1)
    task = TaskFactory(status="queued", task_type=CHARGE)
    task = move(
        task, "dead_letter", at, attempt=1, failures=1, started_at=at, finished_at=at + timedelta(milliseconds=428)
    )
    AttemptFactory(task=task, started_at=at, finished_at=at + timedelta(milliseconds=402))
    assert duration(0.428) in words_of(staff.get("/admin/queue_app/task/", {"status": "dead_letter"}))
    page = words_of(staff.get(f"/admin/queue_app/task/{task.pk}/change/"))
    assert "ran 428 ms" in page
    assert "402 ms" not in page


def test_the_overview_does_not_wait_for_a_frozen_redis(staff):
    assert "All is well" in seen(staff), "a first page takes longer"
    client_of(get_index()).client_pause(4000)
    began = timezone.now()
    assert "Redis cannot be reached" in seen(staff)
    assert timezone.now() - began < timedelta(seconds=3.5), "1.5 s, and a slow machine"
    until(lambda: "All is well" in seen(staff), "Redis goes on")


def test_no_page_waits_for_a_frozen_redis(staff):
    """A frozen server keeps its connections, and a client would wait for its answer for ten seconds."""
    task, letter = TaskFactory(status="queued"), DeadLetterFactory()
    pages = [url(model, "changelist") for model in own_admins()]
    pages += [HOME, OVERVIEW, LIVE, "/admin/queue_app/taskstats/", url(Queue, "change", "default")]
    pages += [url(Task, "change", task.pk), url(DeadLetter, "change", letter.pk), f"{url(Queue, 'changelist')}now/"]
    assert staff.get(url(Queue, "changelist")).status_code == 200, "connected before"
    server = psutil.Process(client_of(get_index()).info()["process_id"])
    server.suspend()
    slow = {}
    try:
        for path in pages:
            began = time.monotonic()
            answer = staff.get(path, follow=True)
            slow[path] = time.monotonic() - began
            assert answer.status_code in {200, 404}, path
            if path in {url(Queue, "changelist"), url(Queue, "change", "default"), url(Task, "change", task.pk)}:
                assert "Redis cannot be reached" in words_of(answer), path
    finally:
        server.resume()
    assert not {path: seconds for path, seconds in slow.items() if seconds > 3}
    until(lambda: "Redis cannot be reached" not in words_of(staff.get(url(Queue, "changelist"))), "Redis goes on")


@pytest.mark.django_db(transaction=True)
def test_pages_say_in_words_that_postgresql_is_frozen(staff, monkeypatch):
    """A frozen server accepts what is sent and never answers; a page waits for it for at most two seconds."""
    connection = connections["default"]
    with Proxy(int(connection.settings_dict["PORT"] or 5432)) as proxy:
        monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        monkeypatch.setitem(connection.settings_dict, "PORT", str(proxy.port))
        connection.close()
        assert staff.get(HOME).status_code == 200
        proxy.stall()
        for path in (HOME, OVERVIEW, LIVE, "/admin/queue_app/task/"):
            began = timezone.now()
            answer = staff.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), path
            assert "PostgreSQL does not answer" in answer.content.decode()
            assert timezone.now() - began < timedelta(seconds=4), "two, and a slow machine"
        proxy.resume()
        connection.close()
        assert staff.get(HOME).status_code == 200, "it goes on by itself"
    connection.close()
