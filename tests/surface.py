"""Print what users of the queue see: the OpenAPI document, help texts, settings, Python names, pages and permissions.

    ./dev surface              print it
    ./dev surface REVISION     print how it differs from that of a revision of git, as a diff

Each line that differs is a change to explain in CHANGELOG.md, or a mistake.
"""

# ruff: noqa: PLC0415 - the project is imported once its path is known, and Django is set up

import argparse
import difflib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
MODULES = (
    "queue_app", "queue_app.exceptions", "queue_app.schedules", "queue_app.services",
    "queue_app.signals", "queue_app.tasks", "queue_app.testing", "queue_app.workflows",
)  # fmt: skip


def lines() -> Iterator[str]:
    """Yield the surface of the project that is on the path."""
    for part in (_openapi, _commands, _settings, _names, _pages, _permissions):
        yield f"== {part.__name__.strip('_')}"
        yield from part()


def _openapi() -> Iterator[str]:
    from queue_app.api.views.docs import document

    yield from _leaves("", document())


def _leaves(path: str, value: Any) -> Iterator[str]:
    """Yield one line for each value of a JSON document; the order of its names does not count."""
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        value = {each["name"]: each for each in value}  # parameters
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from _leaves(f"{path}/{name}", value[name])
    elif path.endswith("/required") and isinstance(value, list):
        yield from (f"{path} = {name}" for name in sorted(value))
    else:
        yield f"{path} = {json.dumps(value, sort_keys=True, default=str)}"


def _commands() -> Iterator[str]:
    from django.core.management import get_commands, load_command_class

    from queue_app.management import verbs

    for name, app in sorted(get_commands().items()):
        if str(app).startswith(("queue_app", "taskqueue_project")):
            yield from _help(name, load_command_class(app, name).create_parser("manage.py", name))
    for name in verbs.names():
        parser = argparse.ArgumentParser(prog=f"taskqueue {name}")
        verbs.load(name).add_arguments(parser)
        yield from _help(f"taskqueue {name}", parser)


def _help(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (f"{name}: {line.strip()}" for line in parser.format_help().splitlines() if line.strip())


def _settings() -> Iterator[str]:
    from queue_app import conf

    yield from _fields("TASKQUEUE", conf.TaskQueueSettings())


def _fields(path: str, value: Any) -> Iterator[str]:
    for item in fields(value):
        found = getattr(value, item.name)
        name = f"{path}.{item.name}"
        yield from _fields(name, found) if is_dataclass(found) else iter([f"{name}: {item.type} = {found!r}"])


def _names() -> Iterator[str]:
    for path in MODULES:
        module = import_module(path)
        for name in sorted(getattr(module, "__all__", None) or vars(module)):
            value = getattr(module, name)
            of_here = hasattr(module, "__all__") or getattr(value, "__module__", None) == path
            if not name.startswith("_") and of_here:
                yield from _name(f"{path}.{name}", value)


def _name(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, type) and getattr(value, "__total__", None) is not None:  # a TypedDict
        kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in value.__annotations__.items()}
        yield from (f"{path}[{name}]: {kinds[name]}" for name in sorted(kinds))
        return
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    yield path
    named = sorted(str(each) for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY)
    yield from (f"{path}({each})" for each in [str(p) for p in parameters if str(p) not in named] + named)
    if isinstance(value, type):
        yield from (f"{path}.{name}" for name in sorted(dir(value)) if not name.startswith("_"))


def _pages() -> Iterator[str]:
    from django.urls import get_resolver

    yield from sorted(_urls("/", get_resolver().url_patterns))


def _urls(path: str, patterns: Any) -> Iterator[str]:
    for each in patterns:
        here = path + str(each.pattern)
        inner = getattr(each, "url_patterns", None)
        yield from [f"{here} {each.name}"] if inner is None else _urls(here, inner)


def _permissions() -> Iterator[str]:
    from django.apps import apps

    for model in apps.get_app_config("queue_app").get_models():
        meta = model._meta
        yield from (
            f"{meta.label}: {name}" for name in (*meta.default_permissions, *(name for name, _ in meta.permissions))
        )


def _of(root: Path) -> list[str]:
    """Return the surface of a checkout, printed by a process of its own."""
    found = subprocess.run(
        [sys.executable, __file__, "--root", str(root)],
        check=True, capture_output=True, text=True, cwd=root, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    return found.stdout.splitlines()


def _diff(revision: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            before = _of(tree)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    return list(difflib.unified_diff(before, _of(HERE), revision, "now", n=0, lineterm=""))


def main() -> None:
    """Print the surface, or its difference."""
    parser = argparse.ArgumentParser(description="Print what users of the queue see, or how it differs.")
    parser.add_argument("revision", nargs="?", help="a revision of git")
    parser.add_argument("--root", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.revision:
        print("\n".join(_diff(given.revision)))
        return
    sys.path.insert(0, given.root or str(HERE))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.test")  # which need no server
    import django

    django.setup()
    print("\n".join(lines()))


if __name__ == "__main__":
    main()
