"""The generated parts of the reference: `ALL` has the function that returns each."""

from collections.abc import Callable
from functools import partial

from parts import commands, http, lists, options, python, settings
from queue_app.core.options import Door

ALL: dict[str, Callable[[], str]] = {
    "settings": settings.settings,
    "options": options.options,
    "options-api": partial(options.options_at, Door.API),
    "option-filters": options.filters,
    "endpoints": http.endpoints,
    "former-names": http.former_names,
    "http-errors": http.http_errors,
    "metrics": lists.metrics,
    "policies": lists.policies,
    "reasons": lists.reasons,
    "verbs": commands.verbs,
    "options-of-many": lambda: commands.options(commands.of_many()),
    "python-errors": python.errors,
    **{f"command-{name}": partial(commands.command, name) for name in commands.COMMANDS},
}
