"""Task types: looked up by name, never imported because of one, except from installed apps."""

import sys
from decimal import Decimal

import pytest
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTask

from queue_app import registry, task
from queue_app.core.records import NewTask
from queue_app.exceptions import UnknownTaskType, WrongArguments, near_matches
from queue_app.models import Task
from queue_app.services.enqueue.store import submit


@task
def send_invoice(number: int) -> int:
    return number


@task
def send_reminder() -> None:
    pass


NAME = f"{__name__}.send_invoice"


@pytest.fixture(autouse=True)
def as_before(discovered, known_tasks):
    """Forget what a test registers, but for what is imported once."""


@pytest.fixture
def discovered():
    registry.discover()


def test_a_task_is_known_by_the_path_of_its_function():
    assert registry.type_of(send_invoice) == NAME
    assert registry.get(NAME).func is send_invoice.func
    assert NAME in registry.known_types()
    assert list(registry.known_types()) == sorted(registry.known_types())


def test_variants_of_a_function_are_one_type():
    before = registry.get(NAME)
    send_invoice.using(priority=90, timeout=5)
    assert registry.get(NAME) is before


def test_a_reloaded_module_brings_its_new_function():
    def send_invoice_again() -> None:
        pass

    old = registry.get(NAME)
    send_invoice_again.__qualname__ = "send_invoice"
    fresh = object.__new__(type(old))
    for name in ("priority", "backend", "queue_name", "run_after", "takes_context"):
        object.__setattr__(fresh, name, getattr(old, name))
    object.__setattr__(fresh, "func", send_invoice_again)
    registry.register(fresh)
    assert registry.get(NAME).func is send_invoice_again


def charge() -> None: ...


def charge_card() -> None: ...


def test_two_functions_cannot_share_a_name():
    first = task(task_type="charge")(charge)
    assert task(task_type="charge", priority=5)(charge) is not first  # a variant of the same function
    with pytest.raises(InvalidTask, match=r"Both .*charge and .*charge_card have the task_type 'charge'"):
        task(task_type="charge")(charge_card)
    assert registry.get("charge").func is charge
    task(aliases=["charge"])(charge_card)  # a name that a function has now is no former one
    assert registry.get("charge").func is charge


def test_a_suggestion_for_a_dotted_name_has_a_similar_last_part():
    known = ["shop.tasks.add", "shop.tasks.die", "shop.tasks.fail", "shop.mail.add"]
    assert near_matches("shop.tasks.ad", known) == ["shop.tasks.add", "shop.mail.add"]
    assert near_matches("shop.task.fail", known) == ["shop.tasks.fail"]


def test_an_unknown_name_is_answered_with_near_matches():
    with pytest.raises(UnknownTaskType, match="Did you mean") as refused:
        registry.get(NAME.replace("invoice", "invoise"))
    assert refused.value.near_matches[0] == NAME
    assert (refused.value.field, refused.value.code) == ("task_type", "unknown_task_type")


def test_a_name_like_nothing_known_has_none():
    with pytest.raises(UnknownTaskType) as refused:
        registry.get("zzzzzzzzzzzzzzzzzzzzzz")
    assert refused.value.near_matches == []
    assert "Did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["this.task", "antigravity.fly", "wsgiref.simple_server.demo_app", "os.system", "eval", "", ".", "..x"]
)
def test_a_name_imports_nothing_outside_installed_apps(name):
    modules = set(sys.modules)
    with pytest.raises(UnknownTaskType):
        registry.get(name)
    assert registry.import_module_of(name) is False
    assert not {"this", "antigravity", "wsgiref.simple_server"} & (set(sys.modules) - modules)


@pytest.mark.parametrize(
    "name", ["queue_app.services.lifecycle.claim.claim", "queue_app.nowhere.f", "queue_app.f", "queue_apparel.f"]
)
def test_a_function_that_is_no_task_is_not_learnt(name):
    assert registry.import_module_of(name) is False


def test_a_task_in_a_module_of_an_installed_app_is_learnt(known_tasks):
    name = "taskqueue_project.demo.tasks.count_words"
    registry.discover()
    known = known_tasks.pop(name)
    sys.modules.pop("taskqueue_project.demo.tasks")
    assert registry.import_module_of(name) is True
    assert registry.get(name).func.__name__ == known.func.__name__


def test_discovery_finds_the_tasks_of_installed_apps():
    registry.discover()
    assert "taskqueue_project.demo.tasks.count_words" in registry.known_types()


def test_modules_are_looked_for_once_but_again_after_an_error_and_for_other_names(monkeypatch, settings):
    """A search for parameters asks for types that are gone, on each page."""
    sought = []

    def autodiscover(module):
        sought.append(module)
        if module == "broken":
            raise ImportError(module)

    monkeypatch.setattr(registry, "_discovered", ((), ()))
    monkeypatch.setattr(registry, "autodiscover_modules", autodiscover)
    for _ in range(2):
        registry.discover()
    assert sought == ["tasks"]
    settings.TASKQUEUE = {**settings.TASKQUEUE, "TASK_MODULES": ["tasks", "broken"]}
    for _ in range(2):
        with pytest.raises(ImportError):
            registry.discover()
    assert sought == ["tasks", *["tasks", "broken"] * 2]


def test_a_type_that_is_missing_is_looked_for_once(monkeypatch, known_tasks):
    """A page of failures asks for the same types again and again; a new task may be the missing one."""
    looked = []
    monkeypatch.setattr(registry, "discover", lambda: looked.append(1))
    assert [registry.find("shop.tasks.never_sought") for _ in range(3)] == [None] * 3
    assert looked == [1]

    def new():
        """Do nothing."""

    new.__qualname__ = "new"
    task()(new)
    assert registry.find("shop.tasks.never_sought") is None
    assert looked == [1, 1]


# -- types of arguments, and former names ----------------------------------------------------------------------------


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


@pytest.fixture(params=["queue_app.testing.TestingBackend", "queue_app.backend.TaskQueueBackend"])
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
