"""Every page in three looks: axe finds no barrier, all of it fits, no secret is shown.

The console stays empty, and the Content Security Policy holds.
"""

from functools import partial

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.models import AuditEntry, DeadLetter, IndexGeneration, Limit, Operation, Schedule, TaskStack
from queue_app.remote import tokens
from queue_app.schedules.edit import create_schedule
from queue_app.services.control.api_keys import create_key
from queue_app.services.upkeep import task_stats
from tests.browser.looks import LOOKS, change_look, misfits, problems_in_all_looks
from tests.browser.test_admin import shop  # noqa: F401 - a fixture
from tests.workers import chores

pytestmark = pytest.mark.django_db(transaction=True)

#: The pages that are saved as pictures, to be looked at.
PICTURED = {
    "overview", "pending", "failed", "waiting", "running", "edit", "type", "new key", "causes", "queues", "queue",
    "paused queue", "workers", "worker", "policies", "settings", "audit",
}  # fmt: skip
#: The operations in the reference of the API: the first of each section is as colourful as the others.
ALIKE = ("article ~ article",)
#: Parts of the pages, so that several processes can share the work.
PARTS = 4


@pytest.fixture
def everything(shop):  # noqa: F811
    task_stats.collect()
    create_schedule("nightly", {"task_type": f"{chores.__name__}.echo", "args": [1], "cron": "0 3 * * *"})
    Limit.objects.create(scope="type", name="shop.tasks.charge_card", max_concurrent=2)
    AuditEntry.objects.create(
        at=DeadLetter.objects.first().died_at, by="alice", via="admin", action="queue.edit", target="queue",
        target_id="mail", before={"max_concurrent": 3}, after={"max_concurrent": 4}, reason="more mail",
    )  # fmt: skip
    key, _secret = create_key(User.objects.get(), "reports", scopes=["view_task"], by="alice")
    token, _secret = tokens.create("renderer", queues=["video"], capabilities=["gpu"])
    letter = DeadLetter.objects.open().first()
    at = timezone.now()
    TaskStack.objects.create(
        task_id=shop["running"], attempt=1, worker_id=shop["worker"], asked_at=at, answered_at=at,
        text="shop/tasks.py:71 charge_card\n    gateway.charge(order, token=token)\n"
        "shop/gateway.py:204 charge\n    answer = session.post(url, timeout=30)",
    )  # fmt: skip
    return {
        "overview": "",
        "tasks": "task/",
        "waiting": f"task/{shop['gpu']}/change/",
        "failed": f"task/{letter.task_id}/change/",
        "running": f"task/{shop['running']}/change/",
        "types": "taskstats/",
        "type": "taskstats/type/shop.tasks.charge_card/",
        "user": "taskstats/user/omar/",
        "letters": "deadletter/",
        "letter": f"deadletter/{letter.pk}/change/",
        "causes": "deadletter/causes/",
        "queues": "queue/",
        "queue": "queue/mail/change/",
        "settings of a queue": "queue/mail/change/?tab=settings",
        "workers": "worker/",
        "worker": f"worker/{shop['worker']}/change/",
        "schedules": "schedule/",
        "schedule": f"schedule/{Schedule.objects.get().pk}/change/",
        "policies": "prioritypolicy/",
        "limits": "limit/",
        "settings": "runtimesettings/1/change/",
        "operations": "operation/",
        "audit": "auditentry/",
        "audit entry": f"auditentry/{AuditEntry.objects.order_by('-id')[0].pk}/change/",
        "views": "savedview/",
        "jobs": "maintenancejob/",
        "snapshots": "queuestats/",
        "index": f"indexgeneration/{IndexGeneration.objects.get().pk}/change/",
        "keys": "apikey/",
        "key": f"apikey/{key.pk}/change/",
        "new key": "apikey/add/",
        "tokens": "workertoken/",
        "token": f"workertoken/{token.pk}/change/",
        "new token": "workertoken/add/",
        "new queue": "queue/add/",
        "new limit": "limit/add/",
        "confirm": "",
    }


def seldom(everything):
    """Return the pages that are a click away from one of the menu."""
    return {
        "letters by cause": "deadletter/matching/",
        "history": everything["failed"].replace("change", "history"),
        "edit": everything["failed"].replace("change", "run-again"),
        "users": "taskstats/?kind=user",
        "workflows": "workflow/",
        "week": "schedule/week/",
        "new schedule": "schedule/add/",
        "backfill": everything["schedule"].replace("change", "backfill"),
        "what if": "operation/what-if/",
        "pending": "task/?status=pending",
        "paused queue": "queue/payments/change/",
    }


@pytest.mark.parametrize("part", range(PARTS))
def test_no_barriers(visit, everything, screenshot, part):
    visitor = visit(**LOOKS["light"])
    visitor.log_in("alice")
    found = {}
    for name, path in list((everything | seldom(everything)).items())[part::PARTS]:
        change_look(visitor.page, "light")
        visitor.go(path)
        if not path:
            visitor.page.wait_for_selector("#tq-overview[data-drawn]")
        if name == "confirm":
            visitor.go("task/")
            visitor.page.check("#action-toggle")
            visitor.page.select_option("select[name=action]", "cancel_selected")
            visitor.page.click("button[name=index]")
            visitor.page.wait_for_selector(".tq-confirm")
        assert "tok_5f2c9e81" not in visitor.page.content(), name
        picture = partial(screenshot, visitor.page, name) if name in PICTURED else None
        problems = problems_in_all_looks(visitor.page, picture)
        if problems := problems + misfits(visitor.page):
            found[name] = problems
    assert found == {}
    assert visitor.problems == []
    assert not Operation.objects.exists(), "looking changed nothing"


def test_no_barriers_on_the_pages_of_the_api(visit, everything):
    visitor = visit(**LOOKS["light"])
    visitor.log_in("alice")
    found = {}
    task = everything["failed"].split("/")[1]
    for path in ("docs", "v1/tasks", f"v1/tasks/{task}", "v1/queues/mail", "v1/dlq"):
        change_look(visitor.page, "light")
        visitor.page.goto(f"{visitor.address}/api/{path}")
        if problems := problems_in_all_looks(visitor.page, repeated=ALIKE):
            found[path] = problems
    assert found == {}
    assert visitor.problems == []
