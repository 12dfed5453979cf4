import json
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.peer_figures import collect, table

ROOT = Path(__file__).resolve().parent.parent.parent
OURS, BULKY, PLAIN = "ours:default", "bulky:fast", "plain"


def drained(rate, *, ok=True):
    return {"rate": rate, "rate_mid": rate, "cpu_us_worker": 1e6 / rate, "cpu_us_services": 50.0, "ok": ok}


def enqueued(rate):
    run = {"n": 1000, "rate": rate, "cpu": 0.1, "services_cpu": 0.2, "s": 1.0}
    return {"runs": [run], "median": run}


def killed(lost):
    run = {"lost": lost, "completed_twice": 0, "seconds": 20.0}
    return {"runs": [run], "median": run}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def lines_of(raw, *workloads):
    names = [OURS, BULKY, PLAIN]
    rows = table(collect(raw, names, workloads), names, workloads).splitlines()[2:]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)}


def test_rounds_are_summed_up_and_compared_with_the_best(tmp_path):
    for number, ours in enumerate((2000, 3000, 2400), 1):
        for name, rate in ((OURS, ours), (BULKY, 1200), (PLAIN, 600)):
            results = {"w1": enqueued(rate), "w7": killed(lost=number - 1 if name == OURS else 4)}
            if name != PLAIN:
                results["w2"] = enqueued(rate * 10)
            write(tmp_path / f"round-{number}" / f"{name.replace(':', '__')}.json", {"results": {"w2": None} | results})

    lines = lines_of(tmp_path, "w1", "w2", "w7")

    assert lines["W1 enqueue one by one, tasks/s"] == ["2 400", "1 200", "600", "2.00"]
    assert lines["W1 CPU a task, caller + services, µs"] == ["300", "300", "300", "1.00"]
    assert lines["W2 enqueue in bulk, tasks/s"] == ["24 000", "12 000", "-", "2.00"]
    assert lines["W7 lost after kill -9, worst round"] == ["2", "4", "4", "2.00"]
    assert lines["W7 completed twice, worst round"] == ["0", "0", "0", "-"]
    assert not any(label.startswith("W3") for label in lines)


def test_failures_are_told_and_not_counted(tmp_path):
    write(tmp_path / "round-1" / "ours__default.json", {"results": {"w1": enqueued(900)}})
    write(tmp_path / "round-1" / "bulky__fast.json", {"results": {"w1": {"error": "no such table"}}})
    write(tmp_path / "round-1" / "plain.json", {"error": "cannot be imported", "results": {}})
    in_turn = {OURS: [drained(1000)] * 3, BULKY: [drained(9000, ok=False), drained(500), drained(400)]}
    write(tmp_path / "interleaved" / "w3.json", in_turn)

    lines = lines_of(tmp_path, "w1", "w3")

    assert lines["W1 enqueue one by one, tasks/s"] == ["900", "failed", "failed", "-"]
    assert lines["W3 drain, tasks/s"] == ["1 000", "450 (1 of 3 failed)", "-", "2.22"]
    assert lines["W3 CPU a task, workers, µs"][-1] == "2.25"


def test_a_folder_that_is_no_harness_is_refused(tmp_path):
    (tmp_path / "bench.py").touch()
    command = [sys.executable, "tests/benchmarks", "peers", "--harness", str(tmp_path), "celery"]

    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert refused.returncode == 2
    assert f"{tmp_path} is no comparison harness: it lacks base.py, contenders, interleave.py" in refused.stderr
