"""What a worker can run; workers that are alike share one profile and its heads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Profile:
    """Queues (none: all), task types and capabilities of a worker; ``id`` names the combination."""

    id: str
    queues: tuple[str, ...]
    task_types: tuple[str, ...]
    capabilities: tuple[str, ...]

    @classmethod
    def of(cls, queues: Iterable[str], task_types: Iterable[str], capabilities: Iterable[str]) -> Self:
        """Return the profile of such a worker, whatever order the names come in."""
        parts = tuple(tuple(sorted(set(names))) for names in (queues, task_types, capabilities))
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return cls(digest, *parts)
