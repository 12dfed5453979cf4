"""The client library, imported at its first use: the import takes as long as that of the rest of the app.

Django imports the app in every process and for every command, and most of them never talk to Redis.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from queue_app.index.scripts import source

if TYPE_CHECKING:
    import redis
    import redis.commands.core
else:

    class _Lazy:
        """A module that is imported when one of its attributes is read."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    redis = _Lazy("redis")


def import_client() -> None:
    """Import the client library, and read what the first notification of a process needs beside it.

    The thread that calls this runs beside the caller's code, which may import the same modules: ``cache.get`` imports
    django_redis.client, and that imports submodules of redis. If two threads import a package and its submodules at
    once, Python can hand out a module that is not complete. So this thread begins as the cache does, and the second
    of both waits; or it waits for the thread that imports redis already.
    """
    if "redis" in sys.modules:
        import_module("redis")
    import_module("django_redis.client")
    for script in ("push", "publish"):
        source(script)


def is_loaded() -> bool:
    """Whether the client library has been imported, so that its first use takes no time."""
    spec = getattr(sys.modules.get("redis"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


__all__ = ["import_client", "is_loaded", "redis"]
