"""Task types: the names under which this process knows task functions.

A type is the dotted path of its function, or the ``task_type`` that the task names. Tasks register when
their modules are imported; ``discover`` imports the ``tasks`` modules of all installed apps. A name from
outside is only looked up here and never decides what is imported, with one exception: for a type that it
was asked to run, a worker may import modules of installed apps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from inspect import Parameter
from typing import Any, Final
from weakref import WeakSet

from django.apps import AppConfig, apps
from django.tasks.base import Task
from django.tasks.exceptions import InvalidTask
from django.utils.module_loading import autodiscover_modules, module_has_submodule

from queue_app import conf
from queue_app.core.redaction import normal_name
from queue_app.core.sentence import sentence
from queue_app.core.signatures import taken_by
from queue_app.exceptions import InvalidTaskData, Snooze, UnknownTaskType

type AnyTask = Task[..., Any]  # generic in the stubs only; an alias is not evaluated

_tasks: Final[dict[str, AnyTask]] = {}
#: Returns the task of a type if it is registered, else ``None``; imports nothing.
known: Final = _tasks.get
_stand_ins: WeakSet[Callable[..., Any]] = WeakSet()
#: (type, task modules) of types that ``find`` looked for in vain; a page of failures asks for the same ones often.
_missing: set[tuple[str, tuple[str, ...]]] = set()
_MAX_MISSING = 10_000
#: The (apps, task modules) that ``discover`` has imported without an error: to look for their files again takes 10 ms.
_discovered: tuple[tuple[AppConfig, ...], tuple[str, ...]] = (), ()
#: Before the names of the tasks of the app itself.
OWN = "queue_app."
#: The task that delivers webhooks.
DELIVER = f"{OWN}webhooks.deliver"


def type_of(task: AnyTask) -> str:
    """Return the type of ``task``: its own name for it, else its dotted path."""
    return getattr(task, "task_type", "") or path_of(task)


def path_of(task: AnyTask) -> str:
    """Return the dotted path of a task's function; a script run with ``python -m`` has its module's name."""
    module = task.func.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
    return f"{module}.{task.func.__qualname__}"


def register(task: AnyTask) -> None:
    """Register the task's function and its former names; of several variants of one function the first is kept."""
    name = type_of(task)
    known = _tasks.get(name)
    if known is None or known.func is not task.func:  # new, or its module was reloaded
        if known is not None and type_of(known) == name:
            _check_same_function(name, known, task)
        _tasks[name] = task
        _missing.clear()
        for alias in getattr(task, "aliases", ()):
            if alias not in _tasks or type_of(_tasks[alias]) != alias:  # no function has this name now
                _tasks[alias] = task


def _check_same_function(name: str, known: AnyTask, task: AnyTask) -> None:
    """Raise ``InvalidTask`` if two functions of the project have one name: only one of them would run."""
    places = {f"{each.func.__module__}.{each.func.__qualname__}" for each in (known, task)}
    if len(places) > 1 and "__main__" not in {known.func.__module__, task.func.__module__}:
        raise InvalidTask(f"Both {' and '.join(sorted(places))} have the task_type {name!r}; give one another name.")


def first_name(task_type: str) -> str:
    """Return the first name that a task type had, which all versions of the code share."""
    aliases: tuple[str, ...] = getattr(_tasks.get(task_type), "aliases", ())
    return aliases[0] if aliases else task_type


def discover() -> None:
    """Import the task modules of all installed apps, once."""
    global _discovered  # noqa: PLW0603 - one registry a process
    modules = tuple(conf.load()[0].task_modules)  # also with a setting that the checks report
    sought = tuple(apps.get_app_configs()), modules
    if sought != _discovered:
        for module in modules:
            autodiscover_modules(module)
        _discovered = sought


def broken_modules() -> dict[str, Exception]:
    """Import the task modules of all installed apps; return the error of each that cannot be imported."""
    broken: dict[str, Exception] = {}
    for name in conf.load()[0].task_modules:
        for config in apps.get_app_configs():
            module = f"{config.name}.{name}"
            try:
                if module_has_submodule(config.module, name):
                    import_module(module)
            except Exception as error:  # noqa: BLE001 - whatever the project's code raises
                broken[module] = error
    return broken


