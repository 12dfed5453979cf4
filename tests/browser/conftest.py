"""A browser: the system's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",  # CI runs as root in a container
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ARTEFACTS = Path(__file__).parent.parent.parent / ".artefacts" / "screenshots"


@pytest.fixture(scope="session")
def chromium() -> str:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None and os.environ.get("CI"):
        pytest.fail("The browser tests need Chromium; .ci/run installs it.")
    if path is None:
        pytest.skip("Chromium is not installed (CI fails here instead).")
    return path


@pytest.fixture(autouse=True)
def short_connections(monkeypatch):
    """Let the live server close its connections with each request, or the test database cannot be dropped."""
    from django.db import connections  # noqa: PLC0415 - needs the settings

    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)


@pytest.fixture
def browser(chromium, monkeypatch) -> Iterator:
    from django.db import connections  # noqa: PLC0415 - needs the settings
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only when there is a browser

    # Playwright keeps an event loop running in this thread, which the test's own queries do not disturb.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield browser
        browser.close()
        connections.close_all()  # those of the time with an event loop; Django keeps them apart from the others


@pytest.fixture
def screenshots() -> Path:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return ARTEFACTS
