"""Read the raw results of a comparison harness, and put ours beside those of its peers."""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of each contender and workload one entry a round: what was measured, or None where the round failed.
Results = dict[str, dict[str, list[dict[str, Any] | None]]]


@dataclass(frozen=True)
class Figure:
    """One line of the table: how it is read from a round, how rounds are summed up, and which way is better."""

    workload: str
    label: str
    read: Callable[[dict[str, Any]], float]
    digits: int = 0
    more_is_better: bool = False
    summary: Callable[[Iterable[float]], float] = statistics.median


FIGURES = (
    Figure("w1", "W1 enqueue one by one, tasks/s", lambda run: run["rate"], more_is_better=True),
    Figure(
        "w1", "W1 CPU a task, caller + services, µs", lambda run: (run["cpu"] + run["services_cpu"]) / run["n"] * 1e6
    ),
    Figure("w2", "W2 enqueue in bulk, tasks/s", lambda run: run["rate"], more_is_better=True),
    Figure("w2", "W2 CPU a task, caller, µs", lambda run: run["cpu"] / run["n"] * 1e6),
    Figure("w3", "W3 drain, tasks/s", lambda run: run["rate"], more_is_better=True),
    Figure("w3", "W3 drain, the middle 80 %, tasks/s", lambda run: run["rate_mid"], more_is_better=True),
    Figure("w3", "W3 CPU a task, workers, µs", lambda run: run["cpu_us_worker"]),
    Figure("w3", "W3 CPU a task, services, µs", lambda run: run["cpu_us_services"]),
    Figure("w4", "W4 pickup when idle, p50, ms", lambda run: run["p50"], 2),
    Figure("w4", "W4 pickup when idle, p99, ms", lambda run: run["p99"], 2),
    Figure(
        "w5",
        "W5 CPU in 20 idle seconds, workers + services, s",
        lambda run: run["workers_cpu"] + run["services_cpu"],
        2,
    ),
    Figure("w5", "W5 memory of the workers, PSS, MB", lambda run: run["pss_mb"]),
    Figure("w6", "W6 drain beside 200 000 parked, tasks/s", lambda run: run["full"], more_is_better=True),
    Figure("w6", "W6 the same / nothing parked", lambda run: run["full"] / run["empty"], 2, more_is_better=True),
    Figure("w6", "W6 CPU a task beside those parked, µs", lambda run: run["cpu_full"]),
    Figure("w7", "W7 lost after kill -9, worst round", lambda run: run["lost"], summary=max),
    Figure("w7", "W7 completed twice, worst round", lambda run: run["completed_twice"], summary=max),
    Figure("w7", "W7 from the restart to the last task, s", lambda run: run["seconds"], 1),
)
WORKLOADS = tuple(dict.fromkeys(figure.workload for figure in FIGURES))


def collect(raw: Path, names: list[str], workloads: list[str]) -> Results:
    """Return what the raw files hold: a folder of files for each round, and one file with the rounds of W3."""
    results: Results = {name: {workload: [] for workload in workloads} for name in names}
    for name in names:
        for path in sorted(raw.glob(f"round-*/{name.replace(':', '__')}.json")):
            saved = json.loads(path.read_text())
            for workload in (workload for workload in workloads if workload != "w3"):
                if "error" in saved:  # it could not be started
                    results[name][workload].append(None)
                elif (result := saved["results"].get(workload)) is not None:
                    results[name][workload].append(measured(result))
    in_turn = raw / "interleaved" / "w3.json"
    if "w3" in workloads and in_turn.exists():
        for name, runs in json.loads(in_turn.read_text()).items():
            results[name]["w3"] = [run if run["ok"] else None for run in runs]
    return results


def measured(result: dict[str, Any]) -> dict[str, Any] | None:
    """Return the median of one round, or nothing where tasks were missing at its end."""
    if "error" in result or any(run.get("ok") is False for run in result["runs"]):
        return None
    return result["median"]


def table(results: Results, names: list[str], workloads: list[str]) -> str:
    """Return a Markdown table of ours, the first of the names, and the others, with the ratio to the best of these.

    The ratio is turned so that above 1 ours is the better one.
    """
    lines = [
        f"| figure | ours | {' | '.join(names[1:])} | ours against the best |",
        "|---|" + "---:|" * (len(names) + 1),
    ]
    for figure in FIGURES:
        if figure.workload not in workloads:
            continue
        values = [value(figure, results[name][figure.workload]) for name in names]
        cells = [cell(figure, results[name][figure.workload]) for name in names]
        lines.append(f"| {figure.label} | {' | '.join(cells)} | {ratio(figure, values[0], values[1:])} |")
    return "\n".join(lines)


def value(figure: Figure, rounds: list[dict[str, Any] | None]) -> float | None:
    """Return the figure over all rounds that did not fail."""
    numbers = [figure.read(run) for run in rounds if run is not None]
    return figure.summary(numbers) if numbers else None


def cell(figure: Figure, rounds: list[dict[str, Any] | None]) -> str:
    """Say the figure, how many rounds failed, or that there is none: some peers have no bulk call, for example."""
    number, failed = value(figure, rounds), rounds.count(None)
    if number is None:
        return "failed" if failed else "-"
    return f"{number:,.{figure.digits}f}".replace(",", " ") + (f" ({failed} of {len(rounds)} failed)" if failed else "")


def ratio(figure: Figure, ours: float | None, peers: list[float | None]) -> str:
    """Compare ours with the best of the peers; nothing can be said beside a zero."""
    known = [peer for peer in peers if peer is not None]
    if ours is None or not known:
        return "-"
    above, below = (ours, max(known)) if figure.more_is_better else (min(known), ours)
    return f"{above / below:.2f}" if above and below else "-"
