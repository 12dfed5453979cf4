"""Load the Lua scripts: one file per transition, with the shared parts they include.

A script is sent once per server by ``EVALSHA``; when the server does not know it (new,
restarted, ``SCRIPT FLUSH``), redis-py loads it and repeats the call.

Lua makes every function of a script anew in each call, used or not; a hundred of them take
as long as ten commands. So what a script does not use of its shared parts is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^--! include (\w+)$", re.MULTILINE)
#: A shared function on one line, or up to the ``end`` at the margin; or the name of a key.
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
    """Return the text of the script ``name`` with what it uses of its includes in place."""
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    text = _INCLUDE.sub(lambda match: (_FOLDER / "lib" / f"{match[1]}.lua").read_text(encoding="utf-8"), text)
    while (shorter := _without_unused(text)) != text:
        text = shorter
    return text


def _without_unused(text: str) -> str:
    """Leave out the definitions whose names occur nowhere else."""
    uses = Counter(_words(text))

    def kept(match: re.Match[str]) -> str:
        name = match[match.lastindex or 0]
        return match[0] if uses[name] > _words(match[0]).count(name) else ""

    return _DEFINITION.sub(kept, text)


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMENT.sub("", text))
