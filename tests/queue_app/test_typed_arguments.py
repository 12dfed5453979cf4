"""Arguments are checked against annotations when the project asks for it."""

from decimal import Decimal

import pytest
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTask

from queue_app import registry, task
from queue_app.core.records import NewTask
from queue_app.exceptions import WrongArguments
from queue_app.models import Task
from queue_app.services.enqueue.submit import submit


@task
def ship(
    order: int, lines: list[str], *rest: int, gift: bool = False, price: Decimal | None = None, **notes: str
) -> None:
    """Ship it."""


@task
def untyped(order, lines):
    """Ship it."""


@task
def unknown(order: "NoSuchType") -> None:  # noqa: F821 - only a type checker knows it
    """Ship it."""


@pytest.fixture(params=["queue_app.testing.MemoryBackend", "queue_app.backend.TaskQueueBackend"])
def typed(request, settings, db):
    settings.TASKS = {"default": {"BACKEND": request.param, "QUEUES": []}}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "TYPED_ARGUMENTS": True, "CODECS": ["decimal"]}
    return settings


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        (("7", []), {}, "order: str is not an instance of int"),
        ((7, ["a", 1]), {}, "lines: item 1 of list is not an instance of str"),
        ((7, [], 1, "x"), {}, "rest: str is not an instance of int"),
        ((7, []), {"gift": "yes"}, "gift: str is not an instance of bool"),
        ((7, []), {"price": 1.5}, "price: float did not match any element in the union"),
        ((7, []), {"note": 1}, "notes: int is not an instance of str"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_signature(typed, args, kwargs, why):
    with pytest.raises(WrongArguments) as refused:
        ship.enqueue(*args, **kwargs)
    assert why in str(refused.value)
    assert "ship(order: int, lines: list[str]" in str(refused.value)
    with pytest.raises(WrongArguments, match=why.split(":")[0]):
        task_backends["default"].enqueue_many(ship, [((7, []), {}), (args, kwargs)])
    assert not Task.objects.exists()


def test_values_that_fit_and_functions_without_types_pass(typed):
    assert ship.enqueue(7, ["a"], 1, 2, gift=True, price=Decimal("1.5"), note="x")
    assert untyped.enqueue("7", 8)
    assert unknown.enqueue("7")


def test_the_api_is_checked_with_real_values(typed):
    kind = registry.type_of(ship)
    with pytest.raises(WrongArguments, match="order"):
        submit(NewTask(task_type=kind, parameters={"order": "7", "lines": []}))
    if "Memory" not in typed.TASKS["default"]["BACKEND"]:
        assert submit(NewTask(task_type=kind, parameters={"order": 7, "lines": [], "price": {"$decimal": "1.5"}}))


def test_nothing_is_checked_unless_the_project_asks(settings, db):
    assert ship.enqueue("7", 8)


# -- former names ------------------------------------------------------------------------------------


def test_a_former_name_finds_the_function(db, known_tasks):
    made = task(aliases=["shop.tasks.very_old", "shop.tasks.old"])(renamed)
    new, old = registry.type_of(made), "shop.tasks.old"
    assert registry.get(old) is registry.get(new) is made
    assert registry.first_name(new) == registry.first_name(old) == "shop.tasks.very_old"
    stored = submit(NewTask(task_type=old))
    assert Task.objects.get(pk=stored.id).task_type == old  # also old workers can run it
    first = made.using(unique=True).enqueue()
    old_code = submit(NewTask(task_type=old, unique=registry.get(old).using(unique=True).unique))
    assert str(old_code.id) == first.id


def renamed() -> None:
    """Have had other names."""


@pytest.mark.parametrize("aliases", ["shop.old", [7], ["with space"], [""]])
def test_a_former_name_must_be_a_name(aliases):
    with pytest.raises(InvalidTask, match="aliases"):
        task(aliases=aliases)(renamed)
