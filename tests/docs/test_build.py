"""The documentation builds without warnings, links to pages that exist, and loads nothing from the network."""

import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, pages

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


@pytest.mark.parametrize("page", [page for page in pages() if page.parent == ROOT], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
