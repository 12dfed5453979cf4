"""Single keys can be switched off, for one user; everything can still be reached with Tab and Enter."""

import pytest
from django.contrib.auth.models import User

from queue_app.models import IndexGeneration, RuntimeSettings
from tests.browser.looks import DESKTOP

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def staff(visit):
    RuntimeSettings.objects.get_or_create(pk=1)
    IndexGeneration.objects.get_or_create(pk=1)
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
