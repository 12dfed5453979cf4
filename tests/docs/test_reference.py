"""The reference agrees with the code: its generated parts, and the tables that people write."""

import ast
import dataclasses
import inspect
import re
import sys
import typing
from importlib import import_module

import pytest
from django.test import override_settings

from queue_app import conf
from queue_app.api.views.docs import document
from queue_app.backend.results import RESULT_STATUS
from queue_app.core.states import PENDING, TRANSITIONS, Status
from queue_app.metrics import names as metrics
from tests.docs.pages import ROOT, pages

sys.path.append(str(ROOT / "docs"))
import generate
import parts

SOURCES = sorted((ROOT / "queue_app").rglob("*.py"))
DEPLOYED = [path for path in sorted((ROOT / "taskqueue_project/deploy").rglob("*")) if path.suffix in {".yml", ".json"}]


@pytest.mark.parametrize("page", generate.pages(), ids=lambda page: page.stem)
def test_page_is_up_to_date(page):
    text = page.read_text()
    assert generate.rendered(text) == text, "run .venv/bin/python docs/generate.py"


def test_every_generated_part_has_a_page():
    named = {match["name"] for page in generate.pages() for match in generate.BLOCK.finditer(page.read_text())}
    assert named == set(parts.ALL)


def test_the_table_of_addresses_and_the_openapi_document_agree():
    listed = set(re.findall(r"\| `([A-Z]+)` \| `(/(?:api/v1|internal)/[^`]+)` \|", parts.http.endpoints()))
    paths = document()["paths"].items()
    described = {(method.upper(), path.rstrip("/")) for path, found in paths for method in found}
    assert listed == {(method, path) for method, path in described if path.startswith(("/api/v1/", "/internal/"))}


def table(page, *heads):
    """Return the cells of a table in a page of the reference."""
    text = (ROOT / "docs/reference" / page).read_text()
    _, _, below = text.partition(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}\n")
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in below.partition("\n\n")[0].splitlines()]


def test_the_table_of_states_agrees_with_the_code():
    rows = table("states.md", "state", "meaning", "pending", "`django.tasks`")
    assert [(state, pending, of_django) for state, _, pending, of_django in rows] == [
        (f"`{each}`", "yes" if each in PENDING else "no", f"`{RESULT_STATUS[each].value}`") for each in Status
    ]


def test_the_table_of_transitions_agrees_with_the_code():
    rows = table("states.md", "from", "to", "made by")
    listed = [(f"`{before}`", f"`{after}`") for before in Status for after in Status if after in TRANSITIONS[before]]
    assert sorted((before, after) for before, after, _ in rows) == sorted(listed)


def metric_names(text):
    """Return what a text uses as a metric: by its ending, as a selector of PromQL, or a metric behind a prefix."""
    words = re.findall(r"(?<![\w./])([a-z]+(?:_[a-z]+)+)(\{\w+[=~!]|\[\d+[smhd]\])?(?![\w(/])", text)
    prefixed = tuple(f"_{name}" for name in metrics.BY_NAME if "_" in name)
    ends = ("_total", "_ratio", "_bucket", *prefixed)
    return {name for name, selector in words if selector or name in metrics.BY_NAME or name.endswith(ends)}


@pytest.mark.parametrize("page", [*pages(), *DEPLOYED], ids=lambda page: page.name)
def test_metrics_that_a_page_names_exist(page):
    known = set(metrics.BY_NAME) | {
        f"{name}_bucket" for name, each in metrics.BY_NAME.items() if each.kind == "histogram"
    }
    assert metric_names(page.read_text()) <= known


def test_a_metric_that_does_not_exist_is_found():
    said = "Watch `taskqueue_limit_value`, `limit_value` and rate(tasks_lost_total[5m])."
    assert metric_names(said) == {"taskqueue_limit_value", "limit_value", "tasks_lost_total"}


def test_every_setting_has_a_meaning():
    assert [line for line in parts.settings.settings().splitlines() if line.endswith("|  |")] == []


def test_a_setting_that_documents_zero_accepts_it():
    found = 0
    for name, kind in typing.get_type_hints(conf.TaskQueueSettings).items():
        for key, meaning in parts.settings.comments_of(kind).items() if dataclasses.is_dataclass(kind) else ():
            if re.search(r"\b0\b", meaning):
                with override_settings(TASKQUEUE={name.upper(): {key.upper(): 0}}):
                    assert conf.load()[1] == (), f"{name}.{key}: {meaning}"
                found += 1
    assert found > 5


@pytest.mark.parametrize("module", ["queue_app", "queue_app.services", "queue_app.testing"])
def test_every_public_name_has_a_docstring(module):
    """autodoc leaves out names without one."""
    found = import_module(module)
    assert [name for name in found.__all__ if not inspect.getdoc(getattr(found, name))] == []


def test_every_check_is_described():
    found = {name for path in SOURCES for name in re.findall(r'"(queue_app\.[EW]\d+)"', path.read_text())}
    assert {name.strip("`") for name, _ in table("checks.md", "id", "reports")} == found


def test_every_code_of_a_field_is_described():
    found, texts = set(), set()
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        of_classes = {each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.keywords}
        for node in set(ast.walk(tree)) - of_classes:
            if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                found.add(node.value.value)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "choice":  # choice(values, code)
                found.update(code.value for code in node.args[1:2] if isinstance(code, ast.Constant))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    described = {name.strip("`") for name, _ in table("errors.md", "`code`", "means")}
    assert found - {None} <= described
    assert described <= texts, "each is used; some are passed to a function by position"
