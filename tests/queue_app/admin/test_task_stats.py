"""The pages of task types, users and concurrency keys."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from queue_app.core import shared
from queue_app.models import Limit, Queue, TaskStats
from queue_app.services.upkeep import task_stats
from tests.support.factories import AttemptFactory, DeadLetterFactory, QueueStatsFactory

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


# Now against an hour, a day and a week ago.


@pytest.fixture
def this_hour(monkeypatch):
    """Stop the clock in the middle of this hour, so that now is one hour."""
    now = timezone.now().replace(minute=30, second=0, microsecond=0)
    monkeypatch.setattr(task_stats.timezone, "now", lambda: now)
    shared.forget()


@pytest.fixture
def slower_since_yesterday(this_hour):
    for ago in (24, 25, 1):
        stats("shop.report", ago=ago, completed=100, runs={"15": 100}, versions={"1.9": 100})
        stats("shop.mail", ago=ago, completed=300, runs={"15": 300})
    stats("shop.report", completed=60, failed=40, runs={"20": 100}, versions={"2.0": 100})
    stats("shop.mail", completed=150, runs={"15": 150})


def test_which_got_slower_since_yesterday(staff, slower_since_yesterday):
    """Two clicks: the list of task types, and the question above it."""
    menu = text_of(staff.get("/admin/"))
    assert f'href="{LIST}"' in menu
    page = text_of(staff.get(LIST))
    assert re.search(r'<a class="tq-view" href="\?o=slower">Which got slower\?</a>', page)
    table = text_of(staff.get(f"{LIST}?o=slower")).split("<tbody>")[1]
    assert table.index("type/shop.report/") < table.index("type/shop.mail/"), "the list itself has most tasks first"
    row = table.split("</tr>")[0]
    assert "▲ +659 %" in row, "the p95 of this hour against the same hour of yesterday"
    assert "▲ +40.0 points" in row
    assert "▲" not in table.split("</tr>")[1], "what changed little has no arrow"


@pytest.mark.parametrize(("against", "change"), [("1h", ""), ("1d", "▲ +100 %"), ("7d", "")])
def test_a_list_compares_with_the_time_that_is_chosen(staff, this_hour, against, change):
    stats("shop.mail", completed=100)
    stats("shop.mail", ago=1, completed=200)
    stats("shop.mail", ago=24, completed=100)
    page = text_of(staff.get(f"{LIST}?against={against}")).split("<tbody>")[1]
    a_minute = page.split("</td>")[6]
    assert "3.3" in a_minute
    assert change in a_minute if change else "<small" not in a_minute


def test_too_few_tasks_make_no_change(staff, this_hour):
    stats("shop.mail", completed=100, runs={"15": 100}, ago=24)
    stats("shop.mail", completed=3, runs={"30": 3})
    table = text_of(staff.get(LIST)).split("<tbody>")[1]
    assert "▲" not in table


def test_the_page_of_a_type_compares_with_the_version_before(staff, slower_since_yesterday):
    page = text_of(staff.get(f"{LIST}type/shop.report/"))
    rows = page[page.index("Now, and before") :].split("</table>")[0]
    for label in ("an hour ago", "a day ago", "a week ago", "before version 2.0"):
        assert label in rows
    assert "▲ +659 %" in rows.split("before version 2.0")[1]
    chart = page[page.index("Run times by hour") :].split("</section>")[0]
    assert "tq-mark" in chart
    assert "│ version 2.0" in chart


def test_the_page_of_a_type_begins_with_what_changed(staff, slower_since_yesterday):
    page = text_of(staff.get(f"{LIST}type/shop.report/"))
    lead = " ".join(re.sub("<[^>]+>", " ", page[: page.index("Now, and before")]).split())
    assert re.search(
        r"p95 [\d.]+ m?s ▲ \+659 % compared with before version 2\.0; 40\.0 % failed ▲ \+40\.0 points", lead
    )


def test_users_are_compared_by_day(staff, this_hour):
    stats("ina", "user")
    page = text_of(staff.get(f"{LIST}?kind=user"))
    assert 'value="1d"' in page
    assert 'value="1h"' not in page.split("against")[-1].split("</select>")[0]


@pytest.fixture
def slower_queue():
    now = timezone.now()
    for ago, seconds in ((timedelta(minutes=5), 3.0), (timedelta(days=1, minutes=5), 1.0)):
        QueueStatsFactory(queue="mail", taken_at=now - ago, completed=20, run_p95=seconds)
    Queue.objects.get_or_create(name="mail")
    shared.forget()


def test_queues_are_compared_by_their_snapshots(staff, slower_queue):
    assert "▲ +200 %" in text_of(staff.get(f"{LIST}?kind=queue&o=slower"))
    page = text_of(staff.get("/admin/queue_app/queue/mail/change/"))
    assert "▲ +200 %" in page[page.index("Now, and before") :]


def test_who_may_not_see_queues_has_no_list_of_them(client_of, slower_queue):
    assert "▲ +200 %" in text_of(client_of("viewer").get(f"{LIST}?kind=queue"))
    page = text_of(client_of("canceller").get(f"{LIST}?kind=queue"))
    assert "?kind=queue&amp;period" not in page
    assert "mail" not in page


@pytest.mark.parametrize("kind", ["type", "user", "queue"])
def test_the_cost_of_a_list_does_not_grow_with_its_lines(staff, slower_queue, kind):
    costs = []
    for count in (1, 30):
        for number in range(count):
            stats(f"{kind}-{count}-{number}", "user" if kind == "user" else "type")
            QueueStatsFactory(queue=f"{kind}-{count}-{number}")
            Queue.objects.get_or_create(name=f"{kind}-{count}-{number}")
        shared.forget()
        with CaptureQueriesContext(connection) as queries:
            staff.get(f"{LIST}?kind={kind}")
        costs.append(len(queries))
    assert costs[0] == costs[1]
