"""The menu: the overview and four groups, beside other apps, in whatever site lists them."""

import re

from django.contrib.admin import AdminSite
from django.test import RequestFactory

from queue_app.admin.menu import group_menu
from tests.support.factories import StaffFactory


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
    assert "<h1>Task queue</h1>" in text


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
