"""Check arguments against the annotations of a task's function, if the project asks by ``TYPED_ARGUMENTS``.

typeguard compares values and converts nothing, so a call that passes means the same in the worker.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from queue_app import conf
from queue_app.core.signatures import displayed, taken_by
from queue_app.exceptions import WrongArguments
from queue_app.registry import AnyTask

_MANY: Final[dict[Any, type]] = {inspect.Parameter.VAR_POSITIONAL: tuple, inspect.Parameter.VAR_KEYWORD: dict}


def check_types(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``WrongArguments`` for a value of another type than its parameter; call it after ``check_arguments``."""
    if not conf.get().typed_arguments:
        return
    taken, hints = taken_by(task.func, takes_context=task.takes_context), _hints(task.func)
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
def _hints(function: Any) -> dict[str, Any]:
    """Return the annotations of a function; none if they name what only a type checker imports."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
