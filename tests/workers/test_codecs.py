"""Codecs: real arguments and results, in a visible and stable form."""

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.tasks import default_task_backend
from hypothesis import given, strategies as some

from queue_app import Unique, chain, codecs, conf
from queue_app.checks import check_codecs
from queue_app.codecs.ready import MAX_BYTES, READY
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, PayloadTooLarge, UnserializableParameters
from queue_app.models import TaskAttempt, TaskPayload, TaskResult
from queue_app.registry import type_of
from queue_app.services.enqueue.store import submit
from queue_app.services.lifecycle.actions import run_again
from queue_app.testing import drain
from tests.support.engine import status
from tests.workers import coded
from tests.workers.coded import Colour, Money, Size, Temperature, got, next_day, take, take_async

OURS = [f"tests.workers.coded.{name}" for name in ("Colour", "Size", "Money", "TemperatureCodec")]
ALL = [*READY, *OURS]
FORMS = {
    "decimal": (Decimal("19.90"), {"$decimal": "19.90"}),
    "datetime": (
        datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))),
        {"$datetime": "2026-01-31T12:00:00+02:00"},
    ),
    "naive datetime": (datetime(2026, 1, 31, 12), {"$datetime": "2026-01-31T12:00:00"}),  # noqa: DTZ001
    "date": (date(2026, 1, 31), {"$date": "2026-01-31"}),
    "time": (time(12, 30, 0, 5), {"$time": "12:30:00.000005"}),
    "timedelta": (timedelta(days=-1, microseconds=1), {"$timedelta": "-P0DT23H59M59.999999S"}),
    "uuid": (UUID(int=7), {"$uuid": "00000000-0000-0000-0000-000000000007"}),
    "bytes": (b"hello\x00", {"$bytes": "aGVsbG8A"}),
    "path": (Path("/srv/a.txt"), {"$path": "/srv/a.txt"}),
    "enum": (Colour.RED, {"$tests.workers.coded.Colour": "RED"}),
    "enum of texts": (Size.LARGE, {"$tests.workers.coded.Size": "LARGE"}),
    "dataclass": (Money(Decimal(5)), {"$tests.workers.coded.Money": {"amount": {"$decimal": "5"}, "currency": "EUR"}}),
    "own codec": (Temperature(273.15), {"$kelvin": 273.15}),
    "a dict that looks like a form": ({"$decimal": "x"}, {"$dict": {"$decimal": "x"}}),
    "an escaped dict": ({"$dict": {"$date": 1}}, {"$dict": {"$dict": {"$dict": {"$date": 1}}}}),
    "an ordinary dict": ({"$set": 1, "b": [1, None, 2.5]}, {"$set": 1, "b": [1, None, 2.5]}),
    "nested": ([{"a": (date(2026, 1, 1),)}], [{"a": [{"$date": "2026-01-01"}]}]),
}


@pytest.fixture(autouse=True)
def turn_on(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "CODECS": ALL}
    got.clear()
    yield
    got.clear()


def stored(task_id) -> list:
    return TaskPayload.objects.get(pk=task_id).args


# -- forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_a_value_has_a_visible_form_and_comes_back(name):
    value, form = FORMS[name]
    assert codecs.encode(value, "args") == form
    again = codecs.decode(json.loads(json.dumps(form)))
    assert again == (value if name != "nested" else [{"a": [date(2026, 1, 1)]}])
    assert type(again) is type(value)


_leaves = (
    some.none()
    | some.booleans()
    | some.integers(-(2**53), 2**53)
    | some.text(max_size=5)
    | some.sampled_from(["$decimal", "$dict", "$x"])
    | some.decimals(allow_nan=False)
    | some.datetimes(timezones=some.just(UTC))
    | some.dates()
    | some.times()
    | some.timedeltas()
    | some.uuids()
    | some.binary(max_size=20)
    | some.sampled_from(Colour)
)
_keys = some.sampled_from(["$decimal", "$dict", "$date", "$", "a", "b"])


_values = some.recursive(
    _leaves, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(_keys, inner, max_size=3)
)


@given(_values)
def test_any_value_comes_back_through_json(value):
    assert codecs.decode(json.loads(json.dumps(codecs.encode(value, "args")))) == value


# -- enqueue, run, result ----------------------------------------------------------------------


@pytest.mark.parametrize("function", [take, take_async])
def test_the_function_gets_and_returns_real_values(hire, function):
    value = {"price": Decimal("1.50"), "when": [date(2026, 1, 1), Colour.BLUE], "plain": {"$set": 1}}
    result = function.enqueue(value)
    assert stored(result.id) == [
        {
            "price": {"$decimal": "1.50"},
            "when": [{"$date": "2026-01-01"}, {"$tests.workers.coded.Colour": "BLUE"}],
            "plain": {"$dict": {"$set": 1}},
        }
    ]
    hire().until_empty()
    assert got == [value]
    result.refresh()
    assert result.return_value == value


def test_bulk_and_workflows(hire):
    made = default_task_backend.enqueue_many(take, [((Decimal(1),), {}), ((), {"value": Decimal(2)})])
    chain((next_day, date(2026, 1, 31)), next_day, take).enqueue("days")
    hire().until_empty()
    assert len(made) == 2
    assert sorted(map(str, got)) == ["1", "2", "2026-02-02"]


def test_a_copy_keeps_its_arguments(hire):
    first = take.enqueue(Decimal("1.0"))
    again = run_again(first.id)
    assert stored(again.id) == stored(first.id)


