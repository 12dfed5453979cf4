"""Checks of PostgreSQL, Redis and the clocks."""

import time
from collections.abc import Iterator
from typing import Final

from django.core.checks import ERROR, Tags, run_checks

from queue_app import conf
from queue_app.core.reasons import Finding, Level, fail, ok, say, warn
from queue_app.index import redis_index, redis_is_away, stream_index
from queue_app.index.server import ServerFacts, refused_writes, server_facts
from queue_app.sql import doctor as rows
from queue_app.sql.connections import migrate_command
from queue_app.sql.database import alias, connection

#: The check that ``check_pooler`` reports.
_POOLER: Final = "queue_app.E011"
#: Age of an open transaction, in seconds.
SNAPSHOT_WARN, SNAPSHOT_FAIL = 60.0, 600.0
#: Above the cost of what the queue and Django's admin ask with a million tasks; what costs more runs without JIT.
JIT_COST: Final = 50_000.0
#: Number of dead rows below which their share does not matter.
DEAD_ROWS: Final = 50_000
DEAD_SHARE: Final = 0.3
#: Maximum number of transactions that a finding names.
NAMED: Final = 3
#: Age in seconds from which a lock of a table is reported.
REPORTED_SECONDS: Final = 2.0
#: Maximum number of characters of a statement that a finding shows.
SHOWN: Final = 80
LOCK_HINT: Final = (
    "Wait, or end the session that holds the lock: SELECT pg_terminate_backend({pid}). Let migrations set lock_timeout,"
    " and build indexes with CONCURRENTLY."
)
MINIMUM_REDIS: Final = (6, 2)
#: Share of the memory limit that is in use.
MEMORY_WARN, MEMORY_FAIL = 0.75, 0.9
#: Difference between two clocks, in seconds.
SKEW_WARN, SKEW_FAIL = 1.0, 10.0

WITHOUT_REDIS: Final = (
    "in PostgreSQL, without Redis (INDEX is 'rows'): about 1 000 tasks a second, no streams of events and of requests"
)
#: What to do when Redis refuses writes, by words of its error.
REFUSALS: Final = {
    "read only replica": "It is a replica: name the primary in CACHES, or promote this server.",
    "maxmemory": "Raise maxmemory, or find what fills it (redis-cli --bigkeys).",
    "MISCONF": "It cannot save to disk: free disk space, or switch snapshots off (save ''); the index needs none.",
}


def check_server() -> Iterator[Finding]:
    """Report what the system checks of the server find: version, isolation, read-only, durability."""
    messages = run_checks(tags=[Tags.database], databases=[alias()])
    found = [message for message in messages if str(message.id).startswith("queue_app.") and message.id != _POOLER]
    for message in found:
        yield (fail if message.level >= ERROR else warn)("postgresql", message.msg, message.hint or "")
    if not found:
        state = rows.server()
        yield ok("postgresql", f"version {'.'.join(map(str, state.version))}, {state.isolation}, commits are durable")


def check_migrations() -> Iterator[Finding]:
    """Report unapplied migrations."""
    missing = rows.unapplied_migrations()
    if missing:
        yield fail("migrations", f"not applied: {', '.join(missing)}", f"Run `{migrate_command(alias())}`.")
    else:
        yield ok("migrations", "all are applied")


def check_pooler() -> Iterator[Finding]:
    """Report a pooler that changes servers between transactions, if Django's settings do not allow for it."""
    if not rows.is_pooled():
        yield ok("pooler", "connections go to the server itself")
    elif not rows.shares_servers_between_transactions():
        yield ok("pooler", "a pooler (PgBouncer) is in front of the server; it seems to pool whole sessions")
    elif connection().settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield ok("pooler", "a pooler (PgBouncer) pools transactions, and Django knows (DISABLE_SERVER_SIDE_CURSORS)")
    else:
        yield fail(
            "pooler",
            "a pooler (PgBouncer) pools transactions, and Django does not know",
            'Set DATABASES[…]["DISABLE_SERVER_SIDE_CURSORS"] = True: otherwise Django looks for its cursors and'
            " prepared statements on another server process.",
        )


