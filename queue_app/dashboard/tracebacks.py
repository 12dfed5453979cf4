"""A traceback as HTML: frames of the project's own code are open, frames of libraries are folded."""

import re
from itertools import groupby
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from queue_app.core.fingerprint import is_own

_FILE: Final = re.compile(r'^\s*File "([^"\n]{1,500})"')


def frames(text: str) -> list[tuple[bool, list[str]]]:
    """Return the lines of a traceback in parts: (whether they are frames of libraries, lines)."""
    marked: list[tuple[bool, str]] = []
    foreign = False
    for line in text.splitlines():
        found = _FILE.match(line)
        if found:
            foreign = not is_own(found[1])
        elif not line.startswith("    "):  # the source of a frame is indented further than its file
            foreign = False
        marked.append((foreign, line))
    return [(key, [line for _, line in lines]) for key, lines in groupby(marked, key=lambda each: each[0])]


def traceback_html(text: str) -> SafeString:
    """Return a traceback with the frames of libraries folded."""
    parts = []
    for foreign, lines in frames(text):
        shown = "\n".join(lines)
        if not foreign:
            parts.append(format_html('<pre class="tq-pre tq-own" tabindex="0">{}</pre>', shown))
            continue
        count = sum(bool(_FILE.match(line)) for line in lines)
        words = ngettext("%(n)d frame of a library", "%(n)d frames of libraries", count) % {"n": count}
        parts.append(format_html(
            '<details class="tq-frames"><summary>{}</summary><pre class="tq-pre">{}</pre></details>', words, shown
        ))  # fmt: skip
    return format_html_join("", "{}", ((part,) for part in parts))
