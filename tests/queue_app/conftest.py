"""What the tests of the engine share: the rows, the index, the history of transitions."""

# ruff: noqa: E402 - models can be imported once Django is set up, and this file may be read before pytest-django does it
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from types import ModuleType

import django
import pytest
from django.db import connections
from django.dispatch import Signal

django.setup()

from queue_app import conf
from queue_app.index import Index, get_index
from queue_app.index.index import rows_index
from queue_app.services.notify import index as notify
from tests.support.engine import built
from tests.support.history import History, installed
from tests.support.rows import forget_known_queues
from tests.support.scene import Scene


@pytest.fixture(autouse=True)
def forgetful_process() -> Iterator[None]:
    """Let no test see what an earlier one taught the process: known queues, counts, an index out of reach."""
    forget_known_queues()
    notify.breaker.reset()
    rows_index.cache_clear()
    yield
    forget_known_queues()
    notify.breaker.reset()


@pytest.fixture
def index_way() -> str:
    """Where claims find tasks, for tests that are not marked ``both_ways``."""
    return conf.REDIS


@pytest.fixture
def index(index_way, request) -> Index:
    """The index of this process, empty."""
    if index_way == conf.ROWS:
        settings = request.getfixturevalue("settings")
        settings.TASKQUEUE = settings.TASKQUEUE | {"INDEX": index_way}
        get_index()._counts.forget()  # what an earlier test counted
    return get_index()


@pytest.fixture
def scene(index: Index) -> Scene:
    """An index that is open for claims, and a way to talk about it."""
    return Scene(index).open()


@pytest.fixture
def rows(transactional_db: None) -> None:
    """Real commits, on tables that hold what the migrations wrote."""


@pytest.fixture
def history(rows: None) -> Iterator[History]:
    """Rows whose every transition is recorded, and refused when it is not allowed."""
    with installed() as record:
        yield record


@pytest.fixture
def engine(history: History, index: Index) -> Scene:
    """Rows with their history, and an index that was built from them: the whole engine, empty and ready."""
    built(index)
    return Scene(index)


@pytest.fixture
def hear() -> Iterator[Callable[..., list]]:
    """Return a function that collects, of each event of a signal, the value with a name, or a tuple of several."""
    with ExitStack() as stack:

        def hear(signal: Signal, *names: str) -> list:
            heard: list = []

            def listener(**event) -> None:
                heard.append(event[names[0]] if len(names) == 1 else tuple(event[name] for name in names))

            signal.connect(listener, weak=False)
            stack.callback(signal.disconnect, listener)
            return heard

        yield hear


@pytest.fixture
def databases() -> Iterator[dict[str, dict]]:
    """The settings of all databases; what a test adds is forgotten at its end."""
    before = dict(connections.settings)
    yield connections.settings
    connections.settings.clear()
    connections.settings.update(before)


@pytest.fixture
def override(monkeypatch) -> Callable[..., None]:
    """Return a function that sets constants of a module, or entries of a dictionary of settings, for one test."""

    def override(owner: ModuleType | str | dict, **values: object) -> None:
        owner = import_module(owner) if isinstance(owner, str) else owner
        for name, value in values.items():
            assert name.isupper(), "code is not replaced so"
            if isinstance(owner, dict):
                monkeypatch.setitem(owner, name, value)
            else:
                monkeypatch.setattr(owner, name, value)

    return override


@pytest.fixture
def before(monkeypatch) -> Callable[..., None]:
    """Return a function that lets something happen once, right before the next call of ``owner.name``."""

    def before(owner: object, name: str, action: Callable[[], object]) -> None:
        plain = getattr(owner, name)

        def call(*args, **options):
            monkeypatch.setattr(owner, name, plain)
            action()
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, call)

    return before


@pytest.fixture
def after(monkeypatch) -> Callable[..., None]:
    """Return a function that lets something happen once, right after the next call of ``owner.name``."""

    def after(owner: object, name: str, action: Callable[[], object]) -> None:
        plain = getattr(owner, name)

        def call(*args, **options):
            monkeypatch.setattr(owner, name, plain)
            found = plain(*args, **options)
            action()
            return found

        monkeypatch.setattr(owner, name, call)

    return after


@pytest.fixture
def retention(settings) -> Callable[..., None]:
    """Set how long things are kept, in days."""

    def keep(**days: float) -> None:
        seconds = {f"{name.upper()}_SECONDS": value * 86_400 for name, value in days.items()}
        settings.TASKQUEUE = {**settings.TASKQUEUE, "RETENTION": seconds}

    return keep
