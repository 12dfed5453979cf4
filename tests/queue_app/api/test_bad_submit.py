"""Bad input of POST /api/v1/tasks: each gets a problem document and changes nothing."""

from __future__ import annotations

import pytest

from queue_app.api.serializers.base import properties
from queue_app.api.serializers.tasks import Submission
from queue_app.core.payload import MAX_SAFE_INTEGER
from queue_app.models import Task
from tests.queue_app.api.conftest import assert_problem

TASKS = "/api/v1/tasks"


pytestmark = pytest.mark.usefixtures("nothing_written")


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


PARAMETERS = {
    "null": (None, 400, "object_expected"),
    "list": ([], 400, "object_expected"),
    "NUL in a key": ({"a\x00b": 1}, 400, "nul_not_allowed"),
    "NUL below": ({"x": [{"y": "\x00"}]}, 400, "nul_not_allowed"),
    "lone surrogate in a key": ({"\udfff": 1}, 400, "invalid_unicode"),
    "2^53 + 1": ({"x": MAX_SAFE_INTEGER + 1}, 400, "number_out_of_range"),
    "depth 33": ({"x": nested(32)}, 400, "too_deep"),
    "a byte over the limit": ({"x": "y" * (256 * 1024 - 7)}, 413, "payload_too_large"),
    "bytes count, not characters": ({"x": "ü" * (128 * 1024)}, 413, "payload_too_large"),
    "too many keys": ({str(n): 0 for n in range(10_001)}, 400, "too_many_nodes"),
}


