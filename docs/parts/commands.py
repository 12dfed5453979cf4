"""The options of commands."""

import argparse
from collections.abc import Callable

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
#: Verb -> where the options that it shares with others have their meaning.
MANY, OF_A_TASK = "[options for many tasks](#options-for-many-tasks)", "[options of the task](task-options.md)"
SHARED = {"cancel": MANY, "replay": MANY, "reprioritise": MANY, "submit": OF_A_TASK, "schedule": OF_A_TASK}


def actions(*add_arguments: Callable[[argparse.ArgumentParser], None]) -> list[argparse.Action]:
    """Return the options that functions add to a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    for add in add_arguments:
        add(parser)
    return parser._actions  # noqa: SLF001 - argparse publishes no list


def options(found: list[argparse.Action]) -> str:
    """Return the table of options."""
    rows = []
    for action in found:
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper().replace("_", "-"))
        names = [*action.option_strings[-1:], value]
        meaning = action.help or ", ".join(map(code, action.choices or ())) or f"name of a {value.lower()}"
        rows.append((code(" ".join(filter(None, names))), meaning % {"default": action.default}))
    return table(("option", "meaning"), rows) if rows else ""


def command(name: str) -> str:
    """Return the help of a command and the table of its options."""
    found = load_command_class(COMMANDS[name], name)
    return f"{found.help.partition(' Exit codes:')[0]}\n\n{options(actions(found.add_arguments))}"


def of_many() -> list[argparse.Action]:
    """Return the options that the verbs for many tasks share."""
    return actions(_operations.add_task_filter, _operations.add_options)


def verbs() -> str:
    """Return a section for each verb of `manage.py taskqueue`: what it does, an example, its options."""
    of_most = {action.help for action in actions(modules.add_by_and_json)}
    shared = {MANY: {action.dest for action in of_many()}, OF_A_TASK: set(OPTIONS), "": set()}
    lines = []
    for name in modules.names():
        verb, where = modules.load(name), SHARED.get(name, "")
        found = [action for action in actions(verb.add_arguments) if action.help not in of_most]
        lines += [
            f"### `taskqueue {name}`",
            modules.summary(verb),
            f"```console\n$ python manage.py {verb.EXAMPLE}\n```",
        ]
        lines += filter(None, [options([action for action in found if action.dest not in shared[where]])])
        names = [code((*action.option_strings, action.metavar)[0]) for action in found if action.dest in shared[where]]
        lines += [f"Also {', '.join(names)}: {where}."] if names else []
    return "\n\n".join(lines)
