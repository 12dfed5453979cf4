"""The options of commands."""

import argparse
from collections.abc import Callable, Iterable

from django.core.management import load_command_class

from parts.markdown import code, table
from queue_app.management import verbs as modules

#: Command -> module of its app.
COMMANDS = {
    "runworker": "queue_app",
    "runscheduler": "queue_app",
    "quickstart": "taskqueue_project",
    "demo": "taskqueue_project.demo",
}


def options(add_arguments: Callable[[argparse.ArgumentParser], None], leave_out: Iterable[str] = ()) -> str:
    """Return the table of options that a function adds to a parser, without those whose help is left out."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    rows = []
    for action in parser._actions:  # noqa: SLF001 - argparse publishes no list
        if action.help in leave_out:
            continue
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper().replace("_", "-"))
        names = [*action.option_strings[-1:], value]
        meaning = action.help or ", ".join(map(code, action.choices or ())) or f"name of a {value.lower()}"
        rows.append((code(" ".join(filter(None, names))), meaning % {"default": action.default}))
    return table(("option", "meaning"), rows) if rows else ""


def command(name: str) -> str:
    """Return the help of a command and the table of its options."""
    found = load_command_class(COMMANDS[name], name)
    return f"{found.help.partition(' Exit codes:')[0]}\n\n{options(found.add_arguments)}"


def verbs() -> str:
    """Return a section for each verb of `manage.py taskqueue`: what it does, an example, its options."""
    common = argparse.ArgumentParser(add_help=False)
    modules.add_by_and_json(common)
    of_most = [action.help for action in common._actions]  # noqa: SLF001 - argparse publishes no list
    return "\n\n".join(
        f"### `taskqueue {name}`\n\n{modules.summary(verb)}\n\n```console\n$ python manage.py {verb.EXAMPLE}\n```\n\n"
        f"{options(verb.add_arguments, of_most)}".rstrip()
        for name, verb in ((name, modules.load(name)) for name in modules.names())
    )
