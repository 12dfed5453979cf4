"""What a worker can run. Workers with the same abilities share one profile and its heads."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Profile:
    """Queues (none: all), task types, capabilities and slots of a worker; ``id`` names the combination."""

    id: str
    queues: tuple[str, ...]
    task_types: tuple[str, ...]
    capabilities: tuple[str, ...]
    slots: int | None = None  # it runs no heavier task; None: any weight

    @classmethod
    def of(
        cls, queues: Iterable[str], task_types: Iterable[str], capabilities: Iterable[str], slots: int | None = None
    ) -> Self:
        """Return the profile; the order of the names does not matter."""
        parts = tuple(tuple(sorted(set(names))) for names in (queues, task_types, capabilities))
        digest = hashlib.sha256(json.dumps([*parts, slots] if slots else parts).encode()).hexdigest()[:16]
        return cls(digest, parts[0], parts[1], parts[2], slots)
