"""Staff work with schedules in a real browser."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from queue_app.models import Schedule, ScheduleTick
from queue_app.schedules.edit import create_schedule
from tests.support.rows import forget_known_queues
from tests.workers import chores

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "tests.workers.chores.echo"
DESKTOP = {"width": 1440, "height": 1000}


@pytest.fixture
def office():
    """Fill the tables with schedules of a week in an office, and a day of ticks."""
    forget_known_queues()
    User.objects.create_superuser("alice")
    for name, when in {
        "nightly report": {"cron": "0 3 * * *", "zone": "Europe/Berlin"},
        "invoices": {"cron": "0 8 * * MON-FRI", "zone": "Europe/Berlin", "overlap": "skip"},
        # Twice a week: after one of the two, the coming seven days still contain the other.
        "newsletter": {"cron": "0 8 * * MON,THU", "zone": "Europe/Berlin"},
        "exchange rates": {"every": 900},
        "month end": {"cron": "0 0 L * *", "jitter": 300},
    }.items():
        create_schedule(name, {"task_type": ECHO, "args": [1], "notes": f"The {name}.", **when})
    rates = Schedule.objects.get(name="exchange rates")
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    for number in range(20):
        outcome = "failed" if number in {4, 11} else "completed"
        instant = now - timedelta(minutes=15 * number)
        ScheduleTick.objects.create(
            schedule=rates, instant=instant, kind="due", at=instant, late_seconds=0.012,
            run_seconds=None if number == 7 else 1.5,
            task_id=None if number == 7 else "019a2b00-0000-7000-8000-000000000000",
            outcome=None if number == 7 else outcome,
            reason="The schedule was paused by ada: the bank is down." if number == 7 else "",
        )  # fmt: skip
    return rates


def test_the_list_the_page_and_the_week(visit, office, screenshot):
    desk = visit(viewport=DESKTOP)
    desk.log_in("alice")
    desk.go("schedule/")
    assert "last 20: 17 completed, 2 failed, 1 skipped" in desk.page.locator(".tq-strip").first.get_attribute(
        "aria-label"
    )
    screenshot(desk.page, "schedules", full_page=False)
    desk.page.get_by_role("link", name="exchange rates").click()
    desk.page.locator(".tq-coming").first.locator("li").nth(9).wait_for()
    screenshot(desk.page, "schedule")
    desk.go("schedule/week/")
    assert desk.page.get_by_text("At most 2 schedules tick at the same moment.").is_visible()
    screenshot(desk.page, "schedule-week")
    assert desk.problems == []


def test_the_preview_follows_what_one_types(visit, office, screenshot):
    desk = visit(viewport=DESKTOP)
    desk.log_in("alice")
    desk.go("schedule/add/")
    desk.page.fill("#id_task_type", ECHO)
    fetches = []

    def hold(route):
        fetches.append(route)

    desk.page.route("**/schedule/add/?task_type=*", hold)
    with desk.page.expect_request("**/schedule/add/?task_type=*"):
        desk.page.press("#id_task_type", "Tab")
    desk.page.keyboard.type("morning")  # while the field of its parameter is on its way
    fetches.pop().continue_()
    desk.page.fill("#id_parameters-value", "1")
    assert desk.page.input_value("#id_name") == "morning"
    desk.page.get_by_text("At 02:00 every day").wait_for()
    assert desk.page.locator("#id_number").is_hidden()
    desk.page.select_option("#id_repeats", "")
    desk.page.fill("#id_cron", "*/15 8-18 * * MON-FRI")
    desk.page.get_by_text("Every 15th minute from 08:00 through 18:59 on Monday through Friday").wait_for()
    desk.page.fill("#id_cron", "0 0 30 2 *")
    desk.page.get_by_text("never ticks").wait_for()
    desk.page.fill("#id_cron", "0 7 * * *")
    desk.page.get_by_text("At 07:00 every day").wait_for()
    screenshot(desk.page, "schedule-add")
    desk.page.get_by_role("button", name="Save", exact=True).click()
    desk.page.get_by_text("was added successfully").wait_for()
    assert Schedule.objects.get(name="morning").cron == "0 7 * * *"
    assert desk.problems == []


def test_the_preview_without_javascript(visit, office):
    desk = visit(viewport=DESKTOP, java_script_enabled=False)
    desk.log_in("alice")
    desk.go("schedule/add/")
    desk.page.select_option("#id_repeats", "")
    desk.page.get_by_text("More: cron, times, bounds").click()
    desk.page.fill("#id_cron", "0 7 * * *")
    with desk.page.context.expect_page() as opened:
        desk.page.get_by_role("button", name="Show them").click()
    opened.value.get_by_text("At 07:00 every day").wait_for()
    assert desk.page.input_value("#id_cron") == "0 7 * * *"
    assert desk.problems == []


assert chores.echo  # registered by its import
