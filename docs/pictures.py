"""Make the pictures of the admin in docs/images again: Chromium looks at the quickstart after some runs of its demo.

.venv/bin/python docs/pictures.py [FOLDER]
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
#: The window, and the share of its size that a picture has.
WIDTH, HEIGHT, SCALE = 1440, 1500, 0.75
#: Runs of the demo after the first, and the seconds between them: the charts then show more than one peak.
RUNS, PAUSE = 4, 30
#: Name of the picture -> (address of the page, text of a link to follow there, height).
PICTURES = {
    "overview": ("", "", HEIGHT),
    "tasks": ("task/", "", 1330),
    "task-failed": ("deadletter/", "broken", 1360),
    "causes": ("deadletter/causes/", "", 760),
    "workflow": ("workflow/", "order 1003", 1400),
}

#: Writes another folder in place of the one of this machine, which tracebacks name.
WITHOUT_PATH = """([path, other]) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replaceAll(path, other);
}"""


@contextmanager
def quickstart(data: str, port: int, password: str) -> Iterator[None]:
    """Run the quickstart; go on once its demo has ended."""
    environment = os.environ | {"QUICKSTART_ADMIN_PASSWORD": password}
    command = [sys.executable, "manage.py", "quickstart", "--data", data, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        if not any(line.startswith("Serving.") for line in process.stdout or ()):
            sys.exit("The quickstart ended before it served.")
        yield
    finally:
        process.terminate()
        process.wait(60)


def demo(data: str) -> None:
    """Run the demo again."""
    addresses = json.loads((Path(data) / "running.json").read_text())
    command = [sys.executable, "manage.py", "demo"]
    subprocess.run(command, cwd=ROOT, env=os.environ | addresses, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def take(page: Page, address: str, folder: Path) -> None:
    """Write each picture."""
    for name, (path, link, height) in PICTURES.items():
        page.set_viewport_size({"width": WIDTH, "height": height})
        page.goto(f"{address}/admin/queue_app/{path}")
        if link:
            page.click(f"#result_list a:has-text('{link}') >> nth=0")
            page.wait_for_load_state()
        if name == "overview":
            page.wait_for_selector("#tq-overview[data-drawn]")
            page.click("text=15m")
            page.wait_for_timeout(1000)
        page.evaluate(WITHOUT_PATH, [str(ROOT), "/srv/shop"])
        page.screenshot(path=folder / f"{name}-light.png")


def main(folder: Path) -> None:
    """Start everything, run the demo some more times, and take the pictures."""
    chromium = shutil.which("chromium") or sys.exit("Chromium is missing: apt install chromium.")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    password, address = secrets.token_urlsafe(9), f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as data, quickstart(data, port, password), sync_playwright() as playwright:
        for _ in range(RUNS):
            time.sleep(PAUSE)
            demo(data)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme="light", device_scale_factor=SCALE)
        page.goto(f"{address}/admin/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", password)
        page.click("input[type=submit]")
        take(page, address, folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images")
