"""Every page in three looks: axe finds no barrier, the console stays empty, the Content Security Policy holds."""

from pathlib import Path

import axe_playwright_python
import pytest
from django.contrib.auth.models import User

from queue_app.models import AuditEntry, DeadLetter, IndexGeneration, Limit, Operation, Schedule
from queue_app.services.control.api_keys import create_key
from queue_app.services.repair import tokens
from queue_app.services.schedules.edit import create_schedule
from queue_app.services.upkeep import task_stats
from tests.browser.test_admin import LOOKS, shop  # noqa: F401 - a fixture
from tests.workers import chores

pytestmark = pytest.mark.django_db(transaction=True)

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
#: Rules that Django's own pages break, which this app does not write: (rule, why it is left).
LEFT = {
    "region": "Django's skip link and messages lie outside its landmarks",
    "heading-order": "Django's side bar and forms skip levels",
}


def barriers(page):
    page.evaluate(AXE.read_text())
    found = page.evaluate(
        "(left) => axe.run({rules: Object.fromEntries(left.map((id) => [id, {enabled: false}]))})", list(LEFT)
    )
    return [
        f"{each['id']}: {node['target']} {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]
    ]


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
        "what if": "operation/what-if/",
    }


@pytest.mark.parametrize("look", LOOKS)
def test_no_barriers(visit, everything, look):
    visitor = visit(**LOOKS[look])
    visitor.log_in("alice")
    found = {}
    for name, path in (everything | seldom(everything)).items():
        visitor.go(path)
        if not path:
            visitor.page.wait_for_selector("#tq-overview[data-drawn]")
        if name == "confirm":
            visitor.go("task/")
            visitor.page.check("#action-toggle")
            visitor.page.select_option("select[name=action]", "cancel_selected")
            visitor.page.click("button[name=index]")
            visitor.page.wait_for_selector(".tq-confirm")
        if problems := barriers(visitor.page):
            found[name] = problems
    assert found == {}
    assert visitor.problems == []
    assert not Operation.objects.exists(), "looking changed nothing"


@pytest.mark.parametrize("look", LOOKS)
def test_no_barriers_on_the_pages_of_the_api(visit, everything, look):
    visitor = visit(**LOOKS[look])
    visitor.log_in("alice")
    found = {}
    task = everything["failed"].split("/")[1]
    for path in ("docs", "v1/tasks", f"v1/tasks/{task}", "v1/queues/mail", "v1/dlq"):
        visitor.page.goto(f"{visitor.address}/api/{path}")
        if problems := barriers(visitor.page):
            found[path] = problems
    assert found == {}
    assert visitor.problems == []
