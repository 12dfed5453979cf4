"""What one script call costs the server, by the shape of what waits: keys, users, profiles, queues, leases.

Each line is measured at three sizes, by turns. The figure is the processor time of the server for the slowest call of a
script in the line, the least of three rounds; its growth from the first size to the last; and the sum over all calls.
It includes about 0.05 ms for asking. ``tests/queue_app/index/test_shape_costs.py`` counts the commands of these calls.
"""

import os
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import batched, product
from statistics import median

from bench import Table
from django_redis import get_redis_connection

from queue_app.core.ids import uuid7s
from queue_app.core.limits import Limits, lane_name
from queue_app.core.priorities import Band
from queue_app.core.records import Entry, PackedLane, TaskRef
from queue_app.index import Index, Lease, Profile, get_index
from queue_app.index.notifier import pack

SIZES = (1_000, 10_000, 100_000)
ROUNDS = 5
REPEATS = 3
MS = 5.0  # wanted of a script at most
#: Lines of which less is wanted, in ms.
LESS = {
    "unserved types": 0.5,
    "register one more worker of a profile": 0.5,
    "position": 0.3,
    "position, fair users": 0.3,
    "push of a task, 1 000 profiles": 2.0,
}
GROWTH = 1.5  # wanted at most, from the first size to the last

type Measured = dict[str, list[tuple[float, float]]]  # line -> ms of its slowest script, ms of all, for each call


