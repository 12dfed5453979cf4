"""Give up a connection to PostgreSQL whose other side has gone without a word, such as a machine or a firewall."""

from typing import Any, Final

from django.db import connections

#: Options of libpq. After 25 s without any answer a connection breaks. By the defaults of Linux a process would wait
#: for 15 minutes, or for two hours while it expects an answer.
KEEPALIVES: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def install(alias: str) -> None:
    """Add the options to those of a database, unless the project sets them."""
    database = connections.settings.get(alias, {})
    if "postg" in database.get("ENGINE", ""):
        database["OPTIONS"] = KEEPALIVES | database.get("OPTIONS", {})
