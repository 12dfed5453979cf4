"""The generated parts of the reference are up to date."""

import ast
import dataclasses
import re
import sys
import typing

import pytest
from django.test import override_settings

from queue_app import conf
from queue_app.api.views.docs import document
from queue_app.core.states import TRANSITIONS, Status
from tests.docs.pages import ROOT

sys.path.append(str(ROOT / "docs"))
import generate
import parts

SOURCES = sorted((ROOT / "queue_app").rglob("*.py"))


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


def test_every_transition_has_a_source():
    found = {(before, after) for before, ends in parts.states.MADE_BY.items() for after in ends}
    assert found == {(before.value, after.value) for before in Status for after in TRANSITIONS[before]}


def test_every_state_is_described():
    assert set(parts.states.MEANS) == {status.value for status in Status}


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


def test_every_check_is_described():
    found = {name for path in SOURCES for name in re.findall(r'"(queue_app\.[EW]\d+)"', path.read_text())}
    assert set(parts.lists.CHECKS) == found


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
    assert found - {None} <= set(parts.http.FIELD_CODES)
    assert set(parts.http.FIELD_CODES) <= texts, "each is used; some are passed to a function by position"
