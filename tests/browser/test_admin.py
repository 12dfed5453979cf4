"""Staff at work in a real browser."""

import math
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.core.failures import fingerprint
from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Queue, QueueStats, Task, TaskResult
from queue_app.services import enqueue_many, pause
from queue_app.services.repair.rebuild import rebuild
from tests.browser.looks import DESKTOP
from tests.support.factories import (
    AttemptFactory,
    DeadLetterFactory,
    QueueStatsFactory,
    TaskFactory,
    WorkerFactory,
    move,
)
from tests.support.rows import forget_known_queues

pytestmark = pytest.mark.django_db(transaction=True)

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 42, in charge_card
    response = gateway.charge(order.total, token=token)
  File "/srv/shop/gateway.py", line 17, in charge
    raise CardDeclined(f"declined with token={token}")
shop.gateway.CardDeclined: declined with token=tok_5f2c9e81
"""


@pytest.fixture
def shop():
    """Fill the tables as in a shop on an ordinary day."""
    forget_known_queues()
    Queue.objects.get_or_create(pk="mail", defaults={"description": "Letters to customers.", "max_concurrent": 4})
    User.objects.create_superuser("alice")
    workers = [_worker("web-1.fra", ["mail", "default"]), _worker("gpu-1.fra", [], ["gpu", "large-memory"])]
    _worker("web-0.fra", ["mail"], last_heartbeat_at=timezone.now() - timedelta(minutes=2))
    kinds = [
        NewTask(task_type="shop.tasks.send_receipt", queue="mail", priority=Band.HIGH, user="ina"),
        NewTask(task_type="shop.tasks.rebuild_search_index", priority=Band.BACKGROUND),
        NewTask(task_type="shop.tasks.send_newsletter", queue="mail", priority=Band.LOW, user="marketing"),
        NewTask(
            task_type="shop.tasks.charge_card",
            queue="payments",
            priority=Band.CRITICAL,
            user="omar",
            parameters={
                "order": 1017,
                "amount": "49.90",
                "token": "tok_5f2c9e81",
                "items": [{"sku": "A-1", "count": 2}],
            },
        ),
        NewTask(task_type="shop.recommend.train_model", capabilities=("gpu",), parameters={"epochs": 12}),
        NewTask(task_type="shop.tasks.send_invoice", queue="mail", run_after=timezone.now() + timedelta(hours=3)),
    ]
    ids = [result.id for result in enqueue_many(kinds * 3)]
    now = timezone.now()
    for task_id in ids[:3]:
        _start(task_id, workers[0], now - timedelta(seconds=42))
    _end(ids[6], workers[0], Status.COMPLETED, now)
    TaskResult.objects.create(task_id=ids[6], value={"sent": True, "message_id": "<17@shop.example>"})
    _end(ids[9], workers[1], Status.DEAD_LETTER, now)
    for attempt in (1, 2, 3):
        started_at = now - timedelta(minutes=9 - attempt)
        AttemptFactory(
            task_id=ids[9],
            attempt=attempt,
            worker_id=workers[1].id,
            started_at=started_at,
            finished_at=started_at + timedelta(seconds=1),
            exception_class="shop.gateway.CardDeclined",
            message="declined with token=tok_5f2c9e81",
            traceback=TRACEBACK,
        )
    Task.objects.filter(pk=ids[9]).update(attempt=3, failures=3)
    _remember_two_hours(now)
    _bury(now)
    rebuild()  # adds running tasks to the index
    pause("payments", by="alice", reason="gateway maintenance until 18:00")
    return {"failed": ids[9], "running": ids[0], "waiting": ids[14], "gpu": ids[16], "worker": workers[0].id}


def _remember_two_hours(now):
    minute = now.replace(second=0, microsecond=0)
    snapshots = []
    for ago in range(120):
        for place, name in enumerate(("default", "mail", "payments")):
            wave = math.sin((ago + 17 * place) / 9) + 1.2
            snapshots.append(QueueStatsFactory.build(
                queue=name, taken_at=minute - timedelta(minutes=ago), active=int(3 * wave), oldest_seconds=40 * wave,
                depth={"critical": round(wave / 2), "high": round(wave), "normal": round(1.4 * wave),
                       "low": 1, "background": 1},
                enqueued=int(210 * wave), completed=int(200 * wave), failed=int(4 * wave) if place else 0,
                wait_p50=0.08 * wave, wait_p95=0.6 * wave, wait_p99=1.4 * wave,
                run_p50=0.2 * wave, run_p95=0.9 * wave, run_p99=2.2 * wave,
            ))  # fmt: skip
    QueueStats.objects.bulk_create(snapshots)


def _worker(name, queues, capabilities=(), **fields):
    return WorkerFactory(
        name=name, host=name, queues=queues, capabilities=list(capabilities), concurrency=5, tasks_done=18_304,
        started_at=timezone.now() - timedelta(hours=5),
        task_types=["shop.tasks.send_receipt", "shop.tasks.send_newsletter"],
        **fields,
    )  # fmt: skip


def _start(task_id, worker, at):
    return move(Task(id=task_id), Status.EXECUTING, at, worker_id=worker.id, created_at=at)


def _end(task_id, worker, status, now):
    task = _start(task_id, worker, now - timedelta(seconds=95))
    move(task, status, now - timedelta(seconds=93), queued_at=task.queued_at)


def _bury(now):
    """Add dead letters of two causes."""
    for n in range(14):
        died_at = now - timedelta(hours=n)
        task = TaskFactory(
            task_type="shop.tasks.charge_card" if n % 4 else "shop.tasks.send_receipt", queue="payments", priority=0,
            status=Status.DEAD_LETTER, created_at=now - timedelta(hours=n + 1), finished_at=died_at,
            attempt=3, failures=3, payload__parameters={"order": 4000 + n, "token": "tok_5f2c9e81"},
        )  # fmt: skip
        name, message = ("shop.gateway.CardDeclined", f"order {4000 + n} declined with token=tok_5f2c9e81")
        if not n % 4:
            name, message = "smtplib.SMTPServerDisconnected", f"Connection to mx{n}.shop.example unexpectedly closed"
        DeadLetterFactory(
            task=task, attempts=3, exception_class=name, message=message, fingerprint=fingerprint(name, message),
            died_at=died_at, expires_at=now + timedelta(days=20),
        )  # fmt: skip


def test_staff_at_work(visit, shop, screenshot):
    """The live overview, its keys, and a cancel of all that match."""
    visitor = visit(viewport=DESKTOP)
    page = visitor.page
    visitor.log_in("alice")
    pause("mail", by="alice", reason="new templates")

    # The overview updates itself, and announces new reasons.
    visitor.go("")
    page.wait_for_selector("#tq-overview[data-drawn]")
    assert re.search(r"paused by alice \(.+ ago\): new templates", page.inner_text("#tq-live"))
    drawn = page.get_attribute("#tq-overview", "data-drawn")
    queued = int(page.get_attribute("[data-value]", "data-value"))
    enqueue_many([NewTask(task_type="shop.tasks.send_newsletter", queue="mail") for _ in range(60)])
    get_index().flush()
    page.wait_for_selector(f"[data-value='{queued + 60}']")
    page.wait_for_selector(f"#tq-overview:not([data-drawn='{drawn}'])")
    page.keyboard.press("?")
    assert page.is_visible("#tq-help")
    page.keyboard.press("Escape")
    page.check("#tq-pause-updates")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("#result_list")

    # Staff cancel all that match, after a confirmation page.
    visitor.go("task/?queue=mail&priority=normal&status=queued")
    page.check("#action-toggle")
    page.click(".actions .question a")
    page.select_option("select[name=action]", "cancel_selected")
    page.click("button[name=index]")
    page.wait_for_selector(".tq-confirm")
    assert "60 tasks will be cancelled" in page.inner_text(".tq-consequences")
    assert page.evaluate("document.activeElement.name") == "reason"
    screenshot(page, "confirm")
    page.keyboard.type("sent by mistake")
    page.click(".tq-confirm .tq-danger")
    page.wait_for_selector("text=60 of 60 tasks done")
    assert Task.objects.filter(queue="mail", priority=Band.NORMAL, status=Status.CANCELLED).count() == 60

    assert visitor.problems == []


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def staff(visit):
    for name in ("alice", "bob"):
        User.objects.create_superuser(name)
    visitor = visit(viewport=DESKTOP)
    visitor.log_in("alice")
    visitor.go("queue/")
    return visitor


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def test_keys_switched_off_stay_off_for_this_user_only(staff):
    page = staff.page
    press(page, "?")
    page.uncheck("#tq-keys-on")
    press(page, "Escape")
    for _ in range(2):
        press(page, "?", "g", "w")
        page.wait_for_timeout(200)
        assert page.url.endswith("/queue/")
        assert not page.is_visible("#tq-help")
        page.reload()
    staff.log_in("bob")
    page.reload()
    press(page, "g", "w")
    page.wait_for_url("**/worker/")
    staff.log_in("alice")
    page.reload()
    page.focus("[data-tq-help]")
    press(page, "Enter")
    page.check("#tq-keys-on")
    press(page, "Escape", "g", "q")
    page.wait_for_url("**/queue/")
    assert staff.problems == []


def test_tab_reaches_search_filters_rows_and_buttons(staff):
    """Each link and control of the list takes the focus in turn, and shows it."""
    page = staff.page
    reached = set()
    for _ in range(120):
        press(page, "Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"searchbar", "action-toggle", "Keyboard shortcuts"} <= reached
    assert (
        page.evaluate(
            """() => [...document.querySelectorAll("#content a[href], #content button, #content select")]
            .filter((node) => node.tabIndex < 0 && node.offsetParent).map((node) => node.outerHTML)"""
        )
        == []
    )