class Scene:
    """An empty index, and the measured lines."""

    def __init__(self) -> None:
        self.client = get_redis_connection("default")
        self.client.connection_pool.connection_kwargs["socket_timeout"] = 300
        self.client.connection_pool.disconnect()
        self.client.execute_command("FLUSHDB", "SYNC")  # else another thread frees it during the measurement
        self.index: Index = get_index()
        self.index.begin_generation(1)
        self.index.finish_generation(1)
        self.found: Measured = {}

    def worker(self, *types: str, **parts: tuple[str, ...]) -> tuple[Profile, uuid.UUID]:
        """Register a worker."""
        profile = Profile.of(parts.get("queues", ()), types or ("a",), parts.get("capabilities", ()))
        worker_id = uuid.uuid4()
        self.index.register(profile, worker_id)
        return profile, worker_id

    def fill(self, n: int, lane: Callable[[int], str], band: Band = Band.NORMAL) -> list[uuid.UUID]:
        """Put n tasks straight into the index, in order."""
        ids, base = list(uuid7s(n)), time.time() * 1000 - 1000
        self.push(Entry(lane(i), band * 1e13 + base + i * 0.001, ids[i]) for i in range(n))
        return ids

    def push(self, entries: Iterable[Entry]) -> None:
        """Push entries as they are."""
        for batch in batched(entries, 500):
            self.index._call("push", *pack(batch))

    @contextmanager
    def line(self, name: str) -> Iterator[None]:
        """Measure the scripts that are called within."""
        took: list[float] = []

        def timed(call: Callable[..., object]) -> Callable[..., object]:
            def measured(*arguments: object, **options: object) -> object:
                self.client.eval("collectgarbage() return 0", 0)  # else about one claim in 17 takes twice as long
                began = self._cpu()
                try:
                    return call(*arguments, **options)
                finally:
                    took.append(self._cpu() - began)

            return measured

        plain = self.index._call
        self.index._call = timed(plain)  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.index._call = plain  # type: ignore[method-assign]
        self.found.setdefault(name, []).append((max(took), sum(took)))

    def _cpu(self) -> float:
        """Return the ms of processor time that the server's main thread has used."""
        info = self.client.info("cpu")
        return 1000 * float(info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"])

    def repeat(self, name: str, call: Callable[[], object]) -> None:
        """Measure a call several times."""
        for _ in range(ROUNDS):
            with self.line(name):
                call()

    def claims(self, name: str, worker: tuple[Profile, uuid.UUID], calls: int = ROUNDS, want: int = 10) -> None:
        """Measure some claims; the slowest counts."""
        with self.line(name):
            for _ in range(calls):
                self.index.claim(*worker, want)

    def release(self, proposal: object) -> None:
        """End what a claim proposed."""
        self.index.release(Lease(task, queue, proposal.leased_at) for task, queue in proposal.tasks)  # type: ignore[attr-defined]


def user_cap(scene: Scene, n: int) -> None:
    """One user at its cap, each task with a key of its own."""
    scene.index.set_limits("q:default", Limits(max_concurrent_per_user=1))
    worker = scene.worker()
    scene.fill(n, lambda i: lane_name("default", "a", (), "u", f"order:{i}", 1))
    first = scene.index.claim(*worker, 10)
    scene.claims("claim that meets the tasks of a user at its cap", worker, 40)
    with scene.line("release that frees the user's slot"):
        scene.release(first)


def family(scene: Scene, n: int) -> None:
    """A family of keys is paused behind a limit of a type that has room."""
    index = scene.index
    index.set_limits("t:a", Limits(max_concurrent=10_000))
    index.set_limits("k:customer", Limits(max_concurrent=5))
    worker = scene.worker()
    scene.fill(n, lambda i: lane_name("default", "a", (), "", f"customer:{i}", 1))
    scene.claims("claim, a limited family of keys", worker)
    with scene.line("pause of the family"):
        index.set_limits("k:customer", Limits(max_concurrent=5, paused=True))
    scene.claims("claim after the family was paused", worker, 40)
    with scene.line("resume of the family, all steps"):
        index.set_limits("k:customer", Limits(max_concurrent=5))
    with scene.line("edit of the family's cap, all steps"):
        index.set_limits("k:customer", Limits(max_concurrent=6))


def refills(scene: Scene, n: int) -> None:
    """Every key has a rate, and all wait for their next start."""
    index = scene.index
    index.set_limits("k:customer", Limits(rate_count=1, rate_seconds=1.0, rate_burst=1))
    worker = scene.worker()
    scene.fill(n, lambda i: lane_name("default", "a", (), "", f"customer:{i}", 1))
    for _ in range(min(40, n // 10)):
        index.claim(*worker, 10)
    time.sleep(1.2)
    scene.claims("claim when refills are due", worker)
    with scene.line("tick of the scheduler"):
        index.wake_idle()


def beats(scene: Scene, n: int) -> None:
    """What each worker and each request asks."""
    index = scene.index
    profile, _ = scene.worker()
    ids = scene.fill(n, lambda i: lane_name("default", "a", (), "", f"order:{i}", 1))
    scene.repeat("unserved types", lambda: index.unserved_types(profile))
    scene.repeat("register one more worker of a profile", lambda: index.register(profile, uuid.uuid4()))
    ref = TaskRef(ids[n // 2], "a", "default", Band.NORMAL, (), datetime.now(UTC), "", f"order:{n // 2}", 1)
    scene.repeat("position", lambda: index.position(ref))


def fair(scene: Scene, n: int) -> None:
    """A fair queue of n users."""
    index = scene.index
    index.set_limits("q:default", Limits(fair_by="user"))
    worker = scene.worker()
    ids = scene.fill(n, lambda i: lane_name("default", "a", (), f"user{i}", "", 1))
    scene.claims("claim, fair users", worker)
    ref = TaskRef(ids[n // 2], "a", "default", Band.NORMAL, (), datetime.now(UTC), f"user{n // 2}")
    scene.repeat("position, fair users", lambda: index.position(ref))


def profiles(scene: Scene, n: int) -> None:
    """Workers of n profiles."""
    index = scene.index
    n = min(n, 1_000)  # workers, not tasks
    workers = [scene.worker(capabilities=(f"host{i}",)) for i in range(n)]
    scene.fill(2_000, lambda i: lane_name("default", "a", (), "", f"k{i % 500}", 1))
    scene.repeat(
        "push of a task, 1 000 profiles",
        lambda: scene.push([Entry("default\x1fa\x1f", 2e13 + time.time() * 1000, uuid7s(1)[0])]),
    )
    with scene.line("claim of 100, 1 000 profiles"):
        proposal = index.claim(*workers[0], 100)
    with scene.line("release of 100, 1 000 profiles"):
        scene.release(proposal)
    index.set_limits("q:default", Limits(max_concurrent=500))
    with scene.line("edit of a queue's cap, 1 000 profiles"):
        index.set_limits("q:default", Limits(max_concurrent=501))
    with scene.line("tick of the scheduler, 1 000 profiles"):
        index.wake_idle()


def leases(scene: Scene, n: int) -> None:
    """The first limit of a family, while many tasks run."""
    n = n * 3 // 10
    scene.index.restore_leases(
        Lease(task, lane_name("default", "a", (), f"u{k % 1000}", f"customer:{k}", 1), 1_000_000 + k)
        for k, task in enumerate(uuid7s(n))
    )
    with scene.line("first limit of a family over 30 000 leases, all steps"):
        scene.index.set_limits("k:customer", Limits(max_concurrent=2))


def queues(scene: Scene, n: int) -> None:
    """Many queues: 5 000 at the last size."""
    worker = scene.worker()
    scene.fill(n // 20, lambda i: lane_name(f"q{i}", "a", ()))
    scene.claims("claim over 5 000 queues", worker)


def walks(scene: Scene, n: int) -> None:
    """What looks at each of 20 000 queues, at the last size."""
    index, names = scene.index, [f"q{i}" for i in range(n // 5)]
    lanes = [
        PackedLane(lane_name(q, "a", ()), uuid7s(1)[0].bytes, struct.pack(">d", 2e13 + i)) for i, q in enumerate(names)
    ]
    with scene.line("load of a task for each of 20 000 queues"):
        index.push_lanes(lanes)
    with scene.line("heads of a profile, 20 000 queues"):
        profile, _ = scene.worker()
    with scene.line("first limits of 20 000 queues"):
        index.copy_limits((f"q:{q}", Limits(max_concurrent=5)) for q in names)
    with scene.line("the same limits again"):
        index.copy_limits((f"q:{q}", Limits(max_concurrent=5)) for q in names)
    with scene.line("stats, 20 000 queues"):
        index.stats()
    with scene.line("audit, 20 000 queues"):
        for batch in batched(names, 50):
            index.audit(profile.id, batch, 0)


SCENES = (user_cap, family, refills, beats, fair, profiles, leases, queues, walks)


def run(table: Table) -> None:
    """Measure each scene at each size."""
    sizes = [table.sized(size) for size in SIZES]
    measured: dict[str, dict[int, list[tuple[float, float]]]] = {}
    wanted = os.environ.get("SHAPES", "").split(",")
    scenes = [scene for scene in SCENES if wanted == [""] or scene.__name__ in wanted]
    for _, scene, size in product(range(REPEATS), scenes, sizes):
        found = Scene()
        scene(found, size)
        for name, runs in found.found.items():
            worst, whole = (median(part) for part in zip(*runs, strict=True))
            measured.setdefault(name, {}).setdefault(size, []).append((worst, whole))
    bytes_a_task(table)
    for name, each in measured.items():
        best = [min(each[size]) for size in sizes]
        figures = " / ".join(f"{worst:.2f}" for worst, _ in best) + f"; growth {best[-1][0] / best[0][0]:.2f}"
        steps = f"; all steps {best[-1][1]:.0f} ms" if best[-1][1] > 1.5 * best[-1][0] else ""
        at = " / ".join(f"{size:,}" for size in sizes)
        asked = f"≤ {LESS.get(name, MS):g}; growth ≤ {GROWTH}"
        table.add(f"{name}, ms of the slowest script at {at}", asked, figures + steps)


def bytes_a_task(table: Table) -> None:
    """The memory of a waiting task."""
    n = table.sized(20_000)

    def grown(lane: Callable[[int], str], *, limited: bool = False) -> str:
        scene = Scene()
        if limited:
            scene.worker()
            scene.worker("a", "b")
            scene.index.set_limits("k:order", Limits(max_concurrent=1))
        before = scene.client.info("memory")["used_memory"]
        scene.fill(n, lane)
        return f"{(scene.client.info('memory')['used_memory'] - before) / n:.0f}"

    table.add("bytes a waiting task, plain", "81", grown(lambda i: lane_name("default", "a", ())))
    table.add("the same, unique keys", "≤ 130", grown(lambda i: lane_name("default", "a", (), "", f"order:{i}", 1)))
    found = grown(lambda i: lane_name("default", "a", (), "", f"order:{i}", 1), limited=True)
    table.add("the same, with two profiles and a limited family", "≤ 160", found)
