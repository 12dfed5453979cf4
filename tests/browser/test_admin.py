"""Staff at work in a real browser."""

import math
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.models import (
    IndexGeneration,
    PriorityPolicy,
    Queue,
    QueueStats,
    RuntimeSettings,
    Task,
    TaskAttempt,
    TaskResult,
    Worker,
)
from queue_app.services import enqueue_many, pause
from queue_app.services.enqueue import forget_known_queues
from queue_app.services.rebuild import rebuild

pytestmark = pytest.mark.django_db(transaction=True)

PASSWORD = "correct horse"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
LOOKS = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light"},
}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 42, in charge_card
    response = gateway.charge(order.total, token=token)
  File "/srv/shop/gateway.py", line 17, in charge
    raise CardDeclined(f"declined with token={token}")
shop.gateway.CardDeclined: declined with token=tok_5f2c9e81
"""


@pytest.fixture
def shop():
    """Fill the tables like those of a shop on an ordinary day."""
    forget_known_queues()
    # A flush between two tests takes what the migrations had put there.
    for band in Band:
        PriorityPolicy.objects.get_or_create(pk=band.value)
    RuntimeSettings.objects.get_or_create(pk=1)
    IndexGeneration.objects.get_or_create(pk=1)
    Queue.objects.get_or_create(pk="mail", defaults={"description": "Letters to customers.", "max_concurrent": 4})
    Queue.objects.get_or_create(pk="default")
    User.objects.create_superuser("alice", password=PASSWORD)
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
        TaskAttempt.objects.create(
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
    rebuild()  # the index learns of what runs
    pause("payments", by="alice", reason="gateway maintenance until 18:00")
    return {"failed": ids[9], "running": ids[0], "waiting": ids[14], "gpu": ids[16], "worker": workers[0].id}


def _remember_two_hours(now):
    minute = now.replace(second=0, microsecond=0)
    rows = []
    for ago in range(120):
        for place, name in enumerate(("default", "mail", "payments")):
            wave = math.sin((ago + 17 * place) / 9) + 1.2
            rows.append(
                QueueStats(
                    queue=name, taken_at=minute - timedelta(minutes=ago), active=int(3 * wave), oldest_seconds=40 * wave,
                    depth={"critical": int(3 * wave), "high": int(9 * wave), "normal": int(25 * wave), "low": int(7 * wave),
                           "background": 12 - place},
                    enqueued=int(210 * wave), completed=int(200 * wave), failed=int(4 * wave) if place else 0,
                    wait_p50=0.08 * wave, wait_p95=0.6 * wave, wait_p99=1.4 * wave,
                    run_p50=0.2 * wave, run_p95=0.9 * wave, run_p99=2.2 * wave,
                )
            )  # fmt: skip
    QueueStats.objects.bulk_create(rows)


def _worker(name, queues, capabilities=(), **fields):
    now = timezone.now()
    values = {
        "status": "active", "concurrency": 5, "profile": "p", "host": name, "pid": 4242, "process_identity": name,
        "version": "0.1.0", "started_at": now - timedelta(hours=5), "last_heartbeat_at": now, "heartbeat_seconds": 10,
        "tasks_done": 18_304, "task_types": ["shop.tasks.send_receipt", "shop.tasks.send_newsletter"],
    }  # fmt: skip
    return Worker.objects.create(name=name, queues=queues, capabilities=list(capabilities), **values | fields)


def _start(task_id, worker, at):
    Task.objects.filter(pk=task_id).update(
        status=Status.EXECUTING,
        attempt=1,
        worker_id=worker.id,
        created_at=at,
        queued_at=at,
        started_at=at,
        deadline=at + timedelta(minutes=10),
    )


def _end(task_id, worker, status, now):
    _start(task_id, worker, now - timedelta(seconds=95))
    Task.objects.filter(pk=task_id).update(status=status, finished_at=now - timedelta(seconds=93), deadline=None)


def _log_in(page, address):
    page.goto(f"{address}/admin/")
    page.fill("#id_username", "alice")
    page.fill("#id_password", PASSWORD)
    page.click("input[type=submit]")
    page.wait_for_selector("#user-tools")


def test_staff_reprioritise_one_task_and_cancel_another(browser, live_server, shop, screenshots):
    page = browser.new_page(viewport=DESKTOP)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    _log_in(page, live_server.url)
    page.goto(f"{live_server.url}/admin/queue_app/task/?status=queued")

    def select(task_id, action):
        page.check(f"input[name=_selected_action][value='{task_id}']")
        page.select_option("select[name=action]", action)
        page.click("button[name=index]")
        page.wait_for_selector(".messagelist")

    select(shop["waiting"], "set_priority_critical")
    assert "Changed the priority of 1 task to critical." in page.inner_text(".messagelist")
    assert Task.objects.get(pk=shop["waiting"]).priority == Band.CRITICAL
    page.screenshot(path=screenshots / "task-list-reprioritised.png")

    select(shop["gpu"], "cancel_selected")
    assert "Cancelled 1 task." in page.inner_text(".messagelist")
    assert Task.objects.get(pk=shop["gpu"]).status == Status.CANCELLED

    page.goto(f"{live_server.url}/admin/queue_app/task/{shop['waiting']}/change/")
    page.select_option("#tq-priority", "background")
    page.click("text=Change priority")
    page.wait_for_selector(".messagelist")
    assert Task.objects.get(pk=shop["waiting"]).priority == Band.BACKGROUND
    page.click("text=Cancel task")
    page.wait_for_selector("text=The task is cancelled.")
    assert Task.objects.get(pk=shop["waiting"]).status == Status.CANCELLED

    page.goto(f"{live_server.url}/admin/queue_app/queue/mail/change/")
    page.fill("#tq-reason", "new templates")
    page.click("text=Pause queue")
    page.wait_for_selector("text=new templates")
    assert Queue.objects.get(pk="mail").paused
    assert problems == []


@pytest.mark.parametrize("look", LOOKS)
def test_pages_look_right(look, browser, live_server, shop, screenshots):
    page = browser.new_page(**LOOKS[look])
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
    _log_in(page, live_server.url)
    pages = {
        "overview": "",
        "task-list": "task/",
        "task-failed": f"task/{shop['failed']}/change/",
        "task-waiting": f"task/{shop['gpu']}/change/",
        "task-running": f"task/{shop['running']}/change/",
        "queue-list": "queue/",
        "queue": "queue/mail/change/",
        "queue-paused": "queue/payments/change/",
        "worker-list": "worker/",
        "worker": f"worker/{shop['worker']}/change/",
        "policies": "prioritypolicy/",
        "limits": "runtimesettings/1/change/",
    }
    for name, path in pages.items():
        response = page.goto(f"{live_server.url}/admin/queue_app/{path}")
        assert response.status == 200, path
        if name == "overview":
            page.wait_for_selector("#tq-overview[data-drawn]")
        page.screenshot(path=screenshots / f"{name}-{look}.png", full_page=True)
        if "list" not in name and name != "policies":  # Django's own lists scroll sideways on a phone
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        assert "tok_5f2c9e81" not in page.content()
    assert problems == []


def test_unknown_task_leads_back_to_the_list(browser, live_server, shop):
    page = browser.new_page()
    _log_in(page, live_server.url)
    page.goto(f"{live_server.url}/admin/queue_app/task/{uuid.uuid4()}/change/")
    assert "Perhaps it was deleted?" in page.inner_text(".messagelist")
