"""The verbs of ``manage.py taskqueue``: each module here is one, named as it is typed.

A module gives its docstring (the first line is the summary), ``EXAMPLE`` (the words after
``manage.py``), ``NEEDS`` (the servers without which it cannot begin), ``add_arguments`` and
``run``, which does one thing through the services and returns an exit code:

- 0: done;
- 1: something was found, or the queue refused;
- 2: an option or value cannot be used;
- 4: PostgreSQL or Redis cannot be reached.

Errors of the queue need no handling in a verb: the command turns each into one line and
its code. A module whose name begins with an underscore is no verb.
"""

from __future__ import annotations

import getpass
import json
import os
import pkgutil
from argparse import ArgumentParser
from dataclasses import dataclass
from enum import Flag, auto
from importlib import import_module
from typing import Any, Protocol, TextIO, cast

from django.core.serializers.json import DjangoJSONEncoder

OK = 0
REFUSED = FOUND = 1
USAGE = 2
UNREACHABLE = 4

EXIT_CODES = "0 done, 1 problems found or refused, 2 usage, 4 PostgreSQL or Redis unreachable"


class Needs(Flag):
    """What must answer before a verb begins."""

    NOTHING = 0
    SETTINGS = auto()
    DATABASE = auto()
    INDEX = auto()
    TASKS = auto()  # the modules with the project's tasks are imported


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: its options, where to write, and what the terminal can do."""

    options: dict[str, Any]
    out: TextIO  # Django's wrapper: write() ends the line
    err: TextIO
    style: Any

    def __getitem__(self, name: str) -> Any:
        """Return an option by its name, underscores for dashes."""
        return self.options[name]

    @property
    def by(self) -> str:
        """Who does it, for the audit trail: ``--as``, else the user of the system."""
        return self.options.get("by") or system_user()

    def say(self, line: str = "") -> None:
        """Write one line for people, unless ``--json`` was given."""
        if not self.options.get("json"):
            self.out.write(line)

    def data(self, value: Any) -> None:
        """Write a value as JSON, if ``--json`` was given."""
        if self.options.get("json"):
            self.out.write(json.dumps(value, cls=DjangoJSONEncoder, indent=2))


class Verb(Protocol):
    """What a module of this package offers."""

    __doc__: str | None
    EXAMPLE: str
    NEEDS: Needs

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""

    def run(self, call: Call) -> int:
        """Do it; return the exit code."""


def names() -> list[str]:
    """Return the verbs, in order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Verb:
    """Return a verb by its name."""
    return cast("Verb", import_module(f"{__name__}.{name}"))


def summary(verb: Verb) -> str:
    """Return what a verb does, in one line."""
    return (verb.__doc__ or "").strip().partition("\n")[0]


def add_json(parser: ArgumentParser) -> None:
    """Declare ``--json`` of a verb that prints data."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_by(parser: ArgumentParser) -> None:
    """Declare ``--as`` of a verb that changes something."""
    parser.add_argument("--as", dest="by", metavar="USER", help="who does it, for the record; default: the system user")


def system_user() -> str:
    """Return the name of the user of this process; a container may have none for its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
