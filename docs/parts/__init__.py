"""The generated parts of the reference: `ALL` has the function that returns each."""

from collections.abc import Callable
from functools import partial

from parts import commands, http, lists, options, python, settings, states
from queue_app.core.options import Door

ALL: dict[str, Callable[[], str]] = {
    "settings": settings.settings,
    "states": states.states,
    "transitions": states.transitions,
    "options": options.options,
    "options-api": partial(options.options_at, Door.API),
    "option-filters": options.filters,
    "endpoints": http.endpoints,
    "former-names": http.former_names,
    "http-errors": http.http_errors,
    "field-errors": http.field_errors,
    "checks": lists.checks,
    "keys": lists.keys,
    "metrics": lists.metrics,
    "policies": lists.policies,
    "reasons": lists.reasons,
    "verbs": commands.verbs,
    "python-errors": python.errors,
    "python-app": partial(python.members, "queue_app"),
    "python-context": python.context_members,
    "python-exceptions": partial(python.members, "queue_app.exceptions", python.TASK_EXCEPTIONS),
    "python-services": partial(python.members, "queue_app.services"),
    "python-testing": partial(python.members, "queue_app.testing"),
    **{f"command-{name}": partial(commands.command, name) for name in commands.COMMANDS},
}
