"""Every page renders with its content, and answers invalid addresses."""

import re

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.urls import reverse

from queue_app.admin.site import group_menu
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.models import (
    DeadLetter,
    IndexGeneration,
    PriorityPolicy,
    Queue,
    QueueStats,
    RuntimeSettings,
    Task,
    Worker,
)
from tests.queue_app.admin.test_audit import own_admins
from tests.support.factories import DeadLetterFactory, QueueStatsFactory, StaffFactory
from tests.support.pages import text_of, url

MODELS = [Task, Queue, Worker, DeadLetter, QueueStats, IndexGeneration, PriorityPolicy, RuntimeSettings]


@pytest.mark.parametrize("model", MODELS)
def test_list_and_page_render(model, staff, make_task, make_worker):
    make_task()
    make_worker()
    DeadLetterFactory()
    QueueStatsFactory(depth={"high": 2, "low": 0}, oldest_seconds=75)
    response = staff.get(url(model, "changelist"), follow=True)
    assert response.status_code == 200
    assert staff.get(url(model, "change", model.objects.first().pk)).status_code == 200


def test_tabs_of_a_queue(staff):
    now, settings = (text_of(staff.get(f"{url(Queue, 'change', 'default')}{tab}")) for tab in ("", "?tab=settings"))
    assert ("Over time" in now, 'name="max_concurrent"' in now) == (True, False)
    assert ("Over time" in settings, 'name="max_concurrent"' in settings) == (False, True)
    refused = text_of(staff.post(url(Queue, "change", "default"), {"max_concurrent": "x"}))
    assert 'name="max_concurrent"' in refused, "a form with errors is shown, whatever the tab"


@pytest.mark.parametrize(
    "query",
    [
        "status=nonsense", "priority=9", "queue=a%00b", "queue=%7Bx%7D", "q=%00", "p=99999999999999999999", "p=-1",
        "payload__parameters__password__startswith=a", "payload__parameters__contains=x", "task_type__startswith=shop",
        "id__in=a,b", "worker_id=nonsense", "nonsense=1", "idempotency_key__startswith=a", "all=", "o=5.-3",
    ],
)  # fmt: skip
def test_invalid_addresses_get_an_answer(query, staff, make_task):
    make_task(parameters={"password": "abcdef"})
    response = staff.get(f"{url(Task, 'changelist')}?{query}")
    assert response.status_code in (200, 302)
    response = staff.get(f"{url(Task, 'changelist')}?{query}", follow=True)
    assert response.status_code == 200
    assert response.redirect_chain or not query.startswith(("payload", "idempotency", "id__in", "task_type__"))


@pytest.mark.parametrize("object_id", ["nonsense", "01a1fc14-da10-717b-a823-56ad4650e023", "%00", "1/2"])
def test_unknown_objects_lead_back_to_a_list(object_id, staff):
    assert staff.get(f"/admin/queue_app/task/{object_id}/change/").status_code in (302, 404)
    assert staff.get(f"/admin/queue_app/queue/{object_id}/change/").status_code in (302, 404)
    assert staff.get(f"/admin/queue_app/worker/{object_id}/change/").status_code in (302, 404)


def test_pages_render_while_redis_is_down(staff, make_task, redis_down):
    task = make_task()
    page = text_of(staff.get(url(Queue, "changelist")))
    assert "Redis cannot be reached" in page
    assert "Redis cannot be reached" in text_of(staff.get(url(Queue, "change", "default")))
    assert "Redis cannot be reached" in text_of(staff.get(url(Task, "change", task.pk)))
    assert text_of(staff.get(url(Task, "changelist")))
    assert "unreachable" in text_of(staff.get(url(IndexGeneration, "change", 1)))
    assert "Redis cannot be reached" in text_of(staff.get(reverse("admin:app_list", args=["queue_app"])))


def test_app_index_shows_only_what_the_user_may_see(client_of, make_task, make_worker):
    make_task(priority=Band.CRITICAL)
    make_worker()
    page = text_of(client_of("viewer").get(reverse("admin:app_list", args=["queue_app"])))
    assert "5 slots" in page
    assert "tq-band-critical" in page
    page = text_of(client_of("canceller").get(reverse("admin:app_list", args=["queue_app"])))
    assert "5 slots" not in page
    assert "tq-band-critical" not in page