@pytest.mark.parametrize(("parameters", "status", "code"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameters(alice, plain_type, parameters, status, code):
    response = alice.submit(task_type=plain_type, parameters=parameters)
    assert_problem(response, status, code)
    assert response.data["errors"][0]["field"].startswith("parameters")


@pytest.mark.parametrize(
    "parameters",
    [
        {"x": nested(31)},
        {"x": "y" * (256 * 1024 - 8)},
        {"x": [0] * 9_998},
        {"x": MAX_SAFE_INTEGER},
        {"x": "ü" * 100_000},
    ],
    ids=["depth 32", "the limit", "10,000 values", "2^53", "escaped text thrice as long as its UTF-8"],
)
def test_parameters_at_the_limit(alice, plain_type, parameters, nothing_written):
    assert alice.submit(task_type=plain_type, parameters=parameters).status_code == 201
    Task.objects.all().delete()


#: (field, code) -> values that get it; ``...`` leaves the field out.
FIELDS = {
    ("task_type", "required"): [...],
    ("task_type", "string_expected"): [None, 5, True, ["x"]],
    ("task_type", "blank"): [""],
    ("task_type", "invalid"): ["x" * 256],
    ("task_type", "invalid_characters"): [
        "a\r\nINFO fake", "a\x1b[31m", "a\x00", "a\u202eb", "a\u200bb", "\ud800",
    ],
    ("task_type", "unknown_task_type"): ["os.system"],  # it must not be imported
    ("queue", "invalid_name"): [
        5, True, ["default"], "", " ", "{default}", "a:b", "a*", "default\n", "default\x00", "\u202edefault", "q\u0665",
        "q" * 101,
    ],
    ("queue", "unknown_queue"): ["nowhere"],
    ("priority", "string_expected"): [5, -1, 1.5, True],
    ("priority", "unknown_priority"): ["2", "\u0665", "HIGH", "urgent"],
    ("priority", "blank"): [""],
    ("required_capabilities", "list_expected"): ["gpu", {"gpu": 1}, 0],
    ("required_capabilities", "invalid_name"): [
        [5], [None], [["gpu"]], ["{gpu}"], ["a:b"], ["a,b"], ["gpu\n"], ["a\x1fb"], ["\u202egpu"], ["x" * 500_000],
    ],
    ("required_capabilities", "too_many"): [[f"c{n}" for n in range(1000)]],
    ("run_after", "timezone_required"): ["2030-01-31T12:00:00", "2030-01-31"],
    ("run_after", "datetime_expected"): [
        1_900_000_000, "1900000000", "", "tomorrow", "2030-06-30T23:59:60Z", "2030-06-30T25:00:00Z",
        "2030-06-31T12:00:00Z", "2030-06-30T12:00:00+99:00", "\u0662\u0660\u0663\u0660-01-31T12:00:00Z",
        "2030-01-31T12:00:00Z\n", True, "0000-01-01T00:00:00Z",
    ],
    ("run_after", "date_out_of_range"): ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"],
    ("delay", "out_of_range"): [-1, -0.001, 1e9, 10**18],
    ("delay", "number_expected"): ["5", "5s", True, [5]],
    ("timeout_seconds", "out_of_range"): [0, -1, 10**9],
    ("timeout_seconds", "number_expected"): ["5", "nan", True, "\u0665"],
    ("max_retries", "out_of_range"): [-5, 10**9],
    ("max_retries", "integer_expected"): [1.5, 3.5, True, "5", "\u0665"],
    ("idempotency_key", "invalid"): ["k" * 65],
    ("idempotency_key", "blank"): [""],
    ("idempotency_key", "string_expected"): [5, True],
    ("idempotency_key", "invalid_characters"): ["a\x00", "a\nb", "\u202ea"],
    ("concurrency_key", "invalid"): ["k" * 129],
    ("concurrency_key", "string_expected"): [5],
    ("concurrency_key", "invalid_characters"): ["a\nb"],
    ("weight", "out_of_range"): [0, 1001],
    ("weight", "integer_expected"): [1.5, True, "2"],
}  # fmt: skip
UNKNOWN = ("is_admin", "prioritty", "", "\ud800", "a\x00b", "n" * 100_000, "owner")


@pytest.mark.parametrize(("field", "code"), FIELDS)
def test_fields(alice, plain_type, field, code):
    for value in FIELDS[field, code]:
        response = alice.post(TASKS, {} if value is ... else {"task_type": plain_type, field: value})
        assert_problem(response, 400, code)
        assert len(response.content) < 5_000
        assert response.data["errors"][0]["field"].partition("[")[0] == field


@pytest.mark.parametrize("name", UNKNOWN, ids=range(len(UNKNOWN)))
def test_unknown_names(alice, plain_type, name):
    response = alice.post(TASKS, {"task_type": plain_type, name: True})
    assert_problem(response, 400, "unknown_field")
    assert len(response.content) < 5_000


def test_delay_and_run_after_exclude_each_other(alice, plain_type):
    response = alice.submit(task_type=plain_type, delay=5, run_after="2030-01-31T12:00:00Z")
    assert_problem(response, 400, "conflicting_fields", "delay")


@pytest.mark.parametrize("name", ["status", "effective_priority", "steps", "replayed"])
def test_names_of_answers_are_set_by_the_queue(alice, plain_type, name):
    assert_problem(alice.post(TASKS, {"task_type": plain_type, name: "x"}), 400, "read_only_field", name)


def test_no_other_column_can_be_set(alice, plain_type):
    columns = {field.name for field in Task._meta.get_fields()} - set(properties(Submission))
    for name in (*columns, "task_id", "epoch", "state"):
        response = alice.post(TASKS, {"task_type": plain_type, name: "x"})
        assert response.data["code"] in {"read_only_field", "unknown_field"}
        assert response.data["errors"][0]["field"] == name


@pytest.mark.parametrize(
    ("header", "code"),
    [("", "blank"), ("k" * 65, "invalid"), ("a\tb", "invalid_characters"), ("\x85", "invalid_characters")],
)
def test_the_header_of_the_key_is_checked_as_the_field(alice, plain_type, header, code):
    response = alice.call("POST", TASKS, {"task_type": plain_type}, **{"Idempotency-Key": header})
    assert_problem(response, 400, code, "idempotency_key")


def test_header_and_field_must_agree(alice, plain_type):
    body = {"task_type": plain_type, "idempotency_key": "a"}
    assert_problem(
        alice.call("POST", TASKS, body, **{"Idempotency-Key": "b"}), 400, "conflicting_fields", "idempotency_key"
    )


def test_unknown_names_come_with_near_matches(alice, plain_type, render_type):
    response = alice.submit(task_type=render_type.replace("render", "rendr"))
    assert response.data["errors"][0]["near_matches"][0] == render_type
    assert render_type in response.data["detail"]
    response = alice.submit(task_type=render_type, queue="render")
    assert response.data["errors"][0]["near_matches"] == ["renders"]
    assert "'priority'" in alice.submit(task_type=plain_type, prioritty="high").data["detail"]


def test_several_errors_are_reported_at_once(alice):
    response = alice.submit(queue="a:b", priority=5, run_after="tomorrow", bogus=1)
    assert (response.status_code, response.data["code"]) == (400, "invalid")
    assert [(error["field"], error["code"]) for error in response.data["errors"]] == [
        ("bogus", "unknown_field"),
        ("task_type", "required"),
        ("queue", "invalid_name"),
        ("priority", "string_expected"),
        ("run_after", "datetime_expected"),
    ]


def test_a_smaller_limit_of_the_project_applies(alice, plain_type, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "PAYLOAD": {"MAX_BYTES": 100}}
    assert_problem(
        alice.submit(task_type=plain_type, parameters={"x": "y" * 100}), 413, "payload_too_large", "parameters"
    )
    assert_problem(alice.post(TASKS, b" " * 20_000), 413, "payload_too_large", "body")


def test_an_answer_lists_twenty_errors_and_does_not_call_them_all(alice):
    many = [{"task_typ": "x"}] * 100
    for response in (
        alice.submit(**{f"x{at}": 1 for at in range(100)}),
        alice.post("/api/v1/tasks/bulk", {"tasks": many}),
    ):
        assert response.status_code == 400
        assert response.data["detail"] == "The request has 20 or more invalid fields; see errors."
        assert 20 <= len(response.data["errors"]) <= 21
