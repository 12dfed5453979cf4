"""Simulate a window or a scenario, as it was and with changes, and compare both with what happened."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final

from django.utils.translation import gettext_noop as _noop

from queue_app.core.sentence import joined, listed, sentence
from queue_app.exceptions import InvalidTaskData, SimulationRefused
from queue_app.models import PriorityPolicy
from queue_app.sql.database import alias
from queue_app.what_if.engine import Engine
from queue_app.what_if.index import SimulatedIndex, simulated_index
from queue_app.what_if.plan import NEVER, SECOND, Load, Plan, Starts, Waits, agreement, corrected, span, waits_by
from queue_app.what_if.recorded import record
from queue_app.what_if.scenario import changed, check, empty, gates_of, idle_names

type Report = Callable[[str, float], None]

#: Interval of the reports while simulations run.
REPORT_SECONDS: Final = 0.2
#: Smallest difference of waits (s) that is put into words.
WORTH_SAYING: Final = 1.0
_HALF_LONGER: Final = _noop("half wait %(time)s longer (%(now)s)")
_HALF_LESS: Final = _noop("half wait %(time)s less (%(now)s)")
_MOST_LONGER: Final = _noop("95 %% wait %(time)s longer (%(now)s)")
_MOST_LESS: Final = _noop("95 %% wait %(time)s less (%(now)s)")


def simulate(  # noqa: PLR0913 - by name
    scenario: Mapping[str, Any],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    seconds: float | str = 86_400.0,
    shared_server: bool = False,
    report: Report = lambda _what, _share: None,
) -> dict[str, Any]:
    """Return the waits of a window as plain data: actual, simulated unchanged (the calibration), and with the changes.

    ``predicted`` are the waits with the changes, corrected by how far those of ``unchanged`` are from the actual ones.
    Without a window, the scenario brings its own load, for ``seconds``. ``report`` receives the name of the run and its
    progress; it may raise an error to cancel. Raises ``InvalidTaskData`` and ``SimulationRefused``. Writes nothing.
    """
    check(scenario)
    notes: tuple[str, ...] = ()
    if since is not None and until is not None:
        report("reading", 0.0)
        found = record(since, until, lambda share: report("reading", share))
        plan, notes = found.plan, found.notes
    else:
        plan = empty(round(time.time() * SECOND), seconds)
        if not scenario.get("load"):
            raise InvalidTaskData("load", "Without a window, the scenario must bring a load.")
    gates = gates_of(scenario)
    targets = dict(PriorityPolicy.objects.using(alias()).values_list("priority", "target_seconds"))
    answer: dict[str, Any] = {
        "from": _time(plan.begin), "to": _time(plan.end), "recorded_attempts": len(plan.load),
        "changes": dict(scenario), "notes": list(notes),
    }  # fmt: skip
    if len(plan.load):
        answer["actual"] = {"waits": waits_by(plan, plan.load.waited, targets, gates, recorded=True)}
    runs = {"unchanged": plan} if len(plan.load) else {}
    if scenario:
        runs["changed"] = changed(plan, scenario)
        idle = idle_names(runs["changed"], scenario)
        answer["notes"] += [sentence("%(name)s: no task of the simulation has this name.", name=name) for name in idle]
    for name, (outcome, took) in _together(runs, shared_server=shared_server, report=report).items():
        report("counting", len(answer.keys() & runs.keys()) / len(runs))
        answer[name] = _described(runs[name], outcome, targets, gates) | {"took_seconds": round(took, 1)}
    if "actual" in answer:
        answer["calibration"] = agreement(answer["actual"]["waits"]["band"], answer["unchanged"]["waits"]["band"])
    if scenario:
        answer["predicted"] = {"waits": _corrected(answer)}
        answer["words"] = list(words_of(answer))
    return answer


def _corrected(answer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    before, real = (answer.get(name, {}).get("waits", {}) for name in ("unchanged", "actual"))
    return {
        by: {
            name: corrected(waits, before.get(by, {}).get(name), real.get(by, {}).get(name))
            for name, waits in groups.items()
        }
        for by, groups in answer["changed"]["waits"].items()
    }


def _together(runs: Mapping[str, Plan], *, shared_server: bool, report: Report) -> dict[str, tuple[Starts, float]]:
    """Run plans at the same time, each in a thread; return outcomes and seconds.

    This thread starts the servers, as forking is safe only before there are others, and calls ``report``, which may use
    the database. An error of it ends all runs.
    """
    shares, is_over = dict.fromkeys(runs, 0.0), threading.Event()

    def run(name: str, index: SimulatedIndex) -> tuple[Starts, float]:
        def note(share: float) -> None:
            shares[name] = share
            if is_over.is_set():
                raise SimulationRefused("The simulation was stopped.")

        began = time.monotonic()
        outcome = Engine(index, runs[name], real_now=round(time.time() * SECOND), report=note).run()
        return outcome, time.monotonic() - began

    with ExitStack() as stack:
        servers = {name: stack.enter_context(simulated_index(shared_server=shared_server)) for name in runs}
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(runs)), "simulation"))
        stack.callback(is_over.set)
        futures = {name: pool.submit(run, name, index) for name, index in servers.items()}
        while wait(futures.values(), REPORT_SECONDS, FIRST_EXCEPTION).not_done:
            if any(future.done() and future.exception() for future in futures.values()):
                break
            name = min(shares, key=shares.__getitem__)
            report(name, shares[name])
        return {name: future.result() for name, future in sorted(futures.items(), key=lambda each: not each[1].done())}


def _described(
    plan: Plan, outcome: Starts, targets: Mapping[int, float | None], gates: Mapping[str, str]
) -> dict[str, Any]:
    started = sum(plan.begin <= at < plan.end for at in outcome.started)
    return {
        "attempts": len(plan.load),
        "waits": waits_by(plan, _waits(plan.load, outcome), targets, gates),
        "attempts_by_limit": {name: _attempts(plan.load, outcome, gate) for name, gate in gates.items()},
        "utilisation": round(outcome.utilisation, 4),
        "starts_per_second": round(started * SECOND / (plan.end - plan.begin), 4),
        "starved": outcome.started.count(NEVER),
        "drained_at": _time(outcome.drained_at) if outcome.drained_at else None,
        "exact_to_seconds": 2 * outcome.resolution / SECOND,  # as measured near saturation
    }


def _attempts(load: Load, outcome: Starts, gate: str) -> tuple[int, int]:
    """Return how many attempts pass a gate, and how many of them never start."""
    passes = [kind.passes(gate) for kind in load.kinds]
    started = [at for kind, at in zip(load.kind, outcome.started, strict=True) if passes[kind]]
    return len(started), started.count(NEVER)


def _waits(load: Load, outcome: Starts) -> list[int]:
    return [NEVER if at == NEVER else at - queued for at, queued in zip(outcome.started, load.queued_at, strict=True)]


def words_of(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the changes do, as sentences: to the waits of each queue, and at limits without recorded waits."""
    yield from _words_of_queues(answer)
    yield from _words_of_limits(answer)


