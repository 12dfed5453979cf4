"""Missing programs: the last line of a run names the skipped groups, and CI installs every program."""

import re
import shutil

import pytest

from tests.integration.processes import ROOT
from tests.support import programs


def test_ci_installs_every_program():
    text = (ROOT / ".ci/run").read_text()
    pairs = re.search(r"for pair in (.*?); do", text, re.DOTALL)[1].replace("\\\n", " ").split()
    assert pairs == [f"{program.name}:{program.package}" for program in programs.PROGRAMS.values()]


def test_a_missing_program_skips_the_test(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(pytest.skip.Exception, match=r"node is not installed \(Debian: nodejs\)"):
        programs.require("node")


def test_a_program_may_have_another_name(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: "/bin/chrome" if name == "google-chrome" else None)
    assert programs.require("chromium") == "/bin/chrome"


def test_one_line_says_what_was_skipped_and_how_to_run_it():
    reasons = [
        "Skipped: chromium is not installed (Debian: chromium)",
        "Skipped: promtool is not installed (Debian: prometheus)",
        "Skipped: chromium is not installed (Debian: chromium)",
        "Skipped: This backend runs nothing.",
    ]
    assert programs.summary(reasons) == (
        "Skipped: alerts and dashboard (promtool), browser (chromium). To run them: apt install prometheus chromium"
    )
    assert programs.summary(reasons[3:]) == ""
