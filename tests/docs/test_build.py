"""The documentation builds without warnings, links to pages that exist, and loads nothing from the network."""

import re
import subprocess
import sys
from urllib.parse import quote

import pytest

from tests.browser.conftest import ARGUMENTS
from tests.docs.pages import ROOT, pages
from tests.support.programs import require

LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']((?:https?:)?//[^"']+)""")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "-b", "html"]
    result = subprocess.run(
        [*command, "-d", out / "doctrees", ROOT / "docs", out / "html"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return out / "html"


@pytest.mark.slow
def test_loads_nothing_from_the_network(built):
    found = {path.name: LOADED.findall(path.read_text()) for path in built.rglob("*.html")}
    assert "index.html" in found
    assert {name: addresses for name, addresses in found.items() if addresses} == {}
    assert not [path for path in built.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text())]


@pytest.mark.slow
def test_the_index_for_assistants_names_every_page(built):
    text = (built / "llms.txt").read_text()
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)(?:: \S.*)?$", text, re.MULTILINE)
    assert {"how-to/troubleshooting.html", "reference/python-api.html", "tutorial/index.html"} <= set(links)
    assert [link for link in links if not (built / link).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("my task does not start", "how-to/troubleshooting.html"),
        ("why did my task run twice?", "how-to/troubleshooting.html"),
        ("task stuck in scheduled", "how-to/troubleshooting.html"),
        ("TASKQUEUE WORKER.SLOTTS is not a setting of the task queue", "how-to/mistakes.html"),
        ("The index {shop} in Redis belongs to the database 'staging'", "how-to/mistakes.html"),
        ("ProgrammingError: the tables of the task queue are missing", "how-to/mistakes.html"),
    ],
)
def test_the_search_box_finds_a_symptom_among_its_first_five_pages(built, typed, page):
    address = f"{(built / 'search.html').as_uri()}?q={quote(typed)}"
    command = [require("chromium"), *ARGUMENTS, "--virtual-time-budget=4000", "--dump-dom", address]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    results = shown.partition('class="search">')[2].partition("</ul>")[0]
    assert page in [address.partition("#")[0] for address in re.findall(r'href="([^"?]+)', results)][:5]


@pytest.mark.parametrize("page", [page for page in pages() if page.parent == ROOT], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
