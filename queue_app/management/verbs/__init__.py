"""The verbs of ``manage.py taskqueue``: one module for each verb, with the verb's name; rooms have more.

A module has a docstring (the first line is the summary), ``EXAMPLE`` (the words after ``manage.py``), ``NEEDS`` (what
must work before the verb starts), ``add_arguments``, and ``run``, which calls the services and returns one of
``EXIT_CODES``. A verb need not catch the queue's errors: the command turns each into one line and an exit code. A
module whose name begins with an underscore is not a verb.
"""

import getpass
import json
import os
import pkgutil
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Flag, auto
from importlib import import_module
from typing import Any, Protocol, TextIO, cast

from django.core.serializers.json import DjangoJSONEncoder

from queue_app import registry
from queue_app.core import rooms
from queue_app.exceptions import UnknownTaskType
from queue_app.services.control import audit

OK = 0
REFUSED = FOUND = 1
USAGE = 2
UNREACHABLE = 4

EXIT_CODES = "0 done, 1 problems found or refused, 2 usage, 4 PostgreSQL or Redis unreachable"


class Needs(Flag):
    """What must work before a verb starts; if anything, the settings too."""

    NOTHING = 0
    DATABASE = auto()
    READABLE = auto()  # no session keeps a table of the queue locked against reading
    INDEX = auto()
    TASKS = auto()  # the project's task modules are imported


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: its options, output streams and terminal styles."""

    options: dict[str, Any]
    out: TextIO  # Django's wrapper: write() adds the line end
    err: TextIO
    style: Any

    def __getitem__(self, name: str) -> Any:
        """Return an option by its name, with underscores for dashes."""
        return self.options[name]

    @property
    def by(self) -> str:
        """The name for the audit log: ``--as``, else the system user."""
        return self.options.get("by") or system_user()

    def record(self, action: str, target: str, ids: Sequence[object] = (), **facts: Any) -> None:
        """Record a change in the audit log, in the transaction of the change."""
        audit.record(action, target, ids, by=self.by, via=audit.COMMAND, **facts)

    def answer(self, text: str, data: Any) -> int:
        """Write the text, or with ``--json`` the data; return the exit code of success."""
        self.write(text)
        self.write_json(data)
        return OK

    def write(self, line: str) -> None:
        """Write a line of text, unless ``--json`` is given."""
        if not self.options.get("json"):
            self.out.write(line)

    def note(self, line: str) -> None:
        """Write a line for a person to standard error, so that a script gets only the answer."""
        if not self.options.get("json"):
            self.err.write(line)

    def note_unknown_type(self, task_type: str | None) -> None:
        """Note that no code has a task type, which may be mistyped; its tasks may come from other code."""
        with suppress(Exception):  # a broken module of the project must not stop a verb
            try:
                if task_type:
                    registry.get(task_type)
            except UnknownTaskType as error:
                self.note(str(error))

    def write_json(self, value: Any) -> None:
        """Write a value as JSON, if ``--json`` is given."""
        if self.options.get("json"):
            self.out.write(json.dumps(value, cls=DjangoJSONEncoder, indent=2))


class Verb(Protocol):
    """The contents of a verb's module."""

    __doc__: str | None
    EXAMPLE: str
    NEEDS: Needs

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""

    def run(self, call: Call) -> int:
        """Run the verb; return the exit code."""


def names() -> list[str]:
    """Return the names of all verbs, sorted."""
    own = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
    return sorted(own | rooms.paths("verbs").keys())


def load(name: str) -> Verb:
    """Return a verb by its name."""
    return cast("Verb", import_module(rooms.paths("verbs").get(name, f"{__name__}.{name}")))


def summary(verb: Verb) -> str:
    """Return the first line of a verb's docstring."""
    return (verb.__doc__ or "").strip().partition("\n")[0]


def add_json(parser: ArgumentParser) -> None:
    """Declare ``--json``, for a verb that prints data."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_by_and_json(parser: ArgumentParser) -> None:
    """Declare ``--as`` and ``--json``, for a verb that changes something."""
    parser.add_argument("--as", dest="by", metavar="USER", help="name for the audit log; default: the system user")
    add_json(parser)


def system_user() -> str:
    """Return the name of the system user; in a container, the user id may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
