"""The options of commands."""

import argparse
from collections.abc import Callable, Collection

from django.core.management import load_command_class

from parts.markdown import code, table
from queue_app.core.options import OPTIONS
from queue_app.management import verbs as modules
from queue_app.management.verbs import _operations

#: Command -> module of its app.
COMMANDS = {
    "runworker": "queue_app",
    "runscheduler": "queue_app",
    "quickstart": "taskqueue_project",
    "demo": "taskqueue_project.demo",
}
#: Verbs that change many tasks: one table has the options that they share.
OF_MANY = ("cancel", "replay", "reprioritise")
#: Verbs that take the options of a task: the page about these has their meaning.
OF_A_TASK = ("submit", "schedule")


def actions(add_arguments: Callable[[argparse.ArgumentParser], None]) -> list[argparse.Action]:
    """Return the options that a function adds to a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    return parser._actions  # noqa: SLF001 - argparse publishes no list


def name_of(action: argparse.Action) -> str:
    """Return an option with its value, such as `--queue QUEUE`."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper().replace("_", "-"))
    return code(" ".join(filter(None, [*action.option_strings[-1:], value])))


def options(found: list[argparse.Action], of_task: Collection[str] = ()) -> str:
    """Return the table of options; those of a task share a row."""
    rows: dict[str, str] = {}
    shared = [action for action in found if action.dest in of_task]
    for action in found:
        if shared and action is shared[0]:
            of_action = "add: " if action.help.startswith("add: ") else ""
            rows[", ".join(map(name_of, shared))] = f"{of_action}[options of the task](task-options.md)"
        elif action not in shared:
            value = name_of(action).strip("`").rpartition(" ")[2].lower()
            meaning = action.help or ", ".join(map(code, action.choices or ())) or f"name of a {value}"
            rows[name_of(action)] = meaning % {"default": action.default}
    return table(("option", "meaning"), rows.items()) if rows else ""


def command(name: str) -> str:
    """Return the help of a command and the table of its options."""
    found = load_command_class(COMMANDS[name], name)
    return f"{found.help.partition(' Exit codes:')[0]}\n\n{options(actions(found.add_arguments))}"


def _of_many(parser: argparse.ArgumentParser) -> None:
    _operations.add_task_filter(parser)
    _operations.add_options(parser, "change")


def options_of_many() -> str:
    """Return the table of the options that the verbs for many tasks share."""
    return options(actions(_of_many))


def verbs() -> str:
    """Return a section for each verb of `manage.py taskqueue`: what it does, an example, its options."""
    of_most = {action.help for action in actions(modules.add_by_and_json)}
    of_many = {action.dest for action in actions(_of_many)}
    sections = []
    for name in modules.names():
        verb = modules.load(name)
        found = [action for action in actions(verb.add_arguments) if action.help not in of_most]
        if name in OF_MANY:
            found = [action for action in found if action.dest not in of_many]
        example = f"```console\n$ python manage.py {verb.EXAMPLE}\n```"
        rows = options(found, OPTIONS if name in OF_A_TASK else ())
        if name in OF_MANY:
            rows = f"{rows}\n\nThe [options for many tasks](#options-for-many-tasks) apply.".lstrip()
        sections.append(f"### `taskqueue {name}`\n\n{modules.summary(verb)}\n\n{example}\n\n{rows}".rstrip())
    return "\n\n".join(sections)
