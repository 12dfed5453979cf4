"""The bodies of actions on many tasks or dead letters: which ones, what to do, how fast."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queue_app.api.fields import Reader, choice, list_of, reason, switch, text, uuid_of
from queue_app.api.listing import LETTER_FILTERS
from queue_app.api.submission import priority
from queue_app.api.task_filters import read_body_filter
from queue_app.exceptions import InvalidTaskData
from queue_app.models.operation import OperationKind
from queue_app.services.operations.request import Action, Options, ReplayOptions, check_options
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter

MAX_IDS: Final = 1000
ACTIONS: Final = tuple(kind.value for kind in OperationKind)


@dataclass(frozen=True, slots=True)
class Selection[W, O: Options]:
    """The rows that an action applies to, and how it proceeds."""

    wanted: W
    options: O
    reason: str
    dry_run: bool


def parse_task_selection(data: Mapping[str, Any]) -> tuple[Action, Selection[TaskFilter, Options]]:
    """Return the action that the body asks for and its tasks; raise all errors together."""
    with Reader(data, ("action", "priority", "ids", "filter", "rate", "limit", "reason", "dry_run")) as reader:
        kind = reader.required("action", _kind, OperationKind.CANCEL)
        band = reader.optional("priority", priority)
        ids = reader.optional("ids", _ids)
        wanted = reader.optional("filter", lambda value, _: read_body_filter(value))
        _check_ids_or_filter(reader, data)
        selection = Selection(wanted or TaskFilter(ids=ids), *_options(reader, data, Options()))
    return Action(kind=kind, band=band), selection


def parse_letter_selection(data: Mapping[str, Any], *, replay: bool) -> Selection[DeadLetterFilter, ReplayOptions]:
    """Return the dead letters that the body asks for; raise all its errors together."""
    given = data.get("filter")
    inner = {f"filter.{name}": value for name, value in given.items()} if isinstance(given, dict) else {}
    names = ("ids", "dry_run", "limit", "reason", *(("rate", "stop_after_failures") if replay else ()))
    values = {name: value for name, value in data.items() if name != "filter"} | inner
    with Reader(values, (*names, *(f"filter.{name}" for name in LETTER_FILTERS))) as reader:
        wanted = DeadLetterFilter(
            ids=reader.optional("ids", _ids),
            **{name: reader.optional(f"filter.{name}", check) for name, check in LETTER_FILTERS.items()},
        )
        if given is not None and not isinstance(given, dict):
            reader.add_error(InvalidTaskData("filter", "filter must be an object.", code="object_expected"))
        else:
            _check_ids_or_filter(reader, data)
        return Selection(wanted, *_options(reader, data, ReplayOptions()))


def _check_ids_or_filter(reader: Reader, data: Mapping[str, Any]) -> None:
    has_ids, has_filter = data.get("ids") is not None, data.get("filter") is not None
    if has_ids and has_filter:
        reader.add_error(InvalidTaskData("filter", "Give ids or filter, not both.", code="conflicting_fields"))
    elif not has_ids and not has_filter:
        reader.add_error(InvalidTaskData("ids", "Give ids or a filter; an empty filter selects all.", code="required"))


def _options[O: Options](reader: Reader, data: Mapping[str, Any], options: O) -> tuple[O, str, bool]:
    """Return the pace and the limit, the reason, and whether this is a dry run."""
    why = reader.optional("reason", reason) or ""
    dry_run = reader.optional("dry_run", switch) or False
    given = {name: data[name] for name in ("rate", "limit", "stop_after_failures") if data.get(name) is not None}
    try:
        check_options(options := replace(options, **given))
    except InvalidTaskData as error:
        reader.add_error(error)
    return options, why, dry_run


def _ids(value: Any, name: str) -> list[uuid.UUID]:
    return [uuid_of(item, f"{name}[{position}]") for position, item in enumerate(list_of(MAX_IDS)(value, name))]


def _kind(value: Any, name: str) -> OperationKind:
    return OperationKind(choice(ACTIONS, "unknown_action")(text(value, name), name))
