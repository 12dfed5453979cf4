"""The page of mistakes quotes messages that the code has."""

import ast
import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs/how-to/mistakes.md"
#: Rows whose message is that of Python.
OF_OTHERS = ("ModuleNotFoundError",)
#: Length of the part of a message that the code must have; names and numbers are filled in around it.
LENGTH = 17


def rows() -> list[tuple[str, str]]:
    found = re.findall(r"^\| ([^|]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return [row for row in found if row[0] not in ("mistake", "---")]


@pytest.fixture(scope="module")
def texts() -> str:
    """All texts of the code, without what f-strings fill in."""
    sources = [path for folder in ("queue_app", "workers") for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    found = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return "\0".join(found).replace("`", "")


@pytest.mark.parametrize(("mistake", "message"), rows(), ids=[mistake[:40] for mistake, _ in rows()])
def test_the_code_has_the_message(texts, mistake, message):
    if not any(other in message for other in OF_OTHERS):
        quoted = message.replace("`", "")
        assert any(quoted[at : at + LENGTH] in texts for at in range(len(quoted) - LENGTH + 1)), message
