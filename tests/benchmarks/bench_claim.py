"""What a claim costs, by depth, by tasks that no worker can run, and by lanes."""

from statistics import median

from bench import Table, analyze, fill, register, reset, timed

from queue_app.index import Lease, get_index
from queue_app.services.lifecycle.claim import claim

BATCH = 10
CALLS = 200


def run(table: Table) -> None:
    """Measure each scene: the script alone, and the claim of rows and index."""
    script: dict[str, float] = {}
    whole: dict[str, float] = {}
    scenes = {
        "1k": {"n": 5_000},
        "100k": {"n": table.sized(100_000)},
        "1M": {"n": table.sized(1_000_000)},
        "100k behind 100k that no worker can run": {"n": table.sized(100_000), "blocked": table.sized(100_000)},
        "100k in 5 000 lanes": {"n": table.sized(100_000), "types": table.sized(5_000)},
    }
    for name, scene in scenes.items():
        script[name], whole[name] = _measure(**scene)
        print(f"  {name}: script {script[name] * 1e6:.1f} µs, with rows {whole[name] * 1e6:.0f} µs a task", flush=True)
    alone = script["1M"] / script["100k"]
    table.add("claim script alone, 1 M / 100 k queued", "≤ 1.2", f"{alone:.2f}")
    table.add("claim script and rows, 1 M / 1 k queued", "≤ 1.3", f"{whole['1M'] / whole['1k']:.2f}")
    for name, asked in (("100k behind 100k that no worker can run", "≤ 1.3"), ("100k in 5 000 lanes", "≤ 1.5")):
        table.add(f"claim script and rows, {name} / 100 k", asked, f"{whole[name] / whole['100k']:.2f}")
        table.add(f"claim script alone, {name} / 100 k", "-", f"{script[name] / script['100k']:.2f}")
    table.add("claim script alone, µs a task (batches of 10)", "rough script: 17", f"{script['100k'] * 1e6:.1f}")


def _measure(n: int, types: int = 1, blocked: int = 0) -> tuple[float, float]:
    """Return seconds per claimed task in batches of 10: of the script, and of script and row update."""
    reset()
    if blocked:
        fill(blocked, capabilities=("gpu",))
    fill(n, types=types)
    analyze()
    profile, worker_id = register(types)
    index = get_index()

    def script_once() -> float:
        """Time the script, then put the tasks back, so that the depth stays."""
        taken = []
        seconds = timed(lambda: taken.append(index.claim(profile, worker_id, BATCH, register_idle=False)))
        proposal = taken[0]
        assert len(proposal.tasks) == BATCH
        index.release(Lease(task_id, queue, proposal.leased_at) for task_id, queue in proposal.tasks)
        return seconds

    alone = [script_once() for _ in range(CALLS)]
    whole = [timed(lambda: claim(profile, worker_id, BATCH)) for _ in range(CALLS)]
    return median(alone) / BATCH, median(whole) / BATCH
