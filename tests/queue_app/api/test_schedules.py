"""Schedules over the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from queue_app.models import AuditEntry, Operation, Schedule, Task
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.tick import run_due
from tests.workers import chores

SCHEDULES = "/api/v1/schedules"
ECHO = "tests.workers.chores.echo"
NIGHTLY = {
    "name": "nightly", "task_type": ECHO, "parameters": {"value": 1}, "cron": "0 3 * * *", "zone": "Europe/Berlin",
    "priority": "low", "overlap": "skip",
}  # fmt: skip
ALL = ("view", "add", "change", "delete", "pause", "run")


@pytest.fixture
def admin(staff):
    return staff(*(f"{verb}_schedule" for verb in ALL), "view_payload")


@pytest.fixture
def path(admin, engine) -> str:
    made = admin.post(SCHEDULES, NIGHTLY)
    assert made.status_code == 201, made.data
    return f"{SCHEDULES}/{made.data['id']}"


def wrong(response) -> dict[str, str]:
    """Return field -> code of an error."""
    assert response.status_code in {400, 422}, response.data
    return {error["field"]: error["code"] for error in response.data["errors"]}


def test_the_life_of_a_schedule(admin, path):
    found = admin.get(path).data
    assert found | NIGHTLY == found
    assert (found["words"], found["queue"]) == ("At 03:00 every day (Europe/Berlin)", "default")
    assert (found["declared"], found["overridden"], found["paused"]) == (False, [], False)
    assert admin.get(SCHEDULES).data["results"] == [found]
    etag = admin.get(path).headers["ETag"]
    changed = admin.call("PATCH", path, {"cron": "@hourly", "max_retries": 7}, **{"If-Match": etag})
    assert (changed.data["cron"], changed.data["max_retries"], changed.data["overlap"]) == ("@hourly", 7, "skip")
    assert admin.delete(path).data["deleted"] is True
    assert admin.get(path).data["code"] == "schedule_not_found"
    assert AuditEntry.objects.count() == 3


def test_an_edit_needs_the_version_that_it_is_based_on(admin, path):
    etag = admin.get(path).headers["ETag"]
    Schedule.objects.update(next_instant=datetime.now(UTC) + timedelta(days=1))  # a tick is no edit
    assert admin.call("PATCH", path, {"notes": "a"}).status_code == 428
    assert admin.call("PATCH", path, {"notes": "a"}, **{"If-Match": etag}).status_code == 200
    assert admin.call("PATCH", path, {"notes": "b"}, **{"If-Match": etag}).status_code == 412
    assert admin.call("PATCH", path, {"notes": "b"}, **{"If-Match": "*"}).status_code == 200


def test_pause_and_resume(admin, path):
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    paused = admin.post(f"{path}/pause", {"reason": "The bank is down.", "resume_at": until}).data
    assert (paused["paused"], paused["paused_by"], paused["paused_reason"]) == (
        True, admin.user.username, "The bank is down."
    )  # fmt: skip
    assert admin.post(f"{path}/resume", {}).data["paused"] is False


def test_run_now(admin, path):
    ran = admin.post(f"{path}/run", {"reason": "The customer waits."})
    assert ran.status_code == 201
    assert str(Task.objects.get().id) == ran.data["task_id"]
    assert AuditEntry.objects.latest("id").reason == "The customer waits."
    (tick,) = admin.get(f"{path}/ticks").data["results"]
    assert (tick["kind"], tick["status"]) == ("manual", "queued")


def test_backfill(admin, path):
    body = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-06T00:00:00Z"}
    preview = admin.post(f"{path}/backfill", body | {"dry_run": True})
    assert (preview.status_code, preview.data["count"]) == (200, 5)
    assert not Operation.objects.exists()
    begun = admin.post(f"{path}/backfill", body | {"rate": 100, "reason": "The outage."})
    assert begun.status_code == 202
    assert (begun.data["kind"], begun.data["total"], begun.data["reason"]) == ("backfill", 5, "The outage.")
    assert begun.headers["Location"].endswith(f"/api/v1/operations/{begun.data['operation_id']}")
    assert admin.get(f"/api/v1/operations/{begun.data['operation_id']}").status_code == 200


def test_ticks_by_pages(admin, engine):
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    values = {"task_type": ECHO, "args": [1], "every": 60, "catch_up": "all"}
    schedule = create_schedule("minutely", values, now=noon)
    run_due(now=noon + timedelta(minutes=5))
    path = f"{SCHEDULES}/{schedule.pk}/ticks"
    first = admin.get(f"{path}?limit=3").data
    assert [tick["instant"][14:16] for tick in first["results"]] == ["05", "04", "03"]
    rest = admin.get(f"{path}?limit=3&before={quote(first['next_before'])}").data
    assert [tick["instant"][14:16] for tick in rest["results"]] == ["02", "01"]
    assert rest["next_before"] is None


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"cron": "0 0 30 2 *"}, {"cron": "invalid_cron"}),
        ({"cron": "* * * * * *"}, {"cron": "invalid_cron"}),
        ({"zone": "Berlin"}, {"zone": "unknown_zone"}),
        ({"every": 60}, {"cron": "required"}),
        ({"task_type": "nowhere.task"}, {"task_type": "unknown_task_type"}),
        ({"parameters": {"valeu": 1}}, {"parameters": "wrong_arguments"}),
        ({"parameters": {}, "instant_parameter": "when"}, {"parameters": "wrong_arguments"}),
        ({"ends_at": "2020-01-01T00:00:00Z"}, {"ends_at": "out_of_range"}),
        ({"starts_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}, {"ends_at": "out_of_range"}),
        ({"overlap": "sometimes"}, {"overlap": "unknown_choice"}),
        ({"jitter": -1}, {"jitter": "out_of_range"}),
        ({"notes": "\ud800"}, {"notes": "invalid_characters"}),
        ({"priority": "urgent"}, {"priority": "unknown_priority"}),
        ({"nmae": "x"}, {"nmae": "unknown_field"}),
        ({"next_instant": None}, {"next_instant": "read_only_field"}),
        ({"cron": "", "instants": ["tomorrow"]}, {"instants[0]": "datetime_expected"}),
    ],
)
def test_a_mistake_is_named(admin, engine, changes, faults):
    assert wrong(admin.post(SCHEDULES, NIGHTLY | changes)).items() >= faults.items()
    assert not Schedule.objects.exists()


def test_a_range_to_backfill_has_an_end(admin, path):
    body = {"start": "2020-01-01T00:00:00Z", "end": "2019-01-01T00:00:00Z"}
    assert wrong(admin.post(f"{path}/backfill", body)) == {"end": "out_of_range"}
    admin.call("PATCH", path, {"cron": "* * * * *"}, **{"If-Match": "*"})
    assert wrong(admin.post(f"{path}/backfill", {"start": "2020-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"})) == {
        "end": "out_of_range"
    }


def test_each_action_needs_its_permission(staff, path):
    viewer = staff("view_schedule")
    found = viewer.get(path).data
    assert (found["parameters"], found["args"]) == (None, None)  # without view_payload
    for method, suffix, body in (
        ("POST", "/run", {}), ("POST", "/pause", {}), ("POST", "/resume", {}), ("PATCH", "", {"notes": "x"}),
        ("DELETE", "", None), ("POST", "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}),
    ):  # fmt: skip
        assert viewer.call(method, path + suffix, body, **{"If-Match": "*"}).status_code == 403, (method, suffix)
    assert staff("view_task").get(path).status_code == 403


assert chores.echo  # registered by its import
