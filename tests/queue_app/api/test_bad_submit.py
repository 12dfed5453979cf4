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
    "string": ("x", 400, "object_expected"),
    "list": ([], 400, "object_expected"),
    "number": (5, 400, "object_expected"),
    "false": (False, 400, "object_expected"),
    "NUL": ({"x": "a\x00b"}, 400, "nul_not_allowed"),
    "NUL in a key": ({"a\x00b": 1}, 400, "nul_not_allowed"),
    "NUL below": ({"x": [{"y": "\x00"}]}, 400, "nul_not_allowed"),
    "lone surrogate": ({"x": "\ud800"}, 400, "invalid_unicode"),
    "lone surrogate in a key": ({"\udfff": 1}, 400, "invalid_unicode"),
    "2^53 + 1": ({"x": MAX_SAFE_INTEGER + 1}, 400, "number_out_of_range"),
    "-2^53 - 1": ({"x": -MAX_SAFE_INTEGER - 1}, 400, "number_out_of_range"),
    "depth 33": ({"x": nested(32)}, 400, "too_deep"),
    "depth 900": ({"x": nested(899)}, 400, "too_deep"),
    "a byte over the limit": ({"x": "y" * (256 * 1024 - 7)}, 413, "payload_too_large"),
    "bytes count, not characters": ({"x": "ü" * (128 * 1024)}, 413, "payload_too_large"),
    "too many values": ({"x": [0] * 10_000}, 400, "too_many_nodes"),
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