def missing_modules() -> list[str]:
    """Return the entries of ``TASK_MODULES`` that no installed app has."""
    packages = [config.module for config in apps.get_app_configs()]
    return [
        name
        for name in conf.load()[0].task_modules
        if not any(module_has_submodule(package, name) for package in packages)
    ]


def known_types() -> tuple[str, ...]:
    """Return all known task types, sorted."""
    return tuple(sorted(_tasks))


def get(task_type: str) -> AnyTask:
    """Return the task of this type; raise ``UnknownTaskType``, which lists similar names."""
    task = of_task_modules(task_type)
    if task is None:
        raise UnknownTaskType(task_type, _tasks)
    return task


def of_task_modules(task_type: str) -> AnyTask | None:
    """Return the task of this type, ``None`` if no task module has it; imports no other module."""
    if task_type not in _tasks:
        discover()
    return _tasks.get(task_type)


def get_for_caller(task_type: str) -> AnyTask:
    """``get`` for callers outside the project's code."""
    check_for_caller(task_type)
    return get(task_type)


def check_for_caller(task_type: str) -> None:
    """Raise ``InvalidTaskData`` for a task of the app itself: callers could send webhooks, which the project signs."""
    if task_type.startswith(OWN):
        raise InvalidTaskData(
            "task_type",
            f"{task_type} is a task of the queue itself, which only code enqueues; webhooks with"
            " queue_app.webhooks.send.",
            code="unknown_task_type",
        )


def find(task_type: str) -> AnyTask | None:
    """Return the task of this type, or ``None`` if neither the task modules nor an installed app have it."""
    sought = task_type, tuple(conf.load()[0].task_modules)
    if task_type not in _tasks and sought not in _missing:
        discover()
        with suppress(ImportError):
            import_module_of(task_type)
        if task_type not in _tasks and len(_missing) < _MAX_MISSING:
            _missing.add(sought)
    return _tasks.get(task_type)


def places_of(names: Collection[str]) -> list[tuple[str, int]]:
    """Return (task type, place) where the functions of the project take parameters of these names by position."""
    found = []
    for task_type, task in sorted(_tasks.items()):
        taken = taken_by(task.func, takes_context=task.takes_context)
        for place, parameter in enumerate(taken.signature.parameters.values() if taken else ()):
            if parameter.name in names and parameter.kind <= Parameter.POSITIONAL_OR_KEYWORD:
                found.append((task_type, place))
    return found


def sensitive_names(task_type: str) -> frozenset[str]:
    """Return the names of parameters whose values must not be displayed for this type.

    The type or the project declares them. An unknown type may have declared anything, so the names of all types apply.
    """
    try:
        task = find(task_type)
    except Exception:  # noqa: BLE001 - a broken task module of the project must not reveal a secret
        task = None
    return all_sensitive_names() if task is None else _for_all() | _declared_by(task)


def all_sensitive_names() -> frozenset[str]:
    """Return the names that the project or any known task declares sensitive, for values of no particular task."""
    return _for_all().union(*(_declared_by(task) for task in list(_tasks.values())))


def sensitive_names_of(task_types: Collection[str]) -> frozenset[str]:
    """Return the names that are sensitive for any of these types (none: all); imports only the task modules."""
    if not task_types or any(task_type not in _tasks for task_type in task_types):
        with suppress(Exception):  # a broken task module must neither stop the search nor reveal a secret
            discover()
    tasks = [_tasks.get(task_type) for task_type in task_types] or [None]
    return frozenset[str]().union(
        *(all_sensitive_names() if t is None else _for_all() | _declared_by(t) for t in tasks)
    )


def _for_all() -> frozenset[str]:
    return frozenset(map(normal_name, conf.load()[0].sensitive))


def _declared_by(task: AnyTask) -> frozenset[str]:
    return frozenset(map(normal_name, getattr(task, "sensitive", ())))