def _words_of_queues(answer: Mapping[str, Any]) -> Iterator[str]:
    before, same = answer.get("actual", {}).get("waits", {}).get("queue", {}), []
    for queue, now in changed_first(answer, answer["predicted"]["waits"]["queue"]):
        starved = now["starved"]
        if queue not in before:
            parts = [_waits_in_words(now)] if now["tasks"] > starved else []
            parts += [sentence("%(n)s never start", n=starved)] if starved else []
            yield sentence("%(queue)s: new; of %(n)s tasks, %(what)s.", queue=queue, n=now["tasks"], what=listed(parts))
            continue
        parts = []
        for name, longer, less in (("p50", _HALF_LONGER, _HALF_LESS), ("p95", _MOST_LONGER, _MOST_LESS)):
            difference = now[name] - before[queue][name]
            if abs(difference) >= max(WORTH_SAYING, 0.05 * before[queue][name]):
                values = {"time": span(abs(difference)), "now": span(now[name])}
                parts.append(sentence(longer if difference > 0 else less, **values))
        starved -= answer["unchanged"]["waits"]["queue"].get(queue, now)["starved"]
        parts += [sentence("%(n)s more tasks never start", n=starved)] if starved > 0 else []
        if not parts and 0 < now["tasks"] <= now["starved"]:
            parts = [sentence("%(n)s never start", n=now["starved"])]
        if parts:
            yield sentence("%(queue)s: %(what)s.", queue=queue, what=listed(parts))
        else:
            same.append(queue)
    if same:
        yield sentence("No difference: %(queues)s.", queues=listed(same))


