"""References to the results of other tasks, in the arguments of a task.

In code a reference is an object, in stored arguments a marked JSON object, and the worker gets the result in its place.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_app.exceptions import InvalidTaskData, ResultMissing

#: Keys that mark a reference: to one result, to a list of results, to the results of the tasks that a task added.
ONE: Final = "$result"
MANY: Final = "$results"
ADDED: Final = "$added_results"
_KINDS: Final = (ONE, MANY, ADDED)
#: Text that every stored reference contains.
MARK: Final = '"$'
_PATH: Final = "path"
_LATER: Final = "it exists once the task has run. Give it to a task as an argument of its own."


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a task, or a part of it: ``node.result["address"]["city"]``."""

    kind: str
    ids: tuple[uuid.UUID, ...]
    path: tuple[str | int, ...] = ()

    __iter__ = None  # it has __getitem__, which alone would make Python iterate for ever

    def __bool__(self) -> bool:
        """Refuse: what the result is, is not known yet."""
        raise TypeError(f"A result cannot be tested here: {_LATER}")

    def __format__(self, spec: str) -> str:
        """Refuse: a text would contain the name of the reference."""
        raise TypeError(f"A result cannot be part of a text: {_LATER}")

    def __getitem__(self, key: str | int) -> Reference:
        """Return the reference to the value under a key, or at a place, of this result."""
        if type(key) not in (str, int):
            raise TypeError(f"A result has keys (text) and places (whole numbers), not {key!r:.60}.")
        return Reference(self.kind, self.ids, (*self.path, key))

    def as_json(self) -> dict[str, Any]:
        """Return the stored form."""
        ids = [str(task_id) for task_id in self.ids]
        return {self.kind: ids if self.kind == MANY else ids[0]} | ({_PATH: list(self.path)} if self.path else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reference | None:
        """Return the reference that a JSON object stores; ``None`` if it is an ordinary object."""
        kind = next((kind for kind in _KINDS if kind in value), None)
        if kind is None or not value.keys() <= {kind, _PATH}:
            return None
        given = value[kind] if kind == MANY else [value[kind]]
        try:
            return cls(kind, tuple(map(uuid.UUID, given)), tuple(value.get(_PATH, ())))
        except (ValueError, AttributeError, TypeError):
            return None

    def within(self, value: Any) -> Any:
        """Return the part of a result that the path names; raise ``ResultMissing``."""
        for step, key in enumerate(self.path):
            try:
                value = value[key] if isinstance(value, dict) == isinstance(key, str) else value[None]
            except (KeyError, IndexError, TypeError):
                before = "".join(f"[{part!r}]" for part in self.path[:step])
                raise ResultMissing(
                    f"The result of the task {self.ids[0]}{' at ' + before if before else ''} has no {key!r}; "
                    f"it {_described(value)}."
                ) from None
        return value


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"has the keys {', '.join(map(repr, list(value)[:10])) or 'of an empty object'}"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    return "is null" if value is None else f"is a {type(value).__name__}"


def marked(value: Any, found: list[Reference]) -> Any:
    """Return arguments with every reference in its stored form; collect the references in ``found``.

    Raises ``InvalidTaskData`` for an object with a key that marks references.
    """
    if isinstance(value, Reference):
        found.append(value)
        return value.as_json()
    if isinstance(value, dict):
        for kind in _KINDS:
            if kind in value:
                raise InvalidTaskData(
                    "parameters", f"The key {kind!r} is reserved in the arguments of a workflow's task."
                )
        return {key: marked(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item, found) for item in value]
    return value


def stored_in(value: Any) -> Iterator[Reference]:
    """Yield the references in stored arguments."""
    if isinstance(value, dict):
        reference = Reference.from_json(value)
        if reference is not None:
            yield reference
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from stored_in(item)


def filled(value: Any, result_of: Callable[[Reference], Any]) -> Any:
    """Return stored arguments with results in the places of references."""
    if isinstance(value, dict):
        reference = Reference.from_json(value)
        if reference is not None:
            return result_of(reference)
        return {key: filled(item, result_of) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, result_of) for item in value]
    return value


def chosen(
    reference: Reference, results: Mapping[uuid.UUID, Any], added: Mapping[uuid.UUID, Sequence[uuid.UUID]]
) -> Any:
    """Return what a reference stands for. A task that did not complete has the result null."""
    ids = added.get(reference.ids[0], ()) if reference.kind == ADDED else reference.ids
    values = [
        Reference(ONE, (task_id,), reference.path).within(results[task_id]) if task_id in results else None
        for task_id in ids
    ]
    return values[0] if reference.kind == ONE else values