def stand_in(task_type: str) -> Callable[..., Any]:
    """Return a function with the name of one that is gone; calling it raises ``UnknownTaskType``."""

    def gone(*_args: Any, **_kwargs: Any) -> Any:
        raise UnknownTaskType(task_type, _tasks)

    gone.__module__, _, gone.__qualname__ = task_type.rpartition(".")
    gone.__name__ = gone.__qualname__
    _stand_ins.add(gone)
    return gone


def is_stand_in(function: Callable[..., Any]) -> bool:
    """Return whether ``stand_in`` made the function."""
    return function in _stand_ins


def import_module_of(task_type: str) -> bool:
    """Import the module of a task type if an installed app contains it; return whether the type is registered now.

    An app without this module is no error. Raises what an existing module raises.
    """
    if task_type in _tasks:
        return True
    module, _, _ = task_type.rpartition(".")
    if _is_in_an_app(module):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, and imports another that does not
    return task_type in _tasks


def why_unknown(task_type: str) -> str:
    """Return why workers do not know a waiting task type, as far as this process can tell, and what to do."""
    task = _tasks.get(task_type)
    module = task.func.__module__ if task else task_type.rpartition(".")[0]
    if module and not _is_in_an_app(module):
        return sentence(
            "No app in INSTALLED_APPS contains the module %(module)s, and workers import no other: move the function to"
            " the module tasks of an app.",
            module=module,
        )
    try:
        if import_module_of(task_type):
            return sentence("This process knows it: deploy the same code to the workers, and restart them.")
    except Exception as error:  # noqa: BLE001 - whatever the project's code raises
        # The message of an ImportError names modules; another may hold anything.
        what = f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else type(error).__name__
        return sentence("Its module %(module)s cannot be imported: %(error)s.", module=module, error=what.rstrip("."))
    return sentence("This process does not know it either: the function was renamed or removed, or newer code has it.")


def _is_in_an_app(module: str) -> bool:
    return any(module == config.name or module.startswith(f"{config.name}.") for config in apps.get_app_configs())


# Versions of a task's signature, for deploys in which old calls wait and old workers still run.
#
# The version of a call is stored with its metadata, unless it is 1.

type Arguments = tuple[list[Any], dict[str, Any]]
#: Returns the arguments of the present version for those of an older one: (version, args, kwargs), as stored JSON.
type Upgrade = Callable[[int, list[Any], dict[str, Any]], Arguments]

#: Key in the metadata.
KEY: Final = "task_version"
MAX_VERSION: Final = 1_000_000
#: Seconds after which a worker with older code offers a newer call again; another worker may take it. With less, many
#: newer calls would keep old workers busy in vain. A new ``task_type`` spares the wait: old workers do not ask for it.
NEXT_OFFER: Final = 10.0


def of(task: AnyTask | None) -> int:
    """Return the version of a task in this process; 1 for a type that is not registered."""
    version: int = getattr(task, "version", 1)
    return version


def arguments_of(task: AnyTask, metadata: str | None, args: list[Any], kwargs: dict[str, Any]) -> Arguments:
    """Return the arguments of a stored call for the function as it is now.

    Raises ``Snooze`` for a call of a newer version: a worker with newer code runs it.
    """
    known: int = getattr(task, "version", 1)
    stored: int = 1 if metadata is None else json.loads(metadata).get(KEY, 1)
    if stored > known:
        raise Snooze(NEXT_OFFER, f"The call has version {stored} of its task, and this worker's code version {known}.")
    upgrade: Upgrade | None = getattr(task, "upgrade", None)
    if stored == known or upgrade is None:
        return args, kwargs
    upgraded: Any = upgrade(stored, args, kwargs)  # of the project, which may return anything
    if not (isinstance(upgraded, tuple) and [*map(type, upgraded)] == [list, dict]):
        raise TypeError(f"upgrade must return a list and a dict, (args, kwargs), not {upgraded!r:.100}.")
    found: Arguments = upgraded
    return found
