"""PostgreSQL: what it is, who stands before it, and what wears it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queue_app.rows import doctor as rows
from queue_app.rows.database import MINIMUM_POSTGRESQL, connection
from queue_app.services.doctor.finding import Finding, fail, ok, warn

SNAPSHOT_WARN, SNAPSHOT_FAIL = 60.0, 600.0
#: Fewer dead rows than this are no matter, whatever their share.
DEAD_ROWS: Final = 50_000
DEAD_SHARE: Final = 0.3
SHOWN: Final = 3


def check_server() -> Iterator[Finding]:
    """Report an old version, and an isolation level that the statements are not made for."""
    version, text, isolation = rows.server()
    if version < MINIMUM_POSTGRESQL:
        yield fail("postgresql", f"version {text} is too old", "Upgrade the server to 14 or newer.")
    elif isolation != "read committed":
        yield fail(
            "postgresql",
            f"connections begin with the isolation level {isolation}",
            'Remove "isolation_level" from the OPTIONS of the database, or default_transaction_isolation from the'
            " role: claims would fail whenever two of them meet.",
        )
    else:
        yield ok("postgresql", f"version {text}, {isolation}")


def check_migrations() -> Iterator[Finding]:
    """Report migrations that were not applied."""
    missing = rows.unapplied_migrations()
    if missing:
        yield fail("migrations", f"not applied: {', '.join(missing)}", "Run `manage.py migrate queue_app`.")
    else:
        yield ok("migrations", "all are applied")


def check_pooler() -> Iterator[Finding]:
    """Report a pooler that hands out a server for each transaction, where Django was not told of it."""
    if not rows.is_pooled():
        yield ok("pooler", "connections go to the server itself")
        return
    told = bool(connection().settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))
    if not rows.shares_servers_between_transactions():
        yield ok("pooler", "a pooler (PgBouncer) stands before the server; it seems to pool whole sessions")
    elif told:
        yield ok("pooler", "a pooler (PgBouncer) pools transactions, and Django knows (DISABLE_SERVER_SIDE_CURSORS)")
    else:
        yield fail(
            "pooler",
            "a pooler (PgBouncer) pools transactions, and Django does not know",
            'Set DATABASES[…]["DISABLE_SERVER_SIDE_CURSORS"] = True: prepared statements and cursors would be looked'
            " for on another server process.",
        )


def check_snapshots() -> Iterator[Finding]:
    """Report transactions that have been open for long: vacuum can remove nothing that died since."""
    held = rows.held_snapshots(SNAPSHOT_WARN)
    if not held:
        yield ok("transactions", f"none is older than {SNAPSHOT_WARN:.0f} s")
        return
    worst = held[0]
    told = ", ".join(
        f"pid {item.pid} ({item.application or 'no name'}, {item.state}) for {item.seconds:.0f} s"
        for item in held[:SHOWN]
    )
    level = fail if worst.seconds >= SNAPSHOT_FAIL else warn
    yield level(
        "transactions",
        f"{len(held)} open for long: {told}",
        "Vacuum removes nothing that died since then, so tables grow. End what hangs: SELECT pg_terminate_backend(pid);"
        " and set idle_in_transaction_session_timeout.",
    )


def check_tables() -> Iterator[Finding]:
    """Report tables that are full of dead rows."""
    tables = rows.tables()
    off = [table.name for table in tables if table.autovacuum_off]
    if off:
        yield fail("tables", f"autovacuum is off for {', '.join(off)}", "Switch it on; the tables grow without end.")
        return
    worn = [t for t in tables if t.dead > DEAD_ROWS and t.dead > DEAD_SHARE * (t.live + t.dead)]
    for table in worn:
        yield warn(
            "tables",
            f"{table.name} holds {table.dead:,} dead rows beside {table.live:,}, {table.size / 2**20:,.0f} MiB",
            f"Look for open transactions first; then VACUUM {table.name}; see the page about the database for"
            " autovacuum settings.",
        )
    if not worn:
        size = sum(table.size for table in tables) / 2**20
        yield ok("tables", f"{size:,.0f} MiB with indexes, {sum(t.dead for t in tables):,} dead rows")