def test_equal_values_are_the_same_unique_call(engine):
    unique = take.using(unique=Unique(by=["value"]))
    assert unique.enqueue(Decimal("1.0")).id == unique.enqueue(value=Decimal("1.0")).id
    assert unique.enqueue(Decimal("1.0")).id != unique.enqueue("1.0").id


def test_a_model_instance_is_read_again(hire):
    user = User.objects.create(username="ada")
    result = take.enqueue({"who": user, "groups": [Group.objects.create(name="staff")]})
    assert stored(result.id)[0]["who"] == {"$model": ["auth.user", user.pk]}
    User.objects.update(username="lovelace")
    hire().until_empty()
    assert got[0]["who"].username == "lovelace"
    assert TaskResult.objects.get().value["who"] == {"$model": ["auth.user", user.pk]}


def test_a_deleted_instance_ends_the_task_without_a_retry(hire):
    user = User.objects.create(username="ada")
    result = take.enqueue(user)
    key = user.pk
    user.delete()
    hire().until_empty()
    assert status(result.id) == Status.FAILED
    assert TaskAttempt.objects.get().message == f"The auth.user {key} no longer exists."
    assert got == []


def test_a_worker_without_the_codec_retries(hire, settings):
    result = take.enqueue(Decimal(1))
    settings.TASKQUEUE = {**settings.TASKQUEUE, "CODECS": ["date"]}
    hire().until_empty()
    assert status(result.id) == Status.SCHEDULED
    assert "needs the codec 'decimal'" in TaskAttempt.objects.get().message


def test_without_codecs_json_stays_as_it_is(hire, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "CODECS": []}
    take.enqueue({"$decimal": "1"})
    hire().until_empty()
    assert got == [{"$decimal": "1"}]


def test_in_tests(testing_backend):
    result = take.enqueue(Money(Decimal(3)))
    drain()
    result.refresh()
    assert got == [result.return_value] == [Money(Decimal(3))]


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"x" * (MAX_BYTES + 1), r"args\[0\] has 65537 bytes; the limit is 65536"),
        (User(username="new"), r"args\[0\] is not saved, so no worker can read it"),
        ({"a": [object()]}, r"args\[0\]\.a\[0\] is a builtins\.object, .*or turn a codec on in TASKQUEUE CODECS"),
        ({1: Decimal(1)}, "JSON keys are strings"),
    ],
)
def test_a_value_that_cannot_be_stored(engine, value, message):
    with pytest.raises(UnserializableParameters, match=message):
        take.enqueue(value)


def test_a_datetime_is_no_date(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "CODECS": ["date"]}
    with pytest.raises(UnserializableParameters, match=r"args\[0\] is a datetime, which needs the codec 'datetime'\.$"):
        take.enqueue(datetime(2026, 1, 31, 12, tzinfo=UTC))


def test_a_value_that_contains_itself(engine):
    loop: list = []
    loop.append(loop)
    with pytest.raises((PayloadTooLarge, UnserializableParameters)):
        take.enqueue(loop)


@pytest.mark.parametrize(
    "form",
    [
        {"$decimal": "one"}, {"$decimal": None}, {"$date": "2026-02-30"}, {"$datetime": 5}, {"$timedelta": "soon"},
        {"$uuid": "7"}, {"$bytes": "%%"}, {"$model": "auth.user"}, {"$model": ["auth.nothing", 1]},
        {"$tests.workers.coded.Colour": "GREEN"}, {"$tests.workers.coded.Money": {"price": 1}},
        {"$os.system": "ls"},
    ],
    ids=str,
)  # fmt: skip
def test_a_submission_with_a_bad_form_is_refused(engine, form):
    with pytest.raises(InvalidTaskData, match=r"^parameters\.value: "):
        submit(NewTask(task_type=type_of(take), parameters={"value": [form]}))


def test_a_submission_may_use_forms(hire):
    submit(NewTask(task_type=type_of(take), parameters={"value": {"$decimal": "1.5"}}))
    hire().until_empty()
    assert got == [Decimal("1.5")]


def test_a_bad_form_that_was_stored_ends_the_task(hire):
    result = take.enqueue(Decimal(1))
    TaskPayload.objects.update(args=[{"$decimal": "one"}])
    hire().until_empty()
    assert status(result.id) == Status.FAILED
    assert "is no decimal" in TaskAttempt.objects.get().message


# -- settings ----------------------------------------------------------------------------------


def test_the_check_names_bad_codecs(settings):
    settings.TASKQUEUE = {
        **settings.TASKQUEUE, "CODECS": ["decimal", "decmal", "tests.workers.coded.got", "nowhere.Thing"]
    }  # fmt: skip
    found = [problem.msg for problem in check_codecs()]
    assert len(found) == 3
    assert "Did you mean 'decimal'" in found[0]
    assert "is no Enum, no dataclass" in found[1]
    with pytest.raises(ImproperlyConfigured):
        codecs.encode(1, "args")
    assert conf.get().codecs[0] == "decimal"
    assert coded.got == []


def test_the_page_of_a_task_links_to_the_instances_that_it_refers_to(engine, client):
    group = Group.objects.create(name="editors")
    client.force_login(User.objects.create_superuser("root"))
    result = take.enqueue({"who": [group]})
    text = client.get(f"/admin/queue_app/task/{result.id}/change/").content.decode()
    assert f'<a href="/admin/auth/group/{group.pk}/change/">auth.group {group.pk}</a>' in text