LONG = "x" * 256
FIELDS = {
    # task_type
    "task_type missing": ({"task_type": ...}, "required"),
    "task_type null": ({"task_type": None}, "string_expected"),
    "task_type empty": ({"task_type": ""}, "blank"),
    "task_type 5": ({"task_type": 5}, "string_expected"),
    "task_type true": ({"task_type": True}, "string_expected"),
    "task_type list": ({"task_type": ["x"]}, "string_expected"),
    "task_type 256 long": ({"task_type": LONG}, "invalid"),
    "task_type CR LF": ({"task_type": "a\r\nINFO fake"}, "invalid_characters"),
    "task_type ESC": ({"task_type": "a\x1b[31m"}, "invalid_characters"),
    "task_type NUL": ({"task_type": "a\x00"}, "invalid_characters"),
    "task_type RTL override": ({"task_type": "a\u202eb"}, "invalid_characters"),
    "task_type zero width": ({"task_type": "a\u200bb"}, "invalid_characters"),
    "task_type lone surrogate": ({"task_type": "\ud800"}, "invalid_characters"),
    "task_type of a module that must not be imported": ({"task_type": "os.system"}, "unknown_task_type"),
    # queue
    "queue 5": ({"queue": 5}, "invalid_name"),
    "queue true": ({"queue": True}, "invalid_name"),
    "queue list": ({"queue": ["default"]}, "invalid_name"),
    "queue empty": ({"queue": ""}, "invalid_name"),
    "queue blank": ({"queue": " "}, "invalid_name"),
    "queue braces": ({"queue": "{default}"}, "invalid_name"),
    "queue colon": ({"queue": "a:b"}, "invalid_name"),
    "queue glob": ({"queue": "a*"}, "invalid_name"),
    "queue newline": ({"queue": "default\n"}, "invalid_name"),
    "queue NUL": ({"queue": "default\x00"}, "invalid_name"),
    "queue RTL override": ({"queue": "\u202edefault"}, "invalid_name"),
    "queue Arabic digit": ({"queue": "q\u0665"}, "invalid_name"),
    "queue 101 long": ({"queue": "q" * 101}, "invalid_name"),
    "queue unknown": ({"queue": "nowhere"}, "unknown_queue"),
    # priority
    "priority 5": ({"priority": 5}, "string_expected"),
    "priority -1": ({"priority": -1}, "string_expected"),
    "priority 1.5": ({"priority": 1.5}, "string_expected"),
    "priority true": ({"priority": True}, "string_expected"),
    "priority number as text": ({"priority": "2"}, "unknown_priority"),
    "priority Arabic digit": ({"priority": "\u0665"}, "unknown_priority"),
    "priority capitals": ({"priority": "HIGH"}, "unknown_priority"),
    "priority empty": ({"priority": ""}, "blank"),
    "priority unknown": ({"priority": "urgent"}, "unknown_priority"),
    # capabilities
    "capabilities string": ({"required_capabilities": "gpu"}, "list_expected"),
    "capabilities object": ({"required_capabilities": {"gpu": 1}}, "list_expected"),
    "capabilities 0": ({"required_capabilities": 0}, "list_expected"),
    "capabilities of numbers": ({"required_capabilities": [5]}, "invalid_name"),
    "capabilities of null": ({"required_capabilities": [None]}, "invalid_name"),
    "capabilities of lists": ({"required_capabilities": [["gpu"]]}, "invalid_name"),
    "capabilities braces": ({"required_capabilities": ["{gpu}"]}, "invalid_name"),
    "capabilities colon": ({"required_capabilities": ["a:b"]}, "invalid_name"),
    "capabilities comma": ({"required_capabilities": ["a,b"]}, "invalid_name"),
    "capabilities newline": ({"required_capabilities": ["gpu\n"]}, "invalid_name"),
    "capabilities separator": ({"required_capabilities": ["a\x1fb"]}, "invalid_name"),
    "capabilities RTL override": ({"required_capabilities": ["\u202egpu"]}, "invalid_name"),
    "capabilities 1 MB": ({"required_capabilities": ["x" * 500_000]}, "invalid_name"),
    "capabilities 1000": ({"required_capabilities": [f"c{n}" for n in range(1000)]}, "too_many"),
    # run_after
    "run_after naive": ({"run_after": "2030-01-31T12:00:00"}, "timezone_required"),
    "run_after date only": ({"run_after": "2030-01-31"}, "timezone_required"),
    "run_after number": ({"run_after": 1_900_000_000}, "datetime_expected"),
    "run_after number as text": ({"run_after": "1900000000"}, "datetime_expected"),
    "run_after empty": ({"run_after": ""}, "datetime_expected"),
    "run_after words": ({"run_after": "tomorrow"}, "datetime_expected"),
    "run_after leap second": ({"run_after": "2030-06-30T23:59:60Z"}, "datetime_expected"),
    "run_after hour 25": ({"run_after": "2030-06-30T25:00:00Z"}, "datetime_expected"),
    "run_after 31 June": ({"run_after": "2030-06-31T12:00:00Z"}, "datetime_expected"),
    "run_after offset 99": ({"run_after": "2030-06-30T12:00:00+99:00"}, "datetime_expected"),
    "run_after Arabic digits": ({"run_after": "\u0662\u0660\u0663\u0660-01-31T12:00:00Z"}, "datetime_expected"),
    "run_after line end": ({"run_after": "2030-01-31T12:00:00Z\n"}, "datetime_expected"),
    "run_after true": ({"run_after": True}, "datetime_expected"),
    "run_after year 9999": ({"run_after": "9999-12-31T23:59:59-23:59"}, "date_out_of_range"),
    "run_after year 1": ({"run_after": "0001-01-01T00:00:00+23:59"}, "date_out_of_range"),
    "run_after year 0": ({"run_after": "0000-01-01T00:00:00Z"}, "datetime_expected"),
    # delay
    "delay -1": ({"delay": -1}, "out_of_range"),
    "delay -0.001": ({"delay": -0.001}, "out_of_range"),
    "delay 1e9": ({"delay": 1e9}, "out_of_range"),
    "delay 10^18": ({"delay": 10**18}, "out_of_range"),
    "delay text": ({"delay": "5"}, "number_expected"),
    "delay with unit": ({"delay": "5s"}, "number_expected"),
    "delay true": ({"delay": True}, "number_expected"),
    "delay list": ({"delay": [5]}, "number_expected"),
    "delay and run_after": ({"delay": 5, "run_after": "2030-01-31T12:00:00Z"}, "conflicting_fields"),
    # timeout
    "timeout 0": ({"timeout_seconds": 0}, "out_of_range"),
    "timeout -1": ({"timeout_seconds": -1}, "out_of_range"),
    "timeout 10^9": ({"timeout_seconds": 10**9}, "out_of_range"),
    "timeout text": ({"timeout_seconds": "5"}, "number_expected"),
    "timeout nan": ({"timeout_seconds": "nan"}, "number_expected"),
    "timeout true": ({"timeout_seconds": True}, "number_expected"),
    "timeout Arabic digit": ({"timeout_seconds": "\u0665"}, "number_expected"),
    # max_retries
    "max_retries -5": ({"max_retries": -5}, "out_of_range"),
    "max_retries 10^9": ({"max_retries": 10**9}, "out_of_range"),
    "max_retries 1.5": ({"max_retries": 1.5}, "integer_expected"),
    "max_retries 3.5": ({"max_retries": 3.5}, "integer_expected"),
    "max_retries true": ({"max_retries": True}, "integer_expected"),
    "max_retries text": ({"max_retries": "5"}, "integer_expected"),
    "max_retries Arabic digit": ({"max_retries": "\u0665"}, "integer_expected"),
    # idempotency_key
    "idempotency_key 65 long": ({"idempotency_key": "k" * 65}, "invalid"),
    "idempotency_key empty": ({"idempotency_key": ""}, "blank"),
    "idempotency_key 5": ({"idempotency_key": 5}, "string_expected"),
    "idempotency_key true": ({"idempotency_key": True}, "string_expected"),
    "idempotency_key NUL": ({"idempotency_key": "a\x00"}, "invalid_characters"),
    "idempotency_key newline": ({"idempotency_key": "a\nb"}, "invalid_characters"),
    "idempotency_key RTL override": ({"idempotency_key": "\u202ea"}, "invalid_characters"),
    "concurrency_key 129": ({"concurrency_key": "k" * 129}, "invalid"),
    "concurrency_key int": ({"concurrency_key": 5}, "string_expected"),
    "concurrency_key newline": ({"concurrency_key": "a\nb"}, "invalid_characters"),
    "weight 0": ({"weight": 0}, "out_of_range"),
    "weight 1001": ({"weight": 1001}, "out_of_range"),
    "weight 1.5": ({"weight": 1.5}, "integer_expected"),
    "weight true": ({"weight": True}, "integer_expected"),
    "weight text": ({"weight": "2"}, "integer_expected"),
    # unknown and read-only
    "is_admin": ({"is_admin": True}, "unknown_field"),
    "a known name, mistyped": ({"prioritty": "high"}, "unknown_field"),
    "empty name": ({"": 1}, "unknown_field"),
    "name with a lone surrogate": ({"\ud800": 1}, "unknown_field"),
    "name with NUL": ({"a\x00b": 1}, "unknown_field"),
    "name 100 kB long": ({"n" * 100_000: 1}, "unknown_field"),
    "owner": ({"owner": "bob"}, "unknown_field"),
}


@pytest.mark.parametrize(("change", "code"), FIELDS.values(), ids=FIELDS)
def test_fields(alice, plain_type, change, code):
    body = {"task_type": plain_type} | change
    response = alice.post(TASKS, {name: value for name, value in body.items() if value is not ...})
    assert_problem(response, 400, code)
    assert len(response.content) < 5_000
    error = response.data["errors"][0]
    if code != "unknown_field":
        assert error["field"].partition("[")[0] == next(iter(change))


def model_fields() -> list[str]:
    return sorted({field.name for field in Task._meta.get_fields()} - set(properties(Submission)))


@pytest.mark.parametrize("name", [*model_fields(), "task_id", "epoch", "state"])
def test_no_other_column_can_be_set(alice, plain_type, name):
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


def test_errors_name_the_limit(alice, plain_type):
    response = alice.submit(task_type=plain_type, parameters={"x": nested(40)})
    assert response.data["errors"][0]["limit"] == 32


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
