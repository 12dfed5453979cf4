"""A browser: the system's Chromium, driven by Playwright."""

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
    if path is None:
        pytest.skip("Chromium is not installed.")
    return path


@pytest.fixture(autouse=True)
def short_connections(monkeypatch):
    """Let the live server close its connections with each request, or the test database cannot be dropped."""
    from django.db import connections  # noqa: PLC0415 - needs the settings

    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)


@pytest.fixture(scope="module")
def browser(chromium) -> Iterator:
    """Start a browser for the tests of one module: its event loop, in this thread, must not meet other tests."""
    from django.db import connections  # noqa: PLC0415 - needs the settings
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only when there is a browser

    with pytest.MonkeyPatch.context() as patch:
        # Playwright keeps an event loop running in this thread, which the test's own queries do not disturb.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
            yield browser
            browser.close()
            connections.close_all()  # those of the time with an event loop; Django keeps them apart from the others


class Visitor:
    """One tab of somebody who is logged in, and everything that went wrong in it."""

    def __init__(self, browser, address: str, **options) -> None:
        self.address = address
        self.problems: list[str] = []
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(30_000)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("response", self._look)

    def _note(self, message) -> None:
        """Note errors; the browser says there when the Content Security Policy forbids something."""
        if message.text.startswith("Failed to load resource"):
            return  # that is a response, see below; browsers ask for icons that nobody has
        if message.type == "error" or "Content Security Policy" in message.text:
            self.problems.append(message.text)

    def _look(self, response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status} {response.url}")
        elif "text/html" in response.headers.get("content-type", "") and response.url.startswith(self.address):
            policy = response.headers.get("content-security-policy", "")
            if "unsafe" in policy or "script-src 'self'" not in policy:
                self.problems.append(f"{response.url} allows too much: {policy!r}")

    def log_in(self, name: str) -> None:
        """Have somebody logged in; Django's own form for it is not what is tested here."""
        from django.conf import settings  # noqa: PLC0415
        from django.contrib.auth.models import User  # noqa: PLC0415
        from django.test import Client  # noqa: PLC0415

        client = Client()
        client.force_login(User.objects.get(username=name))
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        cookie = {"name": settings.SESSION_COOKIE_NAME, "value": session, "url": self.address}
        self.page.context.add_cookies([cookie])

    def go(self, path: str) -> None:
        self.page.goto(f"{self.address}/admin/queue_app/{path}")


@pytest.fixture
def visit(browser, live_server) -> Iterator:
    visitors: list[Visitor] = []

    def open_tab(**options) -> Visitor:
        visitors.append(Visitor(browser, live_server.url, **options))
        return visitors[-1]

    yield open_tab
    for visitor in visitors:
        visitor.page.close()


@pytest.fixture(autouse=True)
def fresh_look():
    """Forget what viewers shared in the test before."""
    from queue_app.dashboard import cache  # noqa: PLC0415

    cache.forget()


@pytest.fixture
def screenshots() -> Path:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return ARTEFACTS
