"""The client library of Redis or Valkey, and the connection to it, taken from the project's ``CACHES``.

The library is imported at its first use: the import takes as long as that of the rest of the app. Django imports the
app in every process and for every command, and most of them never talk to Redis.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from socket import socket
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from queue_app.exceptions import IndexDamaged, IndexUnavailable, in_one_line
from queue_app.index.scripts import source

if TYPE_CHECKING:
    import redis as redis  # noqa: PLC0414 - the other modules of the index import it from here
    import redis.commands.core
else:

    class _Lazy:
        """A module that is imported when one of its attributes is read."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    redis = _Lazy("redis")

#: Timeout of sockets where ``CACHES`` sets none; the default of redis-py from version 8 on.
SOCKET_SECONDS = 5.0
#: Time for the first answers on a connection. A server that is frozen accepts connections, and answers nothing.
GREETING_SECONDS = 1.0
#: The password in an address: up to the last "@", as a password may hold one, or in the query.
_PASSWORD = re.compile(r"(://[^:@/\s]*:)\S*(?=@)|([?&]password=)[^&\s]*")

#: What may be wrong with an address, and what to write.
_NO_SCHEME = "has the LOCATION '{}', which does not begin with redis://, rediss:// or unix://."
_WITH_SCHEME = 'Write it like "redis://127.0.0.1:6379/0".'
_SIGNS = "has a LOCATION whose password contains / ? or #, so the rest of the password is read as another part."
_QUOTED = 'Write these signs as %2F, %3F and %23, and @ as %40; or put the password into OPTIONS as "PASSWORD".'

#: The code of an error at the start of its text; Redis 6 has it inside: "@user_script: 12: -MISCONF ...".
_OTHER_REASON = re.compile(r"^[A-Z]{4,} |: -[A-Z]{3,} ")


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


def hide_password(url: str) -> str:
    """Return ``url`` with its password replaced."""
    return _PASSWORD.sub(r"\1\2***", url)


def server_url(alias: str) -> str:
    """Return the address of the cache ``alias`` without its password, for messages."""
    location = settings.CACHES.get(alias, {}).get("LOCATION", "")
    return hide_password(", ".join(location) if isinstance(location, list | tuple) else str(location))


def address(location: str) -> str:
    """Return an address without scheme, and without the user and password in front of the host."""
    return str(location).rpartition("@")[2]


def address_problem(location: object) -> tuple[str, str] | None:
    """Return what is wrong with the form of an address, and what to write; without a part of its password."""
    scheme, sign, rest = str(location).partition("://")
    if not sign:
        return _NO_SCHEME.format(address(str(location))), _WITH_SCHEME
    after = rest[len(re.split("[/?#]", rest, maxsplit=1)[0]) :]
    before_host, at, _ = after.rpartition("@")
    is_option = "?" in before_host and "=" in before_host.partition("?")[2]
    return (_SIGNS, _QUOTED) if at and not is_option and scheme != "unix" else None


def connect(alias: str) -> redis.Redis:
    """Return the client of the cache ``alias``; it connects at its first command.

    Where ``CACHES`` sets no timeouts, ``SOCKET_SECONDS`` applies; older versions of redis-py would wait for ever.
    Raises ``ImproperlyConfigured`` when the alias is missing, is no django-redis cache, or has a wrong address.
    """
    if alias not in settings.CACHES:
        raise ImproperlyConfigured(f"TASKQUEUE REDIS_ALIAS names the cache {alias!r}, which CACHES does not define.")
    from django_redis import get_redis_connection  # noqa: PLC0415 - it imports redis, which is slow

    try:
        client: redis.Redis = get_redis_connection(alias)
    except NotImplementedError as error:
        raise ImproperlyConfigured(
            f"The cache {alias!r} is not served by django_redis.cache.RedisCache, which the task queue needs: set"
            f' CACHES = {{{alias!r}: {{"BACKEND": "django_redis.cache.RedisCache",'
            ' "LOCATION": "redis://127.0.0.1:6379/0"}}.'
        ) from error
    except ValueError:
        location = settings.CACHES[alias].get("LOCATION", "")
        problem = address_problem(location if isinstance(location, str) else location[0])
        if problem is None:
            raise
        raise ImproperlyConfigured(f"CACHES[{alias!r}] {' '.join(problem)}") from None
    options = {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS, "redis_connect_func": _greet}
    for option, value in options.items():
        client.connection_pool.connection_kwargs.setdefault(option, value)
    return client


def _greet(connection: Any) -> None:
    """Log in and so on, within ``GREETING_SECONDS``."""
    line: socket = connection._sock  # noqa: SLF001 - the client sets one timeout for all answers
    line.settimeout(min(GREETING_SECONDS, connection.socket_timeout or GREETING_SECONDS))
    connection.on_connect()
    line.settimeout(connection.socket_timeout)


def unavailable(operation: str, alias: str, error: Exception) -> IndexUnavailable:
    """Return the error to raise for an error of the client library.

    When the server is a replica now, the connections lead to the former primary, which may live on: they are closed,
    and the next command looks the primary up again.
    """
    if isinstance(error, redis.ReadOnlyError):
        connect(alias).connection_pool.disconnect(inuse_connections=False)
    kind = IndexDamaged if is_damage(error) else IndexUnavailable
    return kind(f"Redis at {server_url(alias)} failed ({operation}): {describe(error)}")


def is_damage(error: Exception) -> bool:
    """Whether the server failed because of what the index holds: a key of the wrong type, or a value without sense.

    For other reasons (no memory, no permission) the server has codes, such as MISCONF, and the client other classes.
    """
    if type(error) is not redis.ResponseError:
        return False
    found = str(error)
    return "WRONGTYPE" in found or ("user_script" in found and not _OTHER_REASON.search(found))


def is_refusal(error: BaseException | None) -> bool:
    """Whether Redis answered with an error, such as WRONGTYPE or OOM; false if it did not answer."""
    cause = error.__cause__ if isinstance(error, IndexUnavailable) else None
    return is_loaded() and isinstance(cause, redis.ResponseError)


def text(value: bytes | str) -> str:
    """Return a reply as text; bytes that are not UTF-8 become replacement characters."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def describe(error: Exception) -> str:
    """Return one line about ``error`` without passwords."""
    found = hide_password(in_one_line(error)) or type(error).__name__
    if "HELLO must be called with the client already authenticated" in found or found.startswith("NOAUTH"):
        return "it requires a password, and LOCATION in CACHES has none."
    return found
