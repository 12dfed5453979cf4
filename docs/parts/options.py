"""The options of a task."""

from parts.markdown import code, table
from queue_app.core.options import API_NAMES, FILTERS, OPTIONS, Door, Names, Option, Text, Whole, at

_DOORS = {
    Door.API: "API",
    Door.COMMAND: "`taskqueue submit`",
    Door.STREAM: "request stream",
    Door.SCHEDULE: "schedules",
}


def options() -> str:
    """Return the table of all options."""
    rows = (
        (
            code(name),
            about.sentence,
            _values(about),
            ", ".join(text for door, text in _DOORS.items() if not door & about.doors),
        )
        for name, about in OPTIONS.items()
    )
    return table(("option", "meaning", "values", "not in"), rows)


def options_at(door: Door) -> str:
    """Return the sentence about the options that may be set at a door, by their names in the API."""
    names = ", ".join(code(API_NAMES[name]) for name in at(door))
    return f"These [options](task-options.md) of the task are fields too: {names}."


def filters() -> str:
    """Return the sentence about filters by options."""
    return f"Lists of tasks can be filtered by {', '.join(code(API_NAMES[name]) for name in FILTERS)}."


def _values(about: Option) -> str:
    match about.kind:
        case Names(most):
            return f"at most {most} names"
        case Text(most):
            return f"at most {most} characters"
        case Whole(low, high):
            return f"{low} to {high}"
    return f"more than 0, at most {about.kind.high:.0f}"
