"""The client library, imported when it is first used: it takes as long to import as the rest of the app.

Django imports the app for every command and in every process; most of them never talk to Redis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis
    import redis.commands.core
else:

    class _Lazy:
        """Stands for a module until something of it is asked for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            """Import the module, and look there."""
            return getattr(import_module(self._name), attribute)

    redis = _Lazy("redis")

__all__ = ["redis"]
