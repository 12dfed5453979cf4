"""Keep what a task does to its database sessions away from the next task in its slot.

The check after an attempt needs no round trip: Django and the driver know of an open transaction, and a watch on the
statements that Django's cursors run knows what outlives one, such as SET or LISTEN. A session that is not as it was is
closed. The next task gets a new one with all settings of the project, those of ``connection_created`` included.
"""

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection
from psycopg.pq import TransactionStatus

from queue_app.exceptions import TransactionLeftOpen
from queue_app.sql.database import has_news, is_around
from queue_app.workers.context import ClaimedAttempt

logger = logging.getLogger("taskqueue")

_DRIVER_SETTINGS: Final = (
    "isolation_level",
    "read_only",
    "deferrable",
    "row_factory",
    "cursor_factory",
    "prepare_threshold",
)
_STATEMENT: Final = re.compile(
    r"(?:\A|;)(?:\s|/\*[\s\S]*?\*/|--.*\n)*"
    r"(set|reset|discard|listen|unlisten|prepare|deallocate|create|drop|declare|close)\s+([^;]*)"
)
_SETTING: Final = re.compile(r"(?:session\s+(?!authorization|characteristics))?(session\s+\w+|time\s+zone|[\w.\"]+)")
_TEMPORARY: Final = re.compile(r"temp(?:orary)?\s+(?:table|view|sequence)\s+(?:if\s+not\s+exists\s+)?([\w.\"]+)")
_DROPPED: Final = re.compile(r"(?:table|view|sequence)\s+(?:if\s+exists\s+)?([\w.\"]+)")
_LOCAL_CONFIG: Final = re.compile(r"set_config\s*\([^()]*,\s*true\s*\)")
_LOCK: Final = re.compile(r"pg_(try_)?advisory_(unlock_all|unlock|lock)")

#: Statements that a session remembers under ``DEBUG``. Django keeps 9 000 until a request begins, which none does here.
_REMEMBERED: Final = 100

#: Time for which a session serves the tasks of its slot, whatever ``CONN_MAX_AGE`` says for web processes (s).
KEEP_SECONDS: Final = 60.0

_opened = 0


class SessionWatch:
    """A wrapper of the statements of one database session; it collects what they leave in the session."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.left: Counter[str] = Counter()
        #: The backend of django-tenants sets the search path itself, before each statement.
        self._expected = {"SET search_path"} if hasattr(connection, "set_schema") else set[str]()
        self._driver_settings = _driver_settings(connection)

    def __call__(
        self,
        execute: Callable[..., Any],
        sql: Any,
        params: Any,
        many: bool,  # noqa: FBT001 - Django passes it so
        context: dict[str, Any],
    ) -> Any:
        """Run a statement of a Django cursor, and record what it leaves behind."""
        result = execute(sql, params, many, context)
        text = (sql if isinstance(sql, str) else _text(sql, context)).lower()
        if _STATEMENT.match(text) or ";" in text:
            for statement in _STATEMENT.finditer(text):
                self._record(statement[1], statement[2].strip())
        if "set_config" in text and not _LOCAL_CONFIG.search(text):
            self.left["set_config"] = 1
        if "pg_" in text and (lock := _LOCK.search(text)):
            self._record_lock(lock[2], was_refused=bool(lock[1]) and _first_value(context) == b"f")
        return result

    def leftovers(self, connection: BaseDatabaseWrapper) -> list[str]:
        """Return how the session differs from a new one."""
        changed = _driver_settings(connection) != self._driver_settings
        left = [what for what in +self.left if what not in self._expected]
        return [*left, *(["changed settings of the driver"] if changed else [])]

    def _record(self, verb: str, rest: str) -> None:
        match verb:
            case "set" if not rest.startswith(("local ", "transaction ", "constraints ")):
                self.left[f"SET {_name(_SETTING, rest)}"] = not rest.endswith(("default", "none"))
            case "reset" | "discard" if rest == "all":
                self.left.clear()
                self.left[f"{verb.upper()} ALL"] = 1  # the settings that Django made are gone as well
            case "reset":
                self.left[f"SET {_name(_SETTING, rest)}"] = 0
            case "listen" | "unlisten":
                self.left["LISTEN"] = verb == "listen"
            case "prepare" | "deallocate":
                self.left["PREPARE"] = verb == "prepare" and not rest.startswith("transaction")
            case "create" if (name := _name(_TEMPORARY, rest)) and "on commit drop" not in rest:
                self.left[f"temporary {name}"] = 1
            case "drop":
                self.left[f"temporary {_name(_DROPPED, rest)}"] = 0
            case "declare" | "close":
                self.left[f"cursor {rest.partition(' ')[0]}"] = verb == "declare" and "with hold" in rest

    def _record_lock(self, action: str, *, was_refused: bool) -> None:
        if action == "unlock_all":
            self.left["advisory lock"] = 0
        elif not was_refused:
            self.left["advisory lock"] += 1 if action == "lock" else -1


def opened() -> int:
    """Return how many sessions this process has opened since it watches them."""
    return _opened


def watch_sessions() -> None:
    """Watch the sessions that this process opens from now on.

    Receivers of the signal run in the order of their registration. To be the last, so that statements of the project's
    receivers do not count, ``_watch`` is registered again.
    """
    connection_created.disconnect(dispatch_uid=__name__)
    connection_created.connect(_watch, dispatch_uid=__name__)


def _watch(connection: BaseDatabaseWrapper, **_: Any) -> None:
    global _opened  # noqa: PLW0603 - two threads that count at once may count one; it only has to change
    _opened += 1
    connection.queries_log = deque(connection.queries_log, maxlen=_REMEMBERED)
    if connection.close_at is not None and not connection.settings_dict["OPTIONS"].get("pool"):  # a pool keeps its own
        connection.close_at = max(connection.close_at, time.monotonic() + KEEP_SECONDS)
    others = [wrapper for wrapper in connection.execute_wrappers if not isinstance(wrapper, SessionWatch)]
    # The first, because leaving ``connection.execute_wrapper()`` removes the last.
    connection.execute_wrappers[:] = [SessionWatch(connection), *others]


def renew() -> None:
    """Close the sessions of this thread that are too old, or that the server has ended, before a task meets them."""
    for connection in connections.all(initialized_only=True):
        raw, close_at = connection.connection, connection.close_at
        is_old = close_at is not None and time.monotonic() >= close_at
        if raw is not None and (is_old or (isinstance(raw, Connection) and has_news(raw))):
            connection.close()


def check_committed() -> None:
    """Raise ``TransactionLeftOpen`` if this thread's sessions hold writes that nobody will commit."""
    for connection in connections.all(initialized_only=True):
        raw = connection.connection
        if isinstance(raw, Connection) and _holds_writes(raw, is_ours=is_around(connection)):
            raise TransactionLeftOpen(
                f"The function returned with an open transaction on the database {connection.alias!r}, so its writes"
                " were rolled back. Use `with transaction.atomic():`, or commit before the function returns."
            )


