"""When a browser first shows a page of the admin: Chromium's first contentful paint, from a server as in production."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench_http import serving
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

ROOM = {"width": 1440, "height": 900}
SERVER = ["gunicorn", "bench_app.wsgi:application", "--threads", "8", "--bind"]
#: Seconds since the request of the page.
_PAINT = """() => new Promise((resolve) => {
  const found = () => performance.getEntriesByName("first-contentful-paint")[0];
  if (found()) return resolve(found().startTime / 1000);
  new PerformanceObserver(() => found() && resolve(found().startTime / 1000)).observe({type: "paint", buffered: true});
})"""


@contextmanager
def browser(user: User) -> Iterator[Callable[[str], float]]:
    """Start a server and a browser; yield a function that returns the seconds to the first paint of an address."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only for this

    client = Client()
    client.force_login(user)
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    chromium = shutil.which("chromium") or sys.exit("The first paint needs Chromium: apt install chromium.")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's event loop does not disturb the statements
    with serving(SERVER) as server, sync_playwright() as playwright:
        address = f"http://127.0.0.1:{server.port}"
        program = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        context = program.new_context(viewport=ROOM)
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": address}])
        page = context.new_page()

        def paint(path: str) -> float:
            time.sleep(0.1)  # the server closes what the last page left open
            answer = page.goto(f"{address}{path}")
            assert answer is not None, path
            assert answer.status == 200, path
            return float(page.evaluate(_PAINT))

        try:
            yield paint
        finally:
            program.close()
