"""Every block of Python in the pages is executed, in one of the ways that tests/docs/pages.py lists."""

import ast
import importlib
import inspect
import shlex
import sys
import unittest
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.test import override_settings
from django.utils.module_loading import import_string

from queue_app import checks, registry, schedules
from queue_app.services.notify import index
from tests.docs.pages import MARKS, all_blocks, blocks, pages
from tests.support.rows import forget_known_queues

PYTHON = all_blocks("python")
SESSIONS = [page for page in pages() if any(block.mark in {"run", "test"} for block in blocks(page))]
ALONE = [block for block in PYTHON if block.mark in {"exec", "endless"}]


def name_of(thing):
    return thing.label if hasattr(thing, "label") else thing.stem


@pytest.fixture
def shop(request, tmp_path, monkeypatch):
    """Make the modules of a page importable; remove them and their tasks afterwards."""
    page = request.param if isinstance(request.param, Path) else request.param.page
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    for block in blocks(page):
        if block.mark == "file":
            (tmp_path / block.name).write_text(block.text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield request.param
    for task_type in [name for name in registry._tasks if name.startswith("shop.")]:
        del registry._tasks[task_type]
    schedules._declared.clear()
    for module in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[module]


@pytest.mark.parametrize("block", PYTHON, ids=name_of)
def test_says_what_it_is_for(block):
    assert block.mark in MARKS


@pytest.mark.parametrize("shop", PYTHON, ids=name_of, indirect=True)
def test_compiles_and_imports_what_exists(shop):
    tree = ast.parse(shop.text, shop.label)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                found = hasattr(module, alias.name) or find_spec(f"{node.module}.{alias.name}")
                assert found, f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("block", [block for block in PYTHON if block.mark == "settings"], ids=name_of)
def test_settings_pass_the_checks(block):
    found = {"INSTALLED_APPS": []}
    exec(compile(block.text, block.label, "exec"), found)  # noqa: S102 - our own page
    chosen = {name: found[name] for name in ("CACHES", "TASKS", "TASKQUEUE") if name in found}
    with override_settings(**{"TASKQUEUE": {}, **chosen}):
        assert [*checks.check_settings(), *checks.check_redis()] == []
        backend = settings.TASKS["default"]
        assert import_string(backend["BACKEND"])("default", backend).check() == []
        import_string(settings.CACHES["default"]["BACKEND"])


def run_tests_of(names, request):
    """Run the tests that a page defines: first those of Django, because fixtures of pytest last to the end."""
    for name, found in sorted(names.items(), key=lambda item: item[0].startswith("test_")):
        if name.startswith("test_"):
            found(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(found).parameters})
        elif inspect.isclass(found) and issubclass(found, unittest.TestCase) and found.__module__ == names["__name__"]:
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(found).run(result)
            assert (result.errors, result.failures, result.testsRun > 0) == ([], [], True)


class EndOfPage(Exception):
    """The loop of a page has run once."""


class PageRedis(redis.Redis):
    """The Redis of the tests, for a page; its streams are removed afterwards."""

    reads = 0

    def __init__(self, **options):
        super().__init__(connection_pool=redis.ConnectionPool.from_url(settings.REDIS_URL, **options))

    def xread(self, streams, count=None, block=None):
        self.reads += 1
        if self.reads > 1:
            raise EndOfPage
        return super().xread(streams, count=count, block=1)


@pytest.mark.parametrize("shop", ALONE, ids=name_of, indirect=True)
@pytest.mark.usefixtures("transactional_db")
def test_block_runs_by_itself(shop, monkeypatch):
    monkeypatch.setattr(redis, "Redis", PageRedis)
    given = {"__name__": "shop.page", "INSTALLED_APPS": [], "MIDDLEWARE": [], "urlpatterns": []}
    try:
        exec(compile(shop.text, shop.label, "exec"), given)  # noqa: S102 - our own page
    except EndOfPage:
        assert shop.mark == "endless"
    else:
        assert shop.mark == "exec"
    finally:
        PageRedis().delete("{taskqueue}:events", "{taskqueue}:requests")


@pytest.mark.parametrize("shop", SESSIONS, ids=name_of, indirect=True)
@pytest.mark.usefixtures("transactional_db")
def test_session_runs(shop, request):
    index.breaker.reset()
    forget_known_queues()
    names = {"__name__": "shop.page"}
    for block in blocks(shop):
        if block.mark == "file" and block.name.startswith("shop/"):  # an installed app, whose tasks are registered
            importlib.import_module(block.name.removesuffix(".py").replace("/", "."))
    for block in blocks(shop):
        if block.mark not in {"run", "test"}:
            continue
        if block.language == "python":
            exec(compile(block.text, block.label, "exec"), names)  # noqa: S102 - our own page
            continue
        for command in block.commands():
            words = shlex.split(command)
            assert words[:2] == ["python", "manage.py"]
            call_command(*words[2:])
    run_tests_of(names, request)
    forget_known_queues()
