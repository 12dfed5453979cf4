"""One scene: a stranger's project on some servers, its first minute, and what is judged."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from tests.stock.environments import run
from tests.stock.servers import seconds
from tests.support.waiting import let_pass, until

SHOP = Path(__file__).resolve().parent / "shop"
IDLE_SECONDS = 8.0
SLOTS = 5
BULK = 600
#: Greatest shares of a core while nothing is to do: of each process, and of each server.
IDLE_SHARE = {"scheduler": 0.02, "worker": 0.02, "PostgreSQL": 0.03, "Redis": 0.03, "PgBouncer": 0.02}
#: Greatest wait of a task that meets an idle worker: the median, and the longest (s). Machines that test are busy.
PICKUP = (0.1, 2.0)
#: Lines of a log that would worry a reader. On a busy machine the reconciler may be quicker than the push of a command.
WORRIES = re.compile(
    r"WARNING(?! taskqueue: no scheduler runs)|ERROR|CRITICAL|Traceback|Exception|Error\b|repaired, (?!missing)"
)


@dataclass(frozen=True)
class Servers:
    """Where the servers of a scene are: environment of the project, address of the rows, and {name: process}."""

    env: dict[str, str]
    rows: str
    pids: dict[str, int]


class Project:
    """The project of a scene, run by the Python of its environment."""

    def __init__(self, folder: Path, python: Path, servers: Servers) -> None:
        self.folder, self.python, self.servers = folder, python, servers
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        own = {"DJANGO_SETTINGS_MODULE": "shop_settings", "PYTHONPATH": str(SHOP)}
        self.env = kept | own | servers.env
        self.problems: list[str] = []

    def judge(self, *, ok: bool, problem: str) -> None:
        """Note a problem."""
        if not ok:
            self.problems.append(problem)

    def manage(self, *arguments: object, **env: str) -> str:
        """Run a command that must succeed and print nothing that worries; return what it printed."""
        text = run(self.python, "-m", "django", *arguments, env=self.env | env, cwd=self.folder)
        worry = WORRIES.search(text)
        self.judge(ok=worry is None, problem=f"`{' '.join(map(str, arguments))}` printed: {text.strip()[-500:]}")
        return text

    def ask(self, statement: str) -> list[tuple]:
        """Return rows of the database."""
        with psycopg.connect(self.servers.rows, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def eventually(self, statement: str, patience: float = 60.0) -> bool:
        """Wait until a statement is true."""
        return self._comes_true(lambda: self.ask(statement)[0][0], patience)

    def _comes_true(self, condition: Callable[[], bool], patience: float) -> bool:
        try:
            until(condition, "it comes true", patience)
        except AssertionError:
            return False
        return True

    @contextmanager
    def process(self, name: str, *arguments: str) -> Iterator[psutil.Process]:
        """Run a command in the background for the block; it must end by SIGTERM, with a log that worries nobody."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            command = [str(self.python), "-m", "django", *arguments]
            process = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=output, stderr=output)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code: object = process.wait(45)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            self.judge(ok=code == 0, problem=f"the {name} ended with {code}")
            # The worker rightly misses the scheduler that has ended before it; whether it did earlier is judged there.
            lines = [line for line in log.read_text().splitlines() if "No scheduler runs" not in line]
            worries = [line for line in lines if WORRIES.search(line)]
            self.judge(ok=not worries, problem=f"the {name} logged: {worries[:5]}")

    def has_logged(self, name: str, text: str, patience: float = 60.0) -> None:
        """Wait until a process has logged something."""
        log = self.folder / f"{name}.log"
        logged = self._comes_true(lambda: text in log.read_text(), patience)
        self.judge(ok=logged, problem=f"the {name} never logged {text!r}")