def check_jit() -> Iterator[Finding]:
    """Report a server that compiles even cheap queries."""
    cost = rows.jit_above_cost()
    if cost is not None and cost < JIT_COST:
        yield warn(
            "jit",
            f"jit_above_cost is {cost:,.0f}, so PostgreSQL compiles even short queries, for longer than it runs them",
            "Set it to 100000, the default, or switch JIT off for the project's role: ALTER ROLE … SET jit = off.",
        )
    else:
        yield ok(
            "jit", "PostgreSQL compiles no short queries" if cost is not None else "PostgreSQL compiles no queries"
        )


def check_snapshots() -> Iterator[Finding]:
    """Report old transactions, which keep vacuum from removing rows."""
    held = rows.held_snapshots(SNAPSHOT_WARN)
    if not held:
        yield ok("transactions", f"none is older than {SNAPSHOT_WARN:.0f} s")
        return
    oldest = ", ".join(
        f"pid {item.pid} ({item.application or 'no name'}, {item.state}) for {item.seconds:.0f} s"
        for item in held[:NAMED]
    )
    level = fail if held[0].seconds >= SNAPSHOT_FAIL else warn
    yield level(
        "transactions",
        f"{len(held)} open for a long time: {oldest}",
        "Vacuum cannot remove rows that died since then, so tables grow. End what hangs: SELECT"
        " pg_terminate_backend(pid); and set idle_in_transaction_session_timeout.",
    )


def check_tables() -> Iterator[Finding]:
    """Report tables without autovacuum, and tables that are full of dead rows."""
    tables = rows.tables()
    off = [table.name for table in tables if table.autovacuum_off]
    if off:
        yield fail("tables", f"autovacuum is off for {', '.join(off)}", "Switch it on: the tables grow without end.")
        return
    bloated = [t for t in tables if t.dead > DEAD_ROWS and t.dead > DEAD_SHARE * (t.live + t.dead)]
    for table in bloated:
        yield warn(
            "tables",
            f"{table.name} holds {table.dead:,} dead rows and {table.live:,} live ones, {table.size / 2**20:,.0f} MiB",
            f"Look for open transactions first, then run VACUUM {table.name}; see the page about the database for"
            " autovacuum settings.",
        )
    if not bloated:
        size = sum(table.size for table in tables) / 2**20
        yield ok("tables", f"{size:,.0f} MiB with indexes, {sum(t.dead for t in tables):,} dead rows")


def is_redis_in_force() -> bool:
    """Return whether claims use Redis, as far as this process knows."""
    return conf.get().index == conf.REDIS and not redis_is_away.is_set()


def check_writes() -> Iterator[Finding]:
    """Report a Redis that answers and refuses writes."""
    refusal = refused_writes(stream_index())
    if refusal:
        remedy = next((remedy for words, remedy in REFUSALS.items() if words in refusal), "See the server's log.")
        yield Finding(
            "redis",
            Level.FAIL if is_redis_in_force() else Level.WARN,
            say("index_refuses", error=refusal),
            f"{remedy} The scheduler then repairs the index by itself.",
        )


def check_redis() -> Iterator[Finding]:
    """Report version, eviction, persistence and memory; without Redis, the limits of that."""
    if conf.get().index == conf.ROWS:
        yield ok("index", WITHOUT_REDIS)
        return
    facts = server_facts(redis_index())
    if facts.version < MINIMUM_REDIS:
        yield fail(
            "redis", f"{facts.product} {facts.displayed_version} is too old", "Upgrade to Redis 6.2 or to Valkey."
        )
    else:
        yield ok("redis", f"{facts.product} {facts.displayed_version}")
    yield eviction(facts)
    yield _persistence(facts)
    yield _memory(facts)


def eviction(facts: ServerFacts) -> Finding:
    """Report a server that may drop keys when memory is short; the caps and rates of the index would be exceeded."""
    if facts.policy == "noeviction":
        return ok("eviction", "noeviction: the server refuses writes when memory is full, and drops nothing")
    hint = "Set maxmemory-policy noeviction; give a cache that needs another policy its own server."
    if facts.policy.startswith("volatile-"):
        return warn("eviction", f"{facts.policy}: the server may drop locks of schedulers and rebuilds", hint)
    if facts.limit == 0:
        return warn("eviction", f"{facts.policy}: the server drops parts of the index once maxmemory is set", hint)
    return fail("eviction", f"{facts.policy}: the server drops parts of the index when memory is short", hint)


