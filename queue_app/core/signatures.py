"""Check whether arguments fit a function, fast enough for every enqueue: a signature is read once for each function."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_type_hints

from django.core.exceptions import ImproperlyConfigured
from django.tasks.base import Task

from queue_app.exceptions import WrongArguments

SHOWN: Final = 300  # characters of a signature in a message
_LISTS: Final = (list, tuple)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

type AnyTask = Task[..., Any]  # generic in the stubs only; an alias is not evaluated


class _Hidden:
    """Stands for a default in a message: it may be a secret."""

    def __repr__(self) -> str:
        return "…"


class Taken(NamedTuple):
    """What a function takes; ``required`` and ``allowed`` are names, ``low`` and ``high`` numbers of positions."""

    signature: inspect.Signature
    required: frozenset[str]
    allowed: frozenset[str]
    low: int
    high: int


@lru_cache(maxsize=4096)
def taken_by(function: Callable[..., Any], *, takes_context: bool) -> Taken | None:
    """Return what a function takes, after its context if it takes one; ``None`` if Python does not know.

    A wrapper counts as it is written, because it may add arguments: ``functools.wraps`` is not followed.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind in _POSITIONAL:
        parameters = parameters[int(takes_context) :]
    ordered = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    has_default = [parameter for parameter in parameters if parameter.default is not parameter.empty]
    needs_order = any(p.kind is p.POSITIONAL_ONLY and p not in has_default for p in ordered)
    return Taken(
        signature.replace(parameters=parameters),
        frozenset([p.name for p in named if p not in has_default] + ["\0"] * needs_order),
        frozenset(p.name for p in named),
        len([p for p in ordered if p not in has_default]),
        len(ordered) if all(p in has_default for p in named if p.kind is p.KEYWORD_ONLY) else -1,
    )


def check_arguments(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``WrongArguments`` if the function of a task cannot be called with these arguments."""
    taken = taken_by(task.func, takes_context=task.takes_context)
    if taken is None or type(kwargs) is not dict:  # the check of payloads refuses other mappings
        return
    if args:
        if not kwargs and taken.low <= len(args) <= taken.high:
            return
    elif taken.required <= kwargs.keys() <= taken.allowed:
        return
    try:
        taken.signature.bind(*args, **kwargs)
    except TypeError as error:
        name = f"{task.func.__module__}.{task.func.__qualname__}"
        raise WrongArguments(name, displayed(taken.signature), str(error)) from None


def check_calls(task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> None:
    """Raise ``WrongArguments`` for the first call that does not fit; calls like the one before cost almost nothing."""
    positions, names = -1, None
    for args, kwargs in calls:
        if type(args) not in _LISTS or type(kwargs) is not dict:  # the check of payloads refuses them
            continue
        if len(args) != positions or kwargs.keys() != names:
            check_arguments(task, args, kwargs)
            positions, names = len(args), kwargs.keys()


def displayed(signature: inspect.Signature) -> str:
    """Return a signature as text, without the values of defaults."""
    shown = [p if p.default is p.empty else p.replace(default=_Hidden()) for p in signature.parameters.values()]
    return str(signature.replace(parameters=shown))[:SHOWN]


# Check arguments against the annotations of a task's function, if the project asks by ``TYPED_ARGUMENTS``.
#
# typeguard compares values and converts nothing, so a call that passes means the same in the worker.

_MANY: Final[dict[Any, type]] = {inspect.Parameter.VAR_POSITIONAL: tuple, inspect.Parameter.VAR_KEYWORD: dict}


def check_types(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``WrongArguments`` for a value of another type than its parameter; call it after ``check_arguments``."""
    taken, hints = taken_by(task.func, takes_context=task.takes_context), hints_of(task.func)
    if taken is None or not hints:
        return
    try:
        from typeguard import CollectionCheckStrategy, TypeCheckError, check_type  # noqa: PLC0415 - an optional package
    except ImportError:
        raise ImproperlyConfigured("TASKQUEUE TYPED_ARGUMENTS needs typeguard: install the extra typed.") from None
    for name, value in taken.signature.bind(*args, **kwargs).arguments.items():
        if name not in hints:
            continue
        many = _MANY.get(taken.signature.parameters[name].kind)
        values = value if many is tuple else value.values() if many is dict else [value]
        for each in values:
            try:
                check_type(each, hints[name], collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
            except TypeCheckError as error:
                path = f"{task.func.__module__}.{task.func.__qualname__}"
                raise WrongArguments(path, displayed(taken.signature), f"{name}: {error}") from None


@lru_cache(maxsize=1024)
def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function; none if they name what only a type checker imports."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