_ALL_COMPLETED = "SELECT count(*) = {} AND bool_and(status = 'completed') FROM queue_app_task"
_WAITS = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY wait), max(wait) FROM (
    SELECT EXTRACT(EPOCH FROM started_at - queued_at)::float8 AS wait FROM queue_app_task ORDER BY id DESC LIMIT 20
) AS waits
"""


def play(project: Project) -> dict[str, float]:
    """Play the first minute; return the figures. Problems are in ``project.problems``."""
    refused = subprocess.run(
        [project.python, "-m", "django", "check"], env=project.env | {"USE_TZ": "0"}, cwd=project.folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    project.judge(ok="(queue_app.E008)" in refused.stderr, problem=f"USE_TZ = False: {refused.stderr[-300:]}")
    project.manage("migrate", "--run-syncdb", "--verbosity", "0")
    project.manage("check", "--database", "default", "--fail-level", "WARNING")
    figures: dict[str, float] = {}
    with ExitStack() as leading:
        scheduler = leading.enter_context(project.process("scheduler", "runscheduler"))
        project.has_logged("scheduler", " leads")
        with project.process("worker", "runworker") as worker:
            project.has_logged("worker", "waits for tasks")
            figures |= _idle(project, {"scheduler": scheduler.pid, "worker": worker.pid} | project.servers.pids)
            figures |= _load(project)
            text = project.manage("taskqueue", "doctor")
            failures = [line for line in text.splitlines() if line.startswith("FAIL")]
            project.judge(ok=not failures, problem=f"the doctor finds {failures}")
            missed = "No scheduler runs" in (project.folder / "worker.log").read_text()
            project.judge(ok=not missed, problem="the worker misses a scheduler although one leads")
            leading.close()  # the scheduler ends
            _without_scheduler(project)
    return figures


def _without_scheduler(project: Project) -> None:
    """Let a short command enqueue several times while no reconciler could find what its notifications do not tell."""
    for _ in range(3):
        project.manage("order", "quick", 4)
        done = project.eventually("SELECT bool_and(status = 'completed') FROM queue_app_task", 20.0)
        project.judge(ok=done, problem="a notification of a short command was lost")


def _idle(project: Project, pids: dict[str, int]) -> dict[str, float]:
    """Return the share of a core that each process and server uses while nothing is to do."""
    let_pass(3.0)  # the start is over
    before = {name: seconds(pid) for name, pid in pids.items()}
    let_pass(IDLE_SECONDS)
    shares = {name: (seconds(pid) - before[name]) / IDLE_SECONDS for name, pid in pids.items()}
    for name, share in shares.items():
        limit = IDLE_SHARE[name]
        project.judge(ok=share <= limit, problem=f"idle: {name} uses {share:.1%} of a core, at most {limit:.0%}")
    return {f"idle {name}": share for name, share in shares.items()}


def _load(project: Project) -> dict[str, float]:
    """Enqueue in several ways; judge outcomes, pickup and sessions."""
    count = 0
    for way, number in (("quick", 12), ("later", 5), ("slow", 20)):
        project.manage("order", way, number)
        count += number
        done = project.eventually(_ALL_COMPLETED.format(count))
        project.judge(ok=done, problem=f"not all of {count} tasks completed ({way})")
    median, longest = project.ask(_WAITS)[0]
    project.judge(
        ok=median <= PICKUP[0] and longest <= PICKUP[1],
        problem=f"a task waited {median:.3f} s (median), at most {longest:.3f} s",
    )
    sessions = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()"
    before, began = project.ask(sessions)[0][0], time.monotonic()
    project.manage("order", "bulk", BULK)
    done = project.eventually(_ALL_COMPLETED.format(count + BULK))
    project.judge(ok=done, problem=f"not all of {BULK} tasks of one call completed")
    took, asked = time.monotonic() - began, project.ask("SELECT count(*) FROM shop_order")[0][0]
    project.judge(ok=asked == BULK, problem=f"{asked} orders, not {BULK}")
    let_pass(1.5)  # PostgreSQL reports sessions once a second
    opened = project.ask(sessions)[0][0] - before - int(took / 0.1 + 20)  # ours, while we waited
    project.judge(ok=opened <= 3 * SLOTS, problem=f"{opened} sessions for {BULK} tasks")
    held = project.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )[0][0]
    project.judge(ok=held <= SLOTS + 6, problem=f"{held} connections are open")
    return {"median pickup": median, "longest pickup": longest, f"{BULK} inserts": took, "connections": held}