def _holds_writes(raw: Connection[Any], *, is_ours: bool) -> bool:
    """Return whether a transaction is open and has written, or has failed; asks the server only if one is open."""
    status = raw.pgconn.transaction_status
    if status != TransactionStatus.INTRANS or is_ours:
        return status == TransactionStatus.INERROR
    answer = raw.pgconn.exec_(b"SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
    return answer.get_value(0, 0) == b"t"


def clean(connection: BaseDatabaseWrapper, held: ClaimedAttempt) -> None:
    """Close a session that the attempt left in another state than a new one, and log what it left."""
    _leave_tenant(connection)
    raw = connection.connection
    found = _leftovers(connection, raw)
    if not found:
        return
    connection.in_atomic_block = connection.closed_in_transaction = False  # else ``close`` would keep the session
    if getattr(connection, "pool", None):
        with suppress(Exception):
            raw.close()  # a pool drops a closed session, and hands on an open one as it is
    connection.close()
    # An interruption may arrive anywhere, also where ``atomic`` cleans up.
    level = logging.WARNING if held.interruption is None else logging.DEBUG
    what = ", ".join(found)
    logger.log(
        level,
        "%s %s left this behind in its session of the database %r: %s. The worker closed the session.",
        held.task.task_type,
        held.task.id,
        connection.alias,
        what,
    )


def _leave_tenant(connection: Any) -> None:
    """Return to the public schema, if the backend is that of django-tenants; a closed session keeps its schema."""
    public = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")
    if getattr(connection, "schema_name", public) != public:
        connection.set_schema_to_public()


def _leftovers(connection: BaseDatabaseWrapper, raw: Any) -> list[str]:
    """Return in words what is not as in a new session."""
    if connection.in_atomic_block or _is_in_transaction(connection, raw):
        return ["an open transaction, which was rolled back"]
    if raw is None:
        return []
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return ["autocommit switched"]
    watch = next((item for item in connection.execute_wrappers if isinstance(item, SessionWatch)), None)
    return [] if watch is None else watch.leftovers(connection)


def _is_in_transaction(connection: BaseDatabaseWrapper, raw: Any) -> bool:
    """Return whether a transaction is open although the project wants autocommit; without a round trip."""
    if not isinstance(raw, Connection) or not connection.settings_dict["AUTOCOMMIT"]:
        return False
    status = raw.pgconn.transaction_status
    return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def _driver_settings(connection: BaseDatabaseWrapper) -> list[Any]:
    raw = connection.connection
    return [getattr(raw, name) for name in _DRIVER_SETTINGS] if isinstance(raw, Connection) else []


def _text(sql: Any, context: dict[str, Any]) -> str:
    """Return the text of a statement that is not a string, such as one that ``psycopg.sql`` composed."""
    if hasattr(sql, "as_string"):
        return str(sql.as_string(context["connection"].connection))
    return sql.decode(errors="replace") if isinstance(sql, bytes) else str(sql)


def _name(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text) if pattern is _TEMPORARY else pattern.match(text)
    return found[1].strip('"') if found else ""


def _first_value(context: dict[str, Any]) -> bytes | None:
    """Return the first value of the statement's result as psycopg received it."""
    result = getattr(getattr(context["cursor"], "cursor", None), "pgresult", None)
    return result.get_value(0, 0) if result is not None and result.ntuples else None
