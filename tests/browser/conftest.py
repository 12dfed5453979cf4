"""A browser: the system's Chromium, driven by Playwright."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import require

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
#: No page of this app waits longer before it asks the server again, unless an answer was an error.
TURN_MS = 5000
MOST_TURNS = 100
ARTEFACTS = Path(__file__).parent.parent.parent / ".artefacts" / "screenshots"


@pytest.fixture(scope="session")
def chromium() -> str:
    return require("chromium")


@pytest.fixture(autouse=True)
def short_connections():
    """Make the live server close its connections after each request, so that the test database can be dropped."""
    from tests.support.sessions import connections_kept  # noqa: PLC0415 - needs the settings

    with connections_kept(0):
        yield


@pytest.fixture(scope="module")
def browser(chromium) -> Iterator:
    """Start a browser for the tests of one module; its event loop in this thread would disturb other tests."""
    from django.db import connections  # noqa: PLC0415 - needs the settings
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only when there is a browser

    with pytest.MonkeyPatch.context() as patch:
        # Playwright runs an event loop in this thread; the test's queries do not disturb it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
            yield browser
            browser.close()
            connections.close_all()  # connections opened under the event loop, which Django keeps separate


class Visitor:
    """A tab of a logged-in user, with all errors that occurred in it."""

    def __init__(self, browser, address: str, **options) -> None:
        self.address = address
        self.problems: list[str] = []
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(30_000)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("response", self._look)

    def _note(self, message) -> None:
        """Record errors, including violations of the Content Security Policy."""
        if message.text.startswith("Failed to load resource"):
            return  # the response handler below checks these; browsers request icons that do not exist
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
        """Log a user in, without Django's form."""
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

    def see(self, selector: str) -> None:
        """Wait for an element; a page that was opened after ``page.clock.install()`` asks the server again at once."""
        for _ in range(MOST_TURNS):
            if self.page.locator(selector).count():
                break
            self.page.clock.fast_forward(TURN_MS)
            self.page.wait_for_timeout(100)
        self.page.wait_for_selector(selector)


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
    """Forget the shared values of the last test."""
    from queue_app.core import shared  # noqa: PLC0415

    shared.forget()


@pytest.fixture
def screenshot() -> Callable[..., None]:
    """Return a function that saves a picture of a page if SCREENSHOTS is set: people look at them, no test does."""

    def save(page, *name: str, full_page: bool = True) -> None:
        if os.environ.get("SCREENSHOTS"):
            page.screenshot(path=ARTEFACTS / f"{'-'.join(name)}.png", full_page=full_page)

    return save