def _persistence(facts: ServerFacts) -> Finding:
    if facts.last_save_failed:
        return fail(
            "persistence",
            "the last save to disk failed, and the server may therefore refuse writes",
            "See the server's log; free disk space, or switch snapshots off (save ''): the index needs none.",
        )
    kept = [name for name, on in (("append-only file", facts.append_only), ("snapshots", facts.snapshots)) if on]
    if kept:
        return ok("persistence", f"{' and '.join(kept)}; after a restart the index is rebuilt from the rows anyway")
    if facts.snapshots is None:
        return ok("persistence", "no append-only file; the server does not report snapshots")
    if conf.get().requests.enabled:
        return warn(
            "persistence",
            "none: a restart of the server loses unread requests of other services",
            "Switch on the append-only file (appendonly yes).",
        )
    return ok("persistence", "none: after a restart the index is rebuilt from the rows, no task is lost")


def _memory(facts: ServerFacts) -> Finding:
    limit = facts.limit or facts.machine
    used = f"{facts.used / 2**20:,.0f} MiB"
    if not limit:
        return ok("memory", f"{used} used, no limit set")
    of_limit = "of maxmemory" if facts.limit else "of the machine's memory (maxmemory is not set)"
    share = facts.used / limit
    message = f"{used} used, {share:.0%} {of_limit}"
    hint = "Raise maxmemory, or find what fills it (redis-cli --bigkeys); a queued task takes about 100 bytes."
    if share >= MEMORY_FAIL:
        return fail("memory", message, hint)
    return warn("memory", message, hint) if share >= MEMORY_WARN else ok("memory", message)


def check_clocks() -> Iterator[Finding]:
    """Report clocks that differ: this machine's, PostgreSQL's and Redis's."""
    ahead, error = rows.clock_ahead()
    differences = {"PostgreSQL and this machine": (abs(ahead), error)}
    if conf.get().index == conf.REDIS:
        facts = server_facts(redis_index())
        differences |= {
            "Redis and this machine": (abs(facts.clock_ahead), facts.clock_error),
            "PostgreSQL and Redis": (abs(ahead - facts.clock_ahead), error + facts.clock_error),
        }
    pair, (most, error) = max(differences.items(), key=lambda item: item[1][0] - item[1][1])
    if most - error <= SKEW_WARN:
        yield ok("clocks", f"at most {most:.2f} s apart")
        return
    level = fail if most - error > SKEW_FAIL else warn
    yield level(
        "clocks",
        f"{pair} differ by {most:.1f} s",
        "Let NTP set all clocks. Delays, retries, expiry and ages follow PostgreSQL's; no task is lost or run twice.",
    )


def check_locks() -> Iterator[Finding]:
    """Report locks of whole tables: a failure if reading waits too, else a warning. Asks only the system's views."""
    found = rows.table_locks(REPORTED_SECONDS)
    if any(lock.seconds is None for lock in found):  # they may have begun just now
        time.sleep(REPORTED_SECONDS)
        before, found = {lock.pid for lock in found}, rows.table_locks(REPORTED_SECONDS)
        found = [lock for lock in found if lock.pid in before]
    for lock in found:
        waits = "nothing can read or write it" if lock.blocks_reads else "nothing can write it"
        lasts = "" if lock.seconds is None else f" for {lock.seconds:.0f} s"
        held = f"{lock.table} is locked{lasts}, so {waits}: {_session(lock)}"
        if not lock.is_granted:
            held = f"{_session(lock)} has waited{lasts} to lock {lock.table}, and {waits} meanwhile"
            held += f"; it waits for pid {', '.join(map(str, lock.blocked_by))}" if lock.blocked_by else ""
        pid = lock.pid if lock.is_granted or not lock.blocked_by else lock.blocked_by[0]
        yield (fail if lock.blocks_reads else warn)("locks", held, LOCK_HINT.format(pid=pid))


def _session(lock: rows.TableLock) -> str:
    statement = " ".join(lock.statement.split())[:SHOWN]
    return f"pid {lock.pid} ({', '.join(filter(None, (lock.application or 'no name', lock.state, statement)))})"
