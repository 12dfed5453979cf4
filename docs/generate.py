"""Write the generated parts of the reference, from the code that they describe.

Each part stands between two comments in a page, `<!-- generated: NAME -->` and `<!-- end -->`. Run

    .venv/bin/python docs/generate.py

after a change of the code; `tests/docs/test_reference.py` fails until then.
"""

import os
import re
import sys
from pathlib import Path

import django
from django.apps import apps

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

sys.path += [str(ROOT), str(DOCS)]  # behind installed packages of the same names: "pictures"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.test")  # which need no server
if not apps.ready:
    django.setup()

import parts  # noqa: E402 - imports the app, which needs Django


def rendered(text: str) -> str:
    """Return the text of a page with up-to-date generated parts."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{parts.ALL[match['name']]()}\n\n{match[3]}", text)


def pages() -> list[Path]:
    """Return the pages that hold generated parts."""
    return [path for path in sorted(DOCS.rglob("*.md")) if BLOCK.search(path.read_text())]


def main() -> None:
    """Rewrite the pages whose generated parts are out of date."""
    for path in pages():
        text = path.read_text()
        fresh = rendered(text)
        if fresh != text:
            path.write_text(fresh)
            print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201 - a command talks to a terminal


if __name__ == "__main__":
    main()
