"""The options of a task, each declared once.

An option is a field of ``RowOptions`` or ``CallOptions``, with its type and its default. Its ``Option`` says the rest.
The checks, the columns of statements, the fields of the HTTP API, the arguments of commands, the fields of schedules
and of the request stream, the pages of a task and the reference are derived from ``OPTIONS``. To add one, write it

- here: into ``RowOptions``, and into ``OptionValues`` for type checkers (and into ``OptionFilters`` to filter by it);
- into ``queue_app.models.task.OptionColumns``, with a migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Final, TypedDict

if TYPE_CHECKING:
    from queue_app.core.unique import Unique

type Seconds = float | timedelta

USER_LENGTH: Final = 150  # length of Django's usernames
KEY_LENGTH: Final = 64
CONCURRENCY_KEY_LENGTH: Final = 128
MAX_WEIGHT: Final = 1000
MAX_CAPABILITIES: Final = 20
MAX_RETRIES: Final = 100
MAX_TIMEOUT_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Names:
    """A set of names."""

    most: int
    sql = "text[]"


@dataclass(frozen=True, slots=True)
class Text:
    """Visible text."""

    most: int
    blank: bool = True
    sql = "text"


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    low: int
    high: int
    sql = "int2"


@dataclass(frozen=True, slots=True)
class Duration:
    """A time in seconds, more than none."""

    high: float
    sql = "float8"


class Door(Flag):
    """Where an option may be set, beside the decorator and ``using``."""

    API = auto()
    COMMAND = auto()  # `taskqueue submit`
    STREAM = auto()
    SCHEDULE = auto()  # in code, admin, API and `taskqueue schedule add`


EVERY_DOOR: Final = ~Door(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is known about an option beside its name, type and default."""

    kind: Names | Text | Whole | Duration
    about: str  # one sentence without its full stop, for the reference, help texts and the OpenAPI document
    unset: str = ""  # what applies without a value
    doors: Door = EVERY_DOOR
    api: str = ""  # its name in the HTTP API, if it has another one there
    flag: str = ""  # its argument of commands, if it has another name there
    metavar: str = ""

    @property
    def help(self) -> str:
        """What it does, for the help of a command."""
        return self.about + (f"; default: {self.unset}" if self.unset else "")

    @property
    def sentence(self) -> str:
        """What it does, as a sentence."""
        return f"{self.help[0].upper()}{self.help[1:]}."


def option(default: Any = None, **about: Any) -> Any:
    """Return the field of an option."""
    return field(default=default, metadata={"option": Option(**about)})


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """The options that the row of a task and schedules keep, and that its worker gets."""

    __slots__ = ()  # so that classes with slots may inherit from it

    capabilities: Sequence[str] = option(
        (), kind=Names(MAX_CAPABILITIES), api="required_capabilities", flag="capability",
        about="names that a worker must offer to run the task",
    )  # fmt: skip
    user: str = option(
        "", kind=Text(USER_LENGTH), doors=Door.STREAM | Door.SCHEDULE, metavar="USER",
        about="the owner of the task, on whose behalf it runs; the API shows the task to this user",
    )  # fmt: skip
    timeout: Seconds | None = option(
        kind=Duration(MAX_TIMEOUT_SECONDS), api="timeout_seconds",
        about="seconds until the worker interrupts an attempt", unset="that of the queue, else of the band",
    )  # fmt: skip
    max_retries: int | None = option(
        kind=Whole(0, MAX_RETRIES),
        about="number of attempts after the first",
        unset="that of the queue, else of the band",
    )
    retry_delay: Seconds | None = option(
        kind=Duration(MAX_TIMEOUT_SECONDS), about="seconds before the first retry; doubled for each further retry",
        unset="the setting RETRY.BASE_SECONDS",
    )  # fmt: skip
    concurrency_key: str = option(
        "", kind=Text(CONCURRENCY_KEY_LENGTH), metavar="KEY",
        about="limits count tasks with the same key together, such as customer:7",
    )  # fmt: skip
    weight: int = option(
        1, kind=Whole(1, MAX_WEIGHT), metavar="SLOTS", about="number of a worker's slots that the task takes", unset="1"
    )


@dataclass(frozen=True, kw_only=True)
class CallOptions(RowOptions):
    """The options of one call, also those that only its enqueue reads."""

    __slots__ = ()

    idempotency_key: str | None = option(
        kind=Text(KEY_LENGTH, blank=False), doors=~Door.SCHEDULE, metavar="KEY",
        about="only one task is stored for the same key and user; the second enqueue returns the first task",
    )  # fmt: skip
    unique: Unique | bool | None = None


class OptionValues(TypedDict, total=False):
    """The same for type checkers, of functions that take some of them by name."""

    capabilities: Sequence[str]
    user: str
    timeout: Seconds | None
    max_retries: int | None
    retry_delay: Seconds | None
    concurrency_key: str
    weight: int


class CallValues(OptionValues, total=False):
    """The options of a call, as above."""

    idempotency_key: str | None
    unique: Unique | bool | None


@dataclass(frozen=True, kw_only=True)
class OptionFilters:
    """The options by which lists of tasks can be filtered: exactly these values."""

    __slots__ = ()

    user: str | None = None
    concurrency_key: str | None = None


#: {name: option}
OPTIONS: Final[dict[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(CallOptions) if each.metadata
}
DEFAULTS: Final = {each.name: each.default for each in fields(CallOptions)}
#: Those that rows, schedules and workers keep.
OF_ROWS: Final = tuple(each.name for each in fields(RowOptions))
FILTERS: Final = tuple(each.name for each in fields(OptionFilters))
#: {name: name in the HTTP API}
API_NAMES: Final = {name: about.api or name for name, about in OPTIONS.items()}
#: Former names in the HTTP API: those of Python.
FORMER_NAMES: Final = {name: api for name, api in API_NAMES.items() if name != api}


def at(door: Door) -> dict[str, Option]:
    """Return the options that may be set there."""
    return {name: about for name, about in OPTIONS.items() if about.doors & door}
