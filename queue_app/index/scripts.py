"""Load the Lua scripts: one file per transition, with the shared parts that it includes.

Lua creates every function of a script anew in each call, used or not; a hundred functions cost as much as ten
commands. So the loader leaves out shared functions that a script does not use.
"""

import re
from collections import Counter
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^--! include (\w+)\n", re.MULTILINE)
#: A shared function, on one line or up to the ``end`` at the margin; or the name of a key.
_DEFINITION = re.compile(
    r"^local function (\w+)\([^\n]*\) [^\n]* end *(?:--[^\n]*)?\n"
    r"|^local function (\w+)\([^\n]*\)\n(?:(?:[ -][^\n]*)?\n)*end\n"
    r"|^local ([A-Z]+) = P \.\. [^\n]*\n",
    re.MULTILINE,
)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_FOLDER = files("queue_app.index") / "lua"

NAMES = tuple(sorted(entry.name.removesuffix(".lua") for entry in _FOLDER.iterdir() if entry.name.endswith(".lua")))


@cache
def source(name: str) -> str:
    """Return the text of a script with the used parts of its includes in place."""
    text = _expand(f"{name}.lua", set())
    while (shorter := _without_unused(text)) != text:
        text = shorter
    return text


def _expand(path: str, included: set[str]) -> str:
    """Return the text of a file; each include, and each of its own, comes once, before the first file that needs it."""

    def text_of(match: re.Match[str]) -> str:
        part = match[1]
        if part in included:
            return ""
        included.add(part)
        return _expand(f"lib/{part}.lua", included)

    return _INCLUDE.sub(text_of, (_FOLDER / path).read_text(encoding="utf-8"))


def _without_unused(text: str) -> str:
    """Leave out definitions whose names occur nowhere else."""
    uses = Counter(_words(text))

    def kept(match: re.Match[str]) -> str:
        name = match[match.lastindex or 0]
        return match[0] if uses[name] > _words(match[0]).count(name) else ""

    return _DEFINITION.sub(kept, text)


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMENT.sub("", text))
