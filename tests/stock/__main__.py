"""Stock scenes: `./dev stock`. A stranger's project on stock servers, with Django's default settings.

Six scenes hold every pair of values of six factors. After them, a canary for plans with a million rows. What is judged
is in ``scene.py`` and ``plans.py``; the table goes to the standard output, and any problem makes the exit code 1.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

from tests.stock import plans, servers
from tests.stock.environments import Environments, find_python
from tests.stock.scene import Project, Servers, play
from tests.support.waiting import let_pass

#: Factor -> its two values, the one that a stranger rather has first.
FACTORS = {
    "PostgreSQL": ("Debian's", "wheel"),
    "Redis": ("Debian's", "Valkey"),
    "PgBouncer": ("no", "yes"),
    "Python": ("3.12", "3.13"),
    "Django": ("6.1", "6.0"),
    "CONN_MAX_AGE": ("0", "60"),
}


def scenes() -> Iterator[dict[str, str]]:
    """Yield six scenes, in which each two factors meet with each two values.

    A factor has its second value in three of the last five scenes, each factor in another three. So two factors have
    the second value together at least once, each alone at least once, and none of them in the first scene.
    """
    chosen = list(combinations(range(1, 6), 3))
    for number in range(6):
        second = dict(zip(FACTORS, (number in one for one in chosen), strict=False))
        yield {name: values[second[name]] for name, values in FACTORS.items()}


def lacking() -> list[str]:
    """Return what this machine lacks."""
    pythons = [f"Python {version}" for version in FACTORS["Python"] if find_python(version) is None]
    return [*servers.missing(), *pythons]


def run_scene(scene: dict[str, str], folder: Path, environments: Environments) -> list[str]:
    """Play one scene; print its line, and return its problems."""
    began = time.monotonic()
    python = environments.python(scene["Python"], scene["Django"])
    with ExitStack() as stack:
        rows = stack.enter_context(servers.started(servers.postgres(folder, debian=scene["PostgreSQL"] == "Debian's")))
        index = stack.enter_context(servers.started(servers.redis(folder, debian=scene["Redis"] == "Debian's")))
        pids = {"PostgreSQL": rows.process.pid, "Redis": index.process.pid}
        env = env_of(rows.url(), index.url()) | {"CONN_MAX_AGE": scene["CONN_MAX_AGE"]}
        if scene["PgBouncer"] == "yes":
            port, pids["PgBouncer"] = stack.enter_context(servers.pooler(folder, rows))
            env |= {"PG_PORT": str(port), "POOLED": "1"}
        project = Project(folder, python, Servers(env, rows.url(), pids))
        figures = play(project)
    shown = ", ".join(f"{name} {_figure(name, value)}" for name, value in figures.items())
    print(f"{', '.join(f'{name} {value}' for name, value in scene.items())}: {shown}; {time.monotonic() - began:.0f} s")
    return project.problems


def env_of(rows: str, index: str) -> dict[str, str]:
    """Return the environment that the settings of the shop read."""
    parts = urlsplit(rows)
    return {
        "PG_NAME": parts.path[1:],
        "PG_USER": parts.username,
        "PG_PASSWORD": parts.password,
        "PG_PORT": str(parts.port),
        "REDIS_URL": index,
    }


def _figure(name: str, value: float) -> str:
    if name.startswith("idle"):
        return f"{value:.2%}"
    if "pickup" in name:
        return f"{value * 1000:.0f} ms"
    return f"{value:.0f}" if name == "connections" else f"{value:.1f} s"


def run_canary(folder: Path, environments: Environments) -> list[str]:
    """Let processes work with ten rows, then with a million; return the problems of the plans."""
    began = time.monotonic()
    with ExitStack() as stack:
        rows = stack.enter_context(
            servers.started(servers.postgres(folder, debian=True, options=(*servers.HURRIED, *servers.EXPLAINED)))
        )
        index = stack.enter_context(servers.started(servers.redis(folder, debian=True)))
        python = environments.python(FACTORS["Python"][1], FACTORS["Django"][0])
        pids = {"PostgreSQL": rows.process.pid, "Redis": index.process.pid}
        project = Project(folder, python, Servers(env_of(rows.url(), index.url()), rows.url(), pids))
        project.manage("migrate", "--run-syncdb", "--verbosity", "0")
        _work(project)
        found = plans.problems(plans.logged(rows.log), set())
        plans.fill(rows.url())
        project.manage("taskqueue", "rebuild")
        rows.log.write_bytes(b"")
        _work(project)
        million = list(plans.logged(rows.log))
        found |= plans.problems(iter(million), plans.large_tables(rows.url()))
        hot = plans.prepared(iter(million))
        other = stack.enter_context(
            servers.started(servers.postgres(folder / "other", debian=False, options=servers.HURRIED))
        )
        there = Project(folder, python, Servers(env_of(other.url(), index.url()), other.url(), {}))
        there.env["TASKQUEUE__KEY_PREFIX"] = "other"
        there.manage("migrate", "--run-syncdb", "--verbosity", "0")
        for fill in (lambda _: None, plans.fill):
            fill(other.url())
            found |= plans.problems(plans.explained(other.url(), hot), plans.large_tables(other.url()))
    print(f"{len(million)} plans with a million rows, {len(hot)} prepared statements; {time.monotonic() - began:.0f} s")
    return [*project.problems, *there.problems, *sorted(found)]


_OWN_COMPLETED = "SELECT bool_and(status = 'completed') FROM queue_app_task WHERE task_type = 'shop.tasks.add'"


def _work(project: Project) -> None:
    with project.process("scheduler", "runscheduler", "--with-maintenance"), project.process("worker", "runworker"):
        for way in ("quick", "later", "bulk"):
            project.manage("order", way, 20)
        project.manage("taskqueue", "stats")
        done = project.eventually(_OWN_COMPLETED)
        project.judge(ok=done, problem="the tasks of the canary did not complete")
        let_pass(12.0)  # every job of the scheduler has had its turn


def main() -> int:
    """Run all of it, or the scenes whose numbers are given ("canary" for the last part)."""
    if missing := lacking():
        print(f"stock: this machine lacks {', '.join(missing)}; nothing was tried.", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    chosen, problems = sys.argv[1:], []
    with tempfile.TemporaryDirectory(prefix="taskqueue-stock-", ignore_cleanup_errors=True) as root:
        Path(root).chmod(0o711)
        environments = Environments(Path(root) / "environments")
        parts = [(str(number), scene) for number, scene in enumerate(scenes(), 1)]
        for name, scene in [*parts, ("canary", None)]:
            if chosen and name not in chosen:
                continue
            folder = Path(root) / name
            folder.mkdir(mode=0o711)
            (folder / "other").mkdir(mode=0o711)
            found = run_scene(scene, folder, environments) if scene else run_canary(folder, environments)
            problems += [f"{name}: {problem}" for problem in found]
            sys.stdout.flush()
    for problem in problems:
        print(f"stock: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
