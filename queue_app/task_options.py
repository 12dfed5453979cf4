"""Checks of the options of a ``QueueTask``, which this module cannot import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from django.tasks.exceptions import InvalidTask

from queue_app.exceptions import InvalidTaskData
from queue_app.versions import MAX_VERSION

if TYPE_CHECKING:
    from queue_app.core.unique import Unique

#: A type that a task names itself; empty: its dotted path.
_TYPE: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.:\-]{0,199})?", re.ASCII)


def check(task: Any) -> None:
    """Raise ``InvalidTask`` for an option that cannot be used; store the others in the form in which they are read."""

    def put(option: str, value: object) -> None:
        object.__setattr__(task, option, value)

    if task.max_attempts is not None:
        put("max_retries", _retries(task.max_attempts, task.max_retries))
    if task.backoff is not None and not callable(task.backoff):
        raise InvalidTask(
            "backoff must be a function of (exception, task_result); for a number of seconds use retry_delay."
        )
    if isinstance(task.capabilities, list | set | frozenset):
        put("capabilities", tuple(task.capabilities))  # immutable
    put("sensitive", _names(task.sensitive))
    put("aliases", _former_names(task.aliases))
    _check_type(task.task_type)
    if task.version != 1 or task.upgrade is not None:
        _check_version(task.version, task.upgrade)
    if task.signals is not None:
        put("signals", _schemas(task.signals))
    try:
        for option, value in _resolved(task):
            put(option, value)
    except InvalidTaskData as error:
        raise InvalidTask(str(error)) from None


def _resolved(task: Any) -> Iterator[tuple[str, Any]]:
    """Yield (option, value) of the options that few tasks have: their modules are only imported if one does."""
    if task.unique is not None:
        yield "unique", _rule(task)
    if task.hooks:
        from queue_app.hooks import resolve  # noqa: PLC0415 - it imports the registry, as the caller does

        yield "hooks", resolve(task.hooks)
    if task.on_success or task.on_failure:
        from queue_app.callbacks import name_of  # noqa: PLC0415

        for option in ("on_success", "on_failure"):
            given = getattr(task, option)
            yield option, None if given is None else name_of(given, option)


def _retries(max_attempts: Any, max_retries: int | None) -> int:
    if type(max_attempts) is not int or max_attempts < 1:
        raise InvalidTask(f"max_attempts must be a whole number of at least 1, not {max_attempts!r}.")
    retries: int = max_attempts - 1
    if max_retries not in {None, retries}:
        raise InvalidTask(
            f"max_attempts={max_attempts} and max_retries={max_retries} contradict each other; "
            "give one of them (max_attempts counts the first attempt too)."
        )
    return retries


def _rule(task: Any) -> Unique | None:
    from queue_app.core.unique import LATEST_HAS_A_KEY, rule_of  # noqa: PLC0415

    rule = rule_of(task.unique)
    if rule is not None:
        rule.check(task.func, takes_context=task.takes_context)
        if rule.on_conflict == "latest" and task.concurrency_key:
            raise InvalidTaskData("unique", LATEST_HAS_A_KEY)
    return rule


def _schemas(given: Any) -> dict[str, Any]:
    from queue_app.core.signals import read_schemas  # noqa: PLC0415 - only tasks with signals need it

    try:
        return read_schemas(given)
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def _check_type(name: object) -> None:
    if not isinstance(name, str) or not _TYPE.fullmatch(name):
        raise InvalidTask(f"task_type must be a name such as 'process_video', not {name!r:.60}.")


def _check_version(version: Any, upgrade: Any) -> None:
    if type(version) is not int or not 1 <= version <= MAX_VERSION:
        raise InvalidTask(f"version must be a whole number from 1 to {MAX_VERSION}, not {version!r:.40}.")
    if version > 1 and not callable(upgrade):
        raise InvalidTask("A version above 1 needs upgrade, a function of (version, args, kwargs), for older calls.")
    if version == 1 and upgrade is not None:
        raise InvalidTask("upgrade needs a version above 1: raise the version when you change the signature.")


def _former_names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(each, str) and each and _TYPE.fullmatch(each) for each in given
    ):
        raise InvalidTask(f'aliases must be a list of names such as ["shop.tasks.old_name"], not {given!r:.60}.')
    return tuple(given)


def _names(given: Any) -> tuple[str, ...]:
    if isinstance(given, list | tuple | set | frozenset) and all(isinstance(name, str) and name for name in given):
        return tuple(sorted(given))
    raise InvalidTask(f'sensitive must be a list of names such as ["card_number"], not {given!r:.60}.')