def changed_first[T](answer: Mapping[str, Any], by_queue: Mapping[str, T]) -> list[tuple[str, T]]:
    """Return what there is of each queue, that of queues whose limits the scenario changes first."""
    limits = answer["changes"].get("limits", {})
    return sorted(by_queue.items(), key=lambda each: f"queue:{each[0]}" not in limits)


def _waits_in_words(now: Mapping[str, Any]) -> str:
    return sentence("95 %% of %(n)s wait at most %(time)s", n=now["tasks"] - now["starved"], time=span(now["p95"]))


def _words_of_limits(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what becomes of the attempts at each changed limit whose tasks have no recorded waits."""
    for name, (attempts, never) in answer["changed"]["attempts_by_limit"].items():
        if attempts and not answer["changed"]["waits"]["limit"].get(name, {}).get("tasks"):
            before = answer["unchanged"]["attempts_by_limit"][name][1] if "unchanged" in answer else 0
            yield sentence(
                "%(limit)s: none of its tasks ended in the window, so their waits are not known. Of %(n)s attempts,"
                " %(never)s never start (%(before)s without the changes).",
                limit=name, n=attempts, never=never, before=before,
            )  # fmt: skip


def calibration_words(answer: Mapping[str, Any]) -> str:
    """Return how far the simulation of the recorded period itself is from what happened; empty without one."""
    if "calibration" not in answer:
        return ""
    off = [
        sentence("%(band)s %(simulated)s instead of %(actual)s", band=name, simulated=span(each["simulated"] or 0.0),
                 actual=span(each["actual"]))
        for name, each in answer["calibration"]["bands"].items() if not each["agrees"]
    ]  # fmt: skip
    if not off:
        return sentence(
            "The simulation of the recorded period agrees with what happened, within 10 %% or 0.05 s (p50 and p95 by"
            " band)."
        )
    differs = sentence(
        "The simulation of the recorded period differs from what happened: it has %(waits)s.", waits=listed(off)
    )
    is_corrected = "predicted" in answer
    return joined(differs, sentence("The prediction is corrected by these differences.") if is_corrected else "")


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / SECOND, UTC).isoformat(timespec="seconds")


def table(answer: Mapping[str, Any], by: str) -> Iterator[list[str]]:
    """Yield rows that show actual, unchanged and changed waits side by side."""
    names = [name for name in ("actual", "unchanged", "predicted") if name in answer]
    shares = ("p50", "p95", "p99", "worst")
    yield [by, "tasks", *(f"{share} {name}" for share in shares for name in names), "never start"]
    groups = {group: None for name in reversed(names) for group in answer[name]["waits"].get(by, {})}
    none = Waits.of([])._asdict()
    for group in groups:
        found = [answer[name]["waits"].get(by, {}).get(group, none) for name in names]
        values = [
            _figure(each[share]) if each["tasks"] > each["starved"] else "-" for share in shares for each in found
        ]
        yield [group, str(found[-1]["tasks"]), *values, str(found[-1]["starved"])]


def _figure(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"  # noqa: PLR2004 - three digits
