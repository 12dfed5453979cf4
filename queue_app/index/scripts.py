"""Load the Lua scripts: one file per transition, with the shared parts that it includes.

Lua creates every function of a script in each call, used or not; a hundred functions cost as much as ten
commands. So the loader leaves out shared functions that a script does not use.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

#: An include; a shared function, on one line or up to the ``end`` at the margin; or the name of a key.
_PART = re.compile(
    r"^--! include (?P<include>\w+)\n"
    r"|^local function (?P<short>\w+)\([^\n]*\) [^\n]* end *(?:--[^\n]*)?\n"
    r"|^local function (?P<long>\w+)\([^\n]*\)\n(?:(?:[ -][^\n]*)?\n)*end\n"
    r"|^local (?P<key>[A-Z]+) = P \.\. [^\n]*\n",
    re.MULTILINE,
)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_FOLDER = files("queue_app.index") / "lua"

NAMES = tuple(sorted(entry.name.removesuffix(".lua") for entry in _FOLDER.iterdir() if entry.name.endswith(".lua")))


class _Part(NamedTuple):
    """A definition (with a ``name``), the lines between two definitions, or the place of an included file."""

    include: str
    name: str
    text: str
    words: Counter[str]  # outside of comments


@cache
def source(name: str) -> str:
    """Return the text of a script with the used parts of its includes in place."""
    parts = list(_expanded(f"{name}.lua", set()))
    uses: Counter[str] = Counter()
    for part in parts:
        uses.update(part.words)
    while unused := [part for part in parts if part.name and uses[part.name] == part.words[part.name]]:
        for part in unused:
            uses.subtract(part.words)
        parts = [part for part in parts if part not in unused]
    return "".join(part.text for part in parts)


def _expanded(path: str, included: set[str]) -> Iterator[_Part]:
    """Yield the parts of a file; each include, and each of its own, comes once, before the first file that needs it."""
    for part in _parts(path):
        if not part.include:
            yield part
        elif part.include not in included:
            included.add(part.include)
            yield from _expanded(f"lib/{part.include}.lua", included)


@cache
def _parts(path: str) -> list[_Part]:
    text = (_FOLDER / path).read_text(encoding="utf-8")
    parts, end = [], 0
    for match in _PART.finditer(text):
        parts.append(_part("", text[end : match.start()]))
        end = match.end()
        if match["include"]:
            parts.append(_Part(match["include"], "", "", Counter()))
        else:
            parts.append(_part(match[match.lastgroup or 0], match[0]))
    return [*parts, _part("", text[end:])]


def _part(name: str, text: str) -> _Part:
    return _Part("", name, text, Counter(_WORD.findall(_COMMENT.sub("", text))))
