"""Every block of Python in the pages: run where it says so, else compiled and its imports looked up."""

import ast
import importlib
import shlex
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import override_settings
from django.utils.module_loading import import_string

from queue_app import checks, registry
from queue_app.services import hints
from queue_app.services.enqueue import forget_known_queues
from tests.docs.pages import MARKS, all_blocks, blocks, pages

PYTHON = all_blocks("python")
SESSIONS = [page for page in pages() if any(block.mark == "run" for block in blocks(page))]


def name_of(thing):
    return thing.label if hasattr(thing, "label") else thing.stem


@pytest.fixture
def shop(request, tmp_path, monkeypatch):
    """Make the modules of a page importable, and forget them and their tasks afterwards."""
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
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


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


@pytest.mark.parametrize("shop", SESSIONS, ids=name_of, indirect=True)
@pytest.mark.usefixtures("transactional_db")
def test_session_runs(shop):
    hints.breaker.reset()
    forget_known_queues()
    names = {}
    for block in blocks(shop):
        if block.mark != "run":
            continue
        if block.language == "python":
            exec(compile(block.text, block.label, "exec"), names)  # noqa: S102 - our own page
            continue
        for command in block.commands():
            words = shlex.split(command)
            assert words[:2] == ["python", "manage.py"]
            call_command(*words[2:])
    forget_known_queues()