def test_no_page_has_inline_scripts_or_styles(staff, make_task, make_worker, end_task):
    task = end_task(make_task(), Status.FAILED, error="x")
    pages = [
        url(Task, "change", task.pk),
        url(Worker, "change", make_worker().pk),
        reverse("admin:app_list", args=["queue_app"]),
    ]
    for page in [*pages, url(Queue, "change", "default"), url(Task, "changelist")]:
        text = text_of(staff.get(page))
        content = text[text.index('id="content"') :]
        assert "style=" not in content
        assert "<script>" not in content
        assert " onclick" not in content


def test_stylesheet_exists():
    from django.contrib.staticfiles import finders  # noqa: PLC0415

    assert finders.find("queue_app/admin.css")


@pytest.mark.parametrize("model", own_admins(), ids=lambda model: model.__name__)
def test_a_nul_in_any_filter_is_answered_with_a_message(admin_client, model):
    """PostgreSQL refuses to compare it; Django would answer with a server error."""
    page = own_admins()[model]
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="admin")
    filters = [getattr(item, "parameter_name", item) for item in page.get_list_filter(request)]
    names = {"q", "o", "p", "fingerprint", "user", "operation_id", *map(str, filters)}
    address = reverse(f"admin:queue_app_{model._meta.model_name}_changelist")
    for name in names:
        answer = admin_client.get(address, {name: "\x00"})
        assert answer.status_code in {302, 403}, (name, answer.status_code)


# -- the menu --------------------------------------------------------------------------------------------------------


def captions(answer):
    return re.findall(r'class="section"[^>]*>\s*([^<]+?)\s*<', answer.content.decode())


def entries(answer, group):
    table = answer.content.decode().split(f">{group}</a>")[1].split("</table>")[0]
    return re.findall(r'<a href="/[^"]*"[^>]*>([^<]+)</a>', table.replace(' class="addlink"', ""))


def test_the_index_lists_groups_beside_other_apps(staff):
    found = captions(staff.get("/admin/"))
    assert found[:2] == ["Auth Token", "Authentication and Authorization"]
    assert found[-4:] == [f"Task queue: {name}" for name in ("Work", "Rules", "Record", "Machinery")]
    work = entries(staff.get("/admin/"), "Task queue: Work")
    assert work[:3] == ["Overview", "View", "Tasks"]


def test_a_project_with_webhooks_has_an_entry_for_their_deliveries(staff, client_of, settings):
    assert "Webhook deliveries" not in staff.get("/admin/").content.decode()
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WEBHOOKS": {"crm": {"url": "https://a.example/", "secrets": []}}}
    nobody = client_of("nothing")
    for page in ("/admin/", "/admin/queue_app/"):
        text = staff.get(page).content.decode()
        (address,) = set(re.findall(r'<a href="([^"]+)"[^>]*>Webhook deliveries<', text))
        assert address.endswith("/task/?task_type=queue_app.webhooks.deliver")
        assert staff.get(address).status_code == 200
        assert "Webhook deliveries" not in nobody.get(page).content.decode()


def test_the_side_bar_marks_one_page(staff):
    text = staff.get("/admin/queue_app/queue/").content.decode()
    menu = text.split('id="nav-sidebar"')[1].split("</nav>")[0]
    assert re.findall(r'aria-current="page">([^<]+)<', menu) == ["Queues"]


def test_staff_see_what_they_may(client_of):
    viewer = client_of("viewer").get("/admin/")
    assert captions(viewer) == ["Task queue: Work"]
    assert captions(client_of("nothing").get("/admin/")) == []


def test_the_page_of_the_app_keeps_its_name(staff):
    text = staff.get("/admin/queue_app/").content.decode()
    assert "<title>Task queue administration" in text
    assert "<h1>Overview</h1>" in text


def test_a_site_that_lists_the_app_otherwise_stays_as_it_is(db):
    """Such as one that has grouped it already, or has emptied it."""
    site = AdminSite("other")
    for models in ([], [{"object_name": "Overview"}, {"object_name": "Task"}]):
        listed = [{"app_label": "queue_app", "app_url": "/x/", "name": "Task queue", "models": models}]
        site.get_app_list = lambda request, app_label=None, listed=listed: listed
        group_menu(site)
        assert site.get_app_list(RequestFactory().get("/")) == listed


def test_a_site_without_the_app_stays_as_it_is(db):
    site = AdminSite("other")
    group_menu(site)
    request = RequestFactory().get("/")
    request.user = StaffFactory(is_superuser=True)
    assert site.get_app_list(request) == []
