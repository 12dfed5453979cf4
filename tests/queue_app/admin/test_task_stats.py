"""The pages of task types, users and concurrency keys."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from queue_app.models import Limit, TaskStats
from queue_app.services.upkeep import task_stats
from tests.support.factories import AttemptFactory, DeadLetterFactory

LIST = "/admin/queue_app/taskstats/"


def stats(name, kind="type", *, ago=0, **fields):
    since = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=ago)
    values = {"completed": 10, "last_at": since + timedelta(minutes=30), "waits": {"20": 10}, "runs": {"15": 10}}
    return TaskStats.objects.create(kind=kind, name=name, since=since, **values | fields)


def text_of(response):
    assert response.status_code == 200
    return response.content.decode().replace("<wbr>", "")  # where a long name may break


@pytest.fixture
def rows_of_types():
    stats("shop.mail")
    stats("shop.report", completed=3, failed=1, runs={"30": 4})
    stats("ina", "user", completed=7)


@pytest.mark.parametrize(
    ("query", "first"),
    [("", "shop.mail"), ("?o=run_p95", "shop.report"), ("?o=failed", "shop.report"), ("?o=name", "shop.mail")],
)
def test_the_list_is_sorted(staff, rows_of_types, query, first):
    page = text_of(staff.get(LIST + query))
    names = [name for name in ("shop.mail", "shop.report") if f"type/{name}/" in page]
    assert min(names, key=lambda name: page.index(f"type/{name}/")) == first
    assert "ina" not in page.split("<tbody>")[1]


def test_users_and_a_part_of_the_name(staff, rows_of_types):
    assert "user/ina/" in text_of(staff.get(f"{LIST}?kind=user"))
    page = text_of(staff.get(f"{LIST}?q=REP"))
    assert "shop.report" in page
    assert "type/shop.mail/" not in page
    assert text_of(staff.get(f"{LIST}?kind=no&period=no&o=no")), "unknown values are ignored"


def test_the_page_of_a_type(staff, make_task, end_task, make_worker):
    task = end_task(make_task("shop.tasks.send_mail", user="ina"), "dead_letter", error="no route to host")
    AttemptFactory(task=task, attempt=7)
    DeadLetterFactory(task=task, exception_class="shop.NoRoute", message="no route to host", fingerprint="abc")
    make_worker(version="2.0")
    Limit.objects.create(scope="type", name="shop.tasks.send_mail", max_concurrent=3)
    stats("shop.tasks.send_mail", versions={"1.9": 10})
    page = text_of(staff.get(f"{LIST}type/shop.tasks.send_mail/"))
    for part in ("no route to host", "shop.NoRoute", "at most 3 at once", "1.9", "worker-1", str(task.pk), "tq-histog"):
        assert part in page
    assert "Set one" in text_of(staff.get(f"{LIST}type/shop.tasks.unknown/"))


def test_pages_of_a_user_and_a_key(staff, make_task):
    task = make_task(user="ina", concurrency_key="customer:1")
    for path in ("user/ina/", "key/customer:1/"):
        assert str(task.pk) in text_of(staff.get(LIST + path))
    assert str(task.pk) not in text_of(staff.get(f"{LIST}user/omar/"))
    assert staff.get(f"{LIST}user/%00/").status_code == 404


@pytest.mark.parametrize(
    ("path", "title", "parent"),
    [
        ("user/ina/", "User ina", '<a href="/admin/queue_app/taskstats/?kind=user">Users</a>'),
        ("key/mail/", "Concurrency key mail", '<a href="/admin/queue_app/taskstats/?kind=key">Concurrency keys</a>'),
        ("type/a.b/", "a.b", '<a href="/admin/queue_app/taskstats/?kind=type">Task types</a>'),
        ("?kind=user", "Users", '<a href="/admin/queue_app/">Task queue</a>'),
    ],
)
def test_title_and_breadcrumbs_name_the_kind(staff, path, title, parent):
    page = text_of(staff.get(LIST + path))
    assert f"<title>{title} |" in page
    crumbs = page[page.index("breadcrumbs") :]
    crumbs = crumbs[: crumbs.index(f"{title}<", 1)]
    assert parent in crumbs
    assert crumbs.count("taskstats/") == (0 if path.startswith("?") else 1)


def test_who_may_not_see_tasks_sees_none_of_it(client_of, rows_of_types):
    pauser = client_of("pauser")
    assert [pauser.get(LIST + path).status_code for path in ("", "type/shop.mail/", "user/ina/")] == [403] * 3
    viewer = client_of("viewer")
    assert viewer.get(LIST).status_code == 200


def test_messages_of_causes_need_the_permission(client_of, make_task, end_task):
    task = end_task(make_task(), "dead_letter")
    DeadLetterFactory(task=task, exception_class="shop.NoRoute", message="no route to host", fingerprint="abc")
    page = text_of(client_of("viewer").get(f"{LIST}type/{task.task_type}/"))
    assert "no route" not in page
    assert "NoRoute" not in page


def test_the_cost_does_not_grow_with_the_tasks(staff, make_task, end_task):
    costs = []
    for count in (1, 20):
        for _ in range(count):
            end_task(make_task())
        task_stats.collect()
        with CaptureQueriesContext(connection) as queries:
            staff.get(f"{LIST}type/shop.tasks.send_mail/")
        costs.append(len(queries))
    assert costs[0] == costs[1] <= 20
