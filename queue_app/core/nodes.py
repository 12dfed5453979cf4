"""Nodes of workflows, and what other tasks wait for."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from queue_app.core.references import Reference
from queue_app.exceptions import InvalidWorkflow


@dataclass(frozen=True, slots=True)
class Wait:
    """What a task waits for, and on which condition."""

    ids: tuple[uuid.UUID, ...]
    condition: str


@dataclass(frozen=True, slots=True)
class Node:
    """A task of a workflow, or several that other tasks wait for together (``ids``)."""

    ids: tuple[uuid.UUID, ...]
    name: str
    result: Reference = field(repr=False)

    @property
    def id(self) -> uuid.UUID:
        """The id of the task."""
        return self.ids[0]

    @property
    def if_failed(self) -> Wait:
        """For ``after``: run only if this task fails."""
        return Wait(self.ids, "failure")

    @property
    def even_if_failed(self) -> Wait:
        """For ``after``: run once this task has ended, however it ended."""
        return Wait(self.ids, "continue")

    @property
    def or_cancel(self) -> Wait:
        """For ``after``: be cancelled if this task fails."""
        return Wait(self.ids, "cancel")


type After = Node | Wait | uuid.UUID | Iterable[Node | Wait | uuid.UUID]


def waits_of(after: Any, condition: str) -> list[Wait]:
    """Return what ``after`` names; raise ``InvalidWorkflow`` for anything else."""
    if isinstance(after, Node | Wait | uuid.UUID):
        after = [after]
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise InvalidWorkflow("after", f"after must be a list of nodes, which add() returns, not {after!r:.60}.")
    found: list[Wait] = []
    for each in after:
        if isinstance(each, Wait):
            found.append(each)
        elif isinstance(each, Node):
            found.append(Wait(each.ids, condition))
        elif isinstance(each, uuid.UUID):
            found.append(Wait((each,), condition))
        else:
            raise InvalidWorkflow("after", f"after must be a list of nodes, which add() returns; it has {each!r:.60}.")
    return found
