"""Load the Lua scripts: one file per transition, with the shared parts they include.

A script is sent once per server by ``EVALSHA``; when the server does not know it (new,
restarted, ``SCRIPT FLUSH``), redis-py loads it and repeats the call.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^--! include (\w+)$", re.MULTILINE)
_FOLDER = files("queue_app.index") / "lua"

NAMES = tuple(sorted(entry.name.removesuffix(".lua") for entry in _FOLDER.iterdir() if entry.name.endswith(".lua")))


@cache
def source(name: str) -> str:
    """Return the text of the script ``name`` with its includes in place."""
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: (_FOLDER / "lib" / f"{match[1]}.lua").read_text(encoding="utf-8"), text)
