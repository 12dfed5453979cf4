"""List, inspect, cancel and reprioritise tasks."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from queue_app.core.ids import uuid7
from queue_app.core.priorities import Band
from queue_app.core.states import TERMINAL, Status
from queue_app.models import PriorityPolicy, Task, TaskResult
from tests.support.factories import AttemptFactory

TASKS = "/api/v1/tasks"
MOMENT = datetime(2030, 1, 31, 12, tzinfo=UTC)


#: (field, code) -> queries that get it.
BAD_QUERIES = {
    ("page_size", "out_of_range"): [f"page_size={size}" for size in (0, -1, 201, 10**9)],
    ("page_size", "integer_expected"): [f"page_size={size}" for size in ("9" * 5000, "", "1.5", "%D9%A5")],
    ("page_size", "repeated_parameter"): ["page_size=5&page_size=6"],
    ("cursor", "invalid_cursor"): [f"cursor={place}" for place in ("", "abc", "%00", "9999999999999")],
    ("status", "unknown_status"): [f"status={name}" for name in ("", "done", "queued,", "%00")],
    ("status", "too_many"): ["status=" + "queued," * 30 + "queued"],
    ("priority", "unknown_priority"): ["priority=5"],
    ("priority", "blank"): ["priority="],
    ("queue", "invalid_name"): [f"queue={name}" for name in ("{default}", "%00", "a%0A")],
    ("task_type", "invalid_characters"): ["task_type=%00", "task_type=%E2%80%AE"],
    ("user", "invalid"): [f"user={'x' * 300}"],
    ("worker", "invalid_id"): ["worker=abc", "worker=-1"],
    ("page", "unknown_parameter"): ["page=1000000000000"],
    ("payload__x", "unknown_parameter"): ["payload__x=1"],
    ("user__password__startswith", "unknown_parameter"): ["user__password__startswith=a"],
    ("ordering", "unknown_parameter"): ["ordering=-user"],
    ("\\x00", "unknown_parameter"): ["%00=1"],
    ("created_after", "date_out_of_range"): ["created_after=0001-01-01T00:00:00%2B00:01"],
    ("completed_after", "date_out_of_range"): ["completed_after=0001-01-01T00:00:00Z"],
    ("run_before", "date_out_of_range"): ["run_before=9999-12-31T23:59:59-23:59"],
    ("created_before", "reversed_range"): ["created_after=2030-01-02T00:00:00Z&created_before=2030-01-01T00:00:00Z"],
}


def ids(response) -> list[str]:
    return [task["task_id"] for task in response.data["results"]]


def options(data) -> dict[str, float]:
    return {name: data[name] for name in ("timeout_seconds", "max_retries", "retry_delay")}


class TestList:
    def test_newest_first(self, alice, stored):
        tasks = [stored() for _ in range(3)]
        response = alice.get(TASKS)
        assert ids(response) == [str(task.id) for task in reversed(tasks)]
        assert (response.data["next"], response.data["next_cursor"]) == (None, None)

    def test_pages_follow_each_other(self, alice, stored):
        tasks = [stored() for _ in range(5)]
        found, address, pages = [], f"{TASKS}/?page_size=2&queue=default", 0
        while address:
            response = alice.get(address)
            found += ids(response)
            pages += 1
            stored()  # newer tasks do not shift the following pages
            address = (response.data["next"] or "").removeprefix("http://testserver")
            assert "queue=default" in address or not address
        assert (found, pages) == ([str(task.id) for task in reversed(tasks)], 3)

    def test_by_status(self, alice, stored):
        for status in Status:
            stored(status=status.value)
        for query, wanted in (
            ("", {*Status}),
            ("status=queued", {"queued"}),
            ("status=pending", {"blocked", "scheduled", "queued", "executing"}),
            ("status=pending&status=failed", {"blocked", "scheduled", "queued", "executing", "failed"}),
            ("status=completed,dead_letter", {"completed", "dead_letter"}),
        ):
            assert {task["status"] for task in alice.get(f"{TASKS}?{query}").data["results"]} == wanted, query

    def test_by_other_filters(self, alice, stored, render_type):
        other = stored()
        task = stored(queue="reports", priority=Band.HIGH, task_type=render_type, status="executing")
        for query in ("queue=reports", "priority=high", f"task_type={render_type}", f"worker={task.worker_id}"):
            assert ids(alice.get(f"{TASKS}?{query}")) == [str(task.id)]
        assert ids(alice.get(f"{TASKS}?priority=medium")) == [str(other.id)]
        assert ids(alice.get(f"{TASKS}?queue=nowhere")) == []

    def test_staff_filter_by_user(self, staff, stored):
        stored("alice")
        task = stored("bob")
        client = staff("view_task")
        assert len(ids(client.get(TASKS))) == 2
        assert ids(client.get(f"{TASKS}?user=bob")) == [str(task.id)]

    @pytest.mark.parametrize(("field", "code"), BAD_QUERIES)
    def test_bad_queries(self, alice, field, code):
        for query in BAD_QUERIES[field, code]:
            response = alice.get(f"{TASKS}?{query}")
            assert (response.status_code, response.data["code"]) == (400, code), query
            assert [error["field"] for error in response.data["errors"]] == [field], query

    def test_too_many_parameters(self, alice):
        assert alice.get(f"{TASKS}?{'&'.join(f'a{n}=1' for n in range(2000))}").data["code"] == "bad_request"

    def test_bytes_that_are_not_text(self, alice):
        assert ids(alice.get(f"{TASKS}?user=%FF%FE")) == []


class TestDetail:
    def test_shows_everything(self, alice, stored, render_type):
        task = stored(
            task_type=render_type,
            parameters={"frame": 7},
            args=[1],
            capabilities=("gpu",),
            timeout=5,
            idempotency_key="k",
        )
        response = alice.get(f"{TASKS}/{task.id}/")
        data = response.data
        assert data["task_id"] == str(task.id)
        assert (data["status"], data["priority"], data["required_capabilities"]) == ("queued", "high", ["gpu"])
        assert (data["parameters"], data["args"], data["result"]) == ({"frame": 7}, [1], None)
        assert (data["attempts"], data["attempt"], data["retry_count"]) == ([], 0, 0)
        assert (data["idempotency_key"], data["assigned_worker_id"], data["completed_at"]) == ("k", None, None)
        assert datetime.fromisoformat(data["created_at"]) == task.created_at

    def test_options_come_from_the_task_or_the_policy(self, alice, stored):
        PriorityPolicy.objects.update_or_create(pk=Band.LOW, defaults={"timeout_seconds": 7, "max_retries": 9})
        path = f"{TASKS}/{stored(priority=Band.LOW).id}"
        assert options(alice.get(path).data) == {"timeout_seconds": 7, "max_retries": 9, "retry_delay": 20}
        path = f"{TASKS}/{stored(priority=Band.LOW, timeout=3, max_retries=0, retry_delay=0.5).id}"
        assert options(alice.get(path).data) == {"timeout_seconds": 3, "max_retries": 0, "retry_delay": 0.5}

    def test_result_and_attempts(self, alice, stored):
        task = stored(status="completed")
        worker = uuid7()
        TaskResult.objects.create(task=task, value={"pages": 3})
        for attempt in (2, 1):
            AttemptFactory(
                task=task,
                attempt=attempt,
                worker_id=worker,
                started_at=MOMENT,
                exception_class="builtins.OSError",
                message=f"no {attempt}",
                traceback="Traceback: File secret/path.py",
            )
        data = alice.get(f"{TASKS}/{task.id}").data
        assert data["result"] == {"pages": 3}
        assert data["attempts"] == [
            {
                "attempt": attempt,
                "worker_id": str(worker),
                "started_at": "2030-01-31T12:00:00Z",
                "finished_at": "2030-01-31T12:00:00Z",
                "exception_class": "builtins.OSError",
                "message": f"no {attempt}",
                "traceback": None,
                "trace_id": task.id.hex,
            }
            for attempt in (1, 2)
        ]

    def test_tracebacks_are_for_staff(self, staff, stored):
        task = stored(status="failed")
        AttemptFactory(task=task, traceback="line 1")
        data = staff("view_task", "view_payload").get(f"{TASKS}/{task.id}").data
        assert data["attempts"][0]["traceback"] == "line 1"

    def test_secrets_are_masked(self, alice, stored):
        canary = "canary-4711"
        task = stored(status="failed", parameters={"url": "x", "api_token": canary, "login": [{"Password": canary}]})
        TaskResult.objects.create(task=task, value={"secret": canary, "said": f"used {canary}"})
        AttemptFactory(task=task, message=f"{canary} refused")
        response = alice.get(f"{TASKS}/{task.id}")
        assert response.data["parameters"]["url"] == "x"
        assert canary not in response.content.decode()

    @pytest.mark.django_db(transaction=True)
    def test_the_position_in_the_queue(self, alice, stored):
        stored()
        task = stored()
        assert alice.get(f"{TASKS}/{task.id}").data["queue_position"] == 2

    def test_without_the_index(self, alice, stored, index_away):
        assert alice.get(f"{TASKS}/{stored().id}").data["queue_position"] is None


class TestCancel:
    @pytest.mark.parametrize(
        ("status", "now"), [("queued", "cancelled"), ("scheduled", "cancelled"), ("executing", "executing")]
    )
    def test_pending_tasks(self, alice, stored, status, now):
        task = stored(status=status)
        response = alice.delete(f"{TASKS}/{task.id}")
        assert (response.status_code, response.data["status"]) == (200, now)
        task.refresh_from_db()
        assert (task.status, task.cancel_requested_at is not None) == (now, True)

    @pytest.mark.parametrize("status", sorted(TERMINAL))
    def test_ended_tasks_are_a_conflict(self, alice, stored, status):
        task = stored(status=status)
        response = alice.delete(f"{TASKS}/{task.id}")
        assert (response.status_code, response.data["code"]) == (409, "invalid_transition")
        assert response.data["task_status"] == status
        task.refresh_from_db()
        assert task.status == status

    @pytest.mark.django_db(transaction=True)
    def test_leaves_the_index(self, alice, stored):
        first, second = stored(), stored()
        alice.delete(f"{TASKS}/{first.id}")
        assert alice.get(f"{TASKS}/{second.id}").data["queue_position"] == 1

    def test_works_while_the_index_is_away(self, alice, stored, index_away):
        assert alice.delete(f"{TASKS}/{stored().id}").data["status"] == "cancelled"


class TestPriority:
    @pytest.mark.parametrize("status", ["queued", "scheduled"])
    @pytest.mark.parametrize(("name", "band"), [("critical", Band.CRITICAL), ("medium", Band.NORMAL)])
    def test_waiting_tasks_move(self, alice, stored, status, name, band):
        task = stored(status=status, priority=Band.LOW)
        response = alice.put(f"{TASKS}/{task.id}/priority/", {"priority": name})
        assert (response.status_code, response.data["priority"], response.data["status"]) == (200, band.label, status)
        task.refresh_from_db()
        assert task.band is band

    @pytest.mark.parametrize("status", ["executing", *sorted(TERMINAL)])
    def test_others_are_a_conflict(self, alice, stored, status):
        task = stored(status=status)
        response = alice.put(f"{TASKS}/{task.id}/priority", {"priority": "high"})
        assert (response.status_code, response.data["code"]) == (409, "invalid_transition")
        assert response.data["task_status"] == status
        task.refresh_from_db()
        assert task.band is Band.NORMAL

    @pytest.mark.django_db(transaction=True)
    def test_moves_in_the_index(self, alice, stored):
        stored()
        task = stored()
        assert alice.put(f"{TASKS}/{task.id}/priority", {"priority": "high"}).data["queue_position"] == 1

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({}, 400, "required"),
            ({"priority": 1}, 400, "string_expected"),
            ({"priority": "urgent"}, 400, "unknown_priority"),
            ({"priority": "high", "status": "completed"}, 400, "unknown_field"),
        ],
    )
    def test_bad_bodies(self, alice, stored, body, status, code):
        task = stored()
        response = alice.put(f"{TASKS}/{task.id}/priority", body)
        assert (response.status_code, response.data["code"]) == (status, code)
        task.refresh_from_db()
        assert task.band is Band.NORMAL


BAD_IDS = (
    "abc", "-1", "0", "9" * 30, "9" * 5000, "%00", "%0A", "..%2f", "..%2f..%2fetc%2fpasswd", "%FF", "%E2%80%AE",
    "00000000-0000-0000-0000-00000000000g", "{00000000-0000-0000-0000-000000000000}",
    "urn:uuid:00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000%0A",
    "%D9%A0" * 32,  # Arabic zeros
    str(uuid.UUID(int=0)), str(uuid.UUID(int=2**128 - 1)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("method", "end", "body"), [("GET", "", None), ("DELETE", "", None), ("PUT", "/priority", {"priority": "high"})]
)
def test_invalid_ids(alice, stored, method, end, body):
    stored()
    for name in BAD_IDS:
        response = alice.call(method, f"{TASKS}/{name}{end}", body)
        assert (response.status_code, response.data["title"]) == (404, "Not Found"), name
    assert Task.objects.filter(status="queued", priority=Band.NORMAL).count() == 1


@pytest.mark.parametrize("spelling", [str.upper, lambda text: text.replace("-", "")])
def test_ids_in_other_spellings(alice, stored, spelling):
    task = stored()
    assert alice.get(f"{TASKS}/{spelling(str(task.id))}").data["task_id"] == str(task.id)
