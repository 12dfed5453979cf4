"""Where a running attempt is now, as text: files, lines, functions and source lines, without any value."""

import asyncio
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Any, Final

from queue_app.core.payload import storable_text
from queue_app.core.records import MAX_STACK

#: A file, a line in it, and the function.
type Place = tuple[str, int, str]

#: Number of the innermost calls that are shown.
MAX_PLACES: Final = 50
MAX_LINE: Final = 200
#: The module that calls the function of a task, and the code between the two.
_EXECUTOR: Final = tuple(
    str(folder / "executor.py") for folder in (Path(__file__).parent, Path(__file__).resolve().parent)
)
_BETWEEN: Final = re.compile(r"/(django/tasks|asgiref|queue_app)/|/workers/executor\.py$")
_LIBRARY: Final = sysconfig.get_path("stdlib")
_DUMPED: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def of_thread(thread: int) -> list[Place]:
    """Return the calls of a thread, the outermost first."""
    return _calls(sys._current_frames().get(thread))  # noqa: SLF001 - the only way to see other threads


def of_coroutine(task: asyncio.Task[Any], thread: int) -> list[Place]:
    """Return what a task of the event loop in ``thread`` awaits, or its calls if it runs now, the outermost first."""
    places: list[Place] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = next(
            (getattr(awaited, name) for name in ("cr_frame", "gi_frame", "ag_frame") if hasattr(awaited, name)), None
        )
        if frame is None:
            break
        if getattr(awaited, "cr_running", False) or getattr(awaited, "gi_running", False):
            return of_thread(thread)
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return places


def of_dump(text: str) -> list[Place]:
    """Return the calls that ``faulthandler`` has written, the outermost first."""
    return [(file, int(line), function) for file, line, function in reversed(_DUMPED.findall(text))]


def as_text(places: list[Place]) -> str:
    """Return the calls from the function of the task on, each with its source line; long stacks lose their begin."""
    begin = max((number for number, place in enumerate(places) if place[0] in _EXECUTOR), default=0)
    own = list(dropwhile(lambda place: _is_between(place[0]), places[begin:])) or places
    lines = [
        f"{_short(file)}:{line} {function}\n    {_source(file, line)}" for file, line, function in own[-MAX_PLACES:]
    ]
    text = storable_text("\n".join(lines))
    return text if len(text) <= MAX_STACK else text[-MAX_STACK:].partition("\n")[2]  # a part of a secret is not masked


def _calls(frame: FrameType | None) -> list[Place]:
    found: Iterable[tuple[FrameType, int]] = traceback.walk_stack(frame) if frame is not None else ()
    return [(each.f_code.co_filename, line, each.f_code.co_name) for each, line in found][::-1]


def _is_between(file: str) -> bool:
    return (file.startswith(_LIBRARY) and "-packages/" not in file) or _BETWEEN.search(file) is not None


def _short(file: str) -> str:
    """Return the path of a file below the folder that it was imported from."""
    folders = [folder for folder in sys.path if folder and file.startswith(f"{folder}/")]
    return file[len(max(folders, key=len)) + 1 :] if folders else "/".join(file.split("/")[-2:])


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()[:MAX_LINE]
