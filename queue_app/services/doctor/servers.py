"""PostgreSQL: what it is, who stands before it, and what wears it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queue_app import conf
from queue_app.core.finding import Finding, fail, ok, warn
from queue_app.index import get_index
from queue_app.index.server import ServerFacts, server_facts
from queue_app.sql import doctor as rows
from queue_app.sql.database import MINIMUM_POSTGRESQL, connection

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


MINIMUM: Final = (6, 2)
MEMORY_WARN, MEMORY_FAIL = 0.75, 0.9
SKEW_WARN, SKEW_FAIL = 1.0, 10.0


def check_redis() -> Iterator[Finding]:
    """Report version, eviction, persistence and memory."""
    facts = server_facts(get_index())
    if facts.version < MINIMUM:
        yield fail("redis", f"{facts.product} {facts.shown_version} is too old", "Upgrade to Redis 6.2 or to Valkey.")
    else:
        yield ok("redis", f"{facts.product} {facts.shown_version}")
    yield _eviction(facts)
    yield _persistence(facts)
    yield _memory(facts)


def _eviction(facts: ServerFacts) -> Finding:
    if facts.policy == "noeviction":
        return ok("eviction", "noeviction: what does not fit is refused, nothing is dropped")
    hint = "Set maxmemory-policy noeviction; give a cache that needs another policy a server of its own."
    if facts.policy.startswith("volatile-"):
        return warn("eviction", f"{facts.policy}: locks of schedulers and rebuilds may be dropped", hint)
    if facts.limit == 0:
        return warn("eviction", f"{facts.policy}: parts of the index are dropped once maxmemory is set", hint)
    return fail("eviction", f"{facts.policy}: parts of the index are dropped when memory is short", hint)


def _persistence(facts: ServerFacts) -> Finding:
    if facts.last_save_failed:
        return fail(
            "persistence",
            "the last save to disk failed; the server may refuse writes because of it",
            "Look into its log; free disk space, or switch snapshots off (save ''): the index needs none.",
        )
    kept = "append-only file" if facts.append_only else ""
    if facts.snapshots:
        kept = " and ".join(filter(None, [kept, "snapshots"]))
    if not kept and facts.snapshots is None:
        return ok("persistence", "no append-only file; the server does not tell about snapshots")
    if not kept and conf.get().requests.enabled:
        return warn(
            "persistence",
            "none: requests of other services that are not read yet are lost when the server restarts",
            "Switch on the append-only file (appendonly yes).",
        )
    if not kept:
        return ok("persistence", "none: after a restart the index is rebuilt from the rows, no task is lost")
    return ok("persistence", f"{kept}; after a restart the index is rebuilt from the rows all the same")


def _memory(facts: ServerFacts) -> Finding:
    limit = facts.limit or facts.machine
    used = f"{facts.used / 2**20:,.0f} MiB"
    if not limit:
        return ok("memory", f"{used} used, no limit set")
    whose = "of maxmemory" if facts.limit else "of the machine's memory (maxmemory is not set)"
    share = facts.used / limit
    told = f"{used} used, {share:.0%} {whose}"
    hint = "Raise maxmemory, or find what fills it (redis-cli --bigkeys); a queued task takes about 100 bytes."
    if share >= MEMORY_FAIL:
        return fail("memory", told, hint)
    return warn("memory", told, hint) if share >= MEMORY_WARN else ok("memory", told)


def check_clocks() -> Iterator[Finding]:
    """Report clocks that differ: this machine's, PostgreSQL's and Redis'."""
    there, there_error = rows.clock_ahead()
    facts = server_facts(get_index())
    apart = {
        "PostgreSQL and this machine": (abs(there), there_error),
        "Redis and this machine": (abs(facts.clock_ahead), facts.clock_error),
        "PostgreSQL and Redis": (abs(there - facts.clock_ahead), there_error + facts.clock_error),
    }
    (whose, (most, error)) = max(apart.items(), key=lambda item: item[1][0] - item[1][1])
    told = f"{whose} differ by {most:.1f} s" if most >= error else "they agree as far as can be told"
    level = fail if most - error > SKEW_FAIL else warn if most - error > SKEW_WARN else None
    if level is None:
        yield ok("clocks", f"at most {most:.2f} s apart")
    else:
        yield level(
            "clocks",
            told,
            "Let NTP set all clocks. Promotion and ages are wrong by as much; no task is lost or doubled by it.",
        )
