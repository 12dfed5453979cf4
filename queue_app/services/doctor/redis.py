"""Redis or Valkey: whether it can be trusted with the index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queue_app import conf
from queue_app.index import get_index
from queue_app.index.server import ServerFacts, server_facts
from queue_app.rows import doctor as rows
from queue_app.services.doctor.finding import Finding, fail, ok, warn

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
