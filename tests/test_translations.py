"""No text of the pages is left untranslated in German, and another language can be begun."""

import gettext
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.support.programs import require

ROOT = Path(__file__).parent.parent
#: ``manage.py makemessages`` without the settings of the project, which name the folder of its own catalogue.
EXTRACT = """
from django.conf import settings
from django.core.management import call_command
settings.configure({options})
from taskqueue_project.management.commands.makemessages import Command
call_command(Command(), locale={locales})
"""
GERMAN = "locale/de/LC_MESSAGES/django"


def extract(folder: Path, templates: Path, locales: list[str], options: str = "") -> Path:
    """Extract the texts of a copy of the app in ``folder`` into the catalogues of languages; return the app."""
    require("xgettext")  # its package has the others
    app = folder / "queue_app"
    without = shutil.ignore_patterns(
        "__pycache__", "templates", "vendor", "workers"
    )  # the last and the templates are links
    shutil.copytree(ROOT / "queue_app", app, ignore=without)
    shutil.copytree(ROOT / "templates", templates, dirs_exist_ok=True)
    command = [sys.executable, "-c", EXTRACT.format(options=options, locales=locales)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return app


@pytest.fixture(scope="module")
def extracted(tmp_path_factory) -> Path:
    """A copy of the app, laid out as in the wheel, with a German and a new French catalogue."""
    folder = tmp_path_factory.mktemp("texts")
    return extract(folder, folder / "queue_app" / "templates", ["de", "fr"])


def entries(path: Path, *options: str) -> list[str]:
    """Return the texts of the entries of a catalogue that ``msgattrib`` selects."""
    done = subprocess.run(["msgattrib", "--no-wrap", *options, path], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith("msgid ") and line != 'msgid ""']


def test_german_is_complete(extracted):
    catalogue = extracted / f"{GERMAN}.po"
    assert entries(catalogue, "--untranslated") == []
    assert entries(catalogue, "--only-fuzzy") == []
    assert len(entries(catalogue, "--translated")) > 700


#: What no text for staff says -> the word of the glossary for it.
NOT_SAID = {
    r"condemn": "found damaged", r"\bleases?\b": "running task", r"varies by": "run time depends on",
    r"\bargs\b|\bparameters\b(?!\.[A-Z])": "arguments",
    r"\bretr(y|ied|ies)\b[^.:;]*dead letter|dead letter[^.:;]*\bretr(y|ied|ies)\b": "replay",
    r"\breplay(ed|s)?\b[^.:;]*workflow": "retry",
    r"\b(API|access) tokens?\b": "API key", r"\bworker (API )?keys?\b": "worker token",
}  # fmt: skip


def test_pages_and_messages_have_one_word_for_one_thing(extracted):
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    for word in ("arguments", "replay", "retry", "run again", "API key", "worker token"):
        assert f"| {word} |" in glossary
    texts = entries(extracted / "locale/fr/LC_MESSAGES/django.po", "--untranslated")
    found = {text: word for text in texts for said, word in NOT_SAID.items() if re.search(said, text)}
    assert found == {}


def test_makemessages_changes_nothing(tmp_path):
    """After `./dev manage makemessages -l de`, Git shows only what a change of the texts has changed."""
    app = extract(tmp_path, tmp_path / "templates", ["de"], 'LOCALE_PATHS=["queue_app/locale"]')
    assert (app / f"{GERMAN}.po").read_text() == (ROOT / "queue_app" / f"{GERMAN}.po").read_text()


def test_the_compiled_catalogue_is_that_of_the_texts(extracted, tmp_path):
    compiled = tmp_path / "django.mo"
    subprocess.run(["msgfmt", "--check-format", "-o", compiled, ROOT / "queue_app" / f"{GERMAN}.po"], check=True)
    with compiled.open("rb") as new, (ROOT / "queue_app" / f"{GERMAN}.mo").open("rb") as shipped:
        assert gettext.GNUTranslations(shipped)._catalog == gettext.GNUTranslations(new)._catalog


def test_another_language_can_be_begun(extracted):
    french = entries(extracted / "locale/fr/LC_MESSAGES/django.po", "--untranslated")
    assert len(french) == len(entries(extracted / f"{GERMAN}.po"))


def test_only_the_catalogues_of_the_app_are_compiled(tmp_path, monkeypatch, settings):
    require("xgettext")  # its package has msgfmt
    settings.LOCALE_PATHS = []
    for folder in ("queue_app", ".venv/lib/package", ".nox/tests/lib/package", "docs"):
        catalogue = tmp_path / folder / f"{GERMAN}.po"
        catalogue.parent.mkdir(parents=True)
        catalogue.write_text('msgid "a"\nmsgstr "b"\n')
    monkeypatch.chdir(tmp_path)
    call_command("compilemessages", verbosity=0)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.mo")] == [Path("queue_app") / f"{GERMAN}.mo"]
