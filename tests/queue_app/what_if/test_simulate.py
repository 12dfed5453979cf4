"""``simulate`` compares what happened with what would have happened; it touches neither rows nor the index."""

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from queue_app.exceptions import InvalidTaskData, OperationEnded, SimulationRefused
from queue_app.index import get_index
from queue_app.models import Limit, Queue, QueueStats, Task, TaskAttempt, Worker
from queue_app.what_if import (
    engine as engine_module,
    index as simulated,
    recorded,
    scenario as parts,
    simulate as module,
)
from queue_app.what_if.plan import Load
from queue_app.what_if.recorded import record
from queue_app.what_if.simulate import simulate
from tests.support.engine import put_many
from tests.support.factories import AttemptFactory, TaskFactory, WorkerFactory
from tests.support.faults import failing
from tests.support.index_state import client_of
from tests.support.recorded import history, last_window

HOUR = timedelta(hours=1)


@pytest.fixture
def window():
    return last_window()


def snapshot() -> tuple:
    index = get_index()
    keys = sorted(key for key in client_of(index).scan_iter(match=index.keys.everything))
    return keys, [sorted(map(str, model.objects.values_list())) for model in (Task, Queue, Limit, Worker)]


def test_the_unchanged_simulation_agrees_with_what_happened(engine, window):
    history(window)
    answer = simulate({}, since=window[0], until=window[1])
    assert answer["calibration"]["agrees"], answer["calibration"]
    actual, simulated_waits = answer["actual"]["waits"], answer["unchanged"]["waits"]
    assert actual["queue"]["imports"]["p95"] > 60, "the recorded work waited"
    assert set(actual) == {"band", "queue", "type", "user"}
    assert simulated_waits["user"]["user-mail"]["tasks"] == actual["user"]["user-mail"]["tasks"]
    assert "changed" not in answer
    json.dumps(answer)


def test_purged_workers_are_inferred_and_said(engine, window):
    history(window, workers=False)
    answer = simulate({}, since=window[0], until=window[1])
    assert answer["calibration"]["agrees"], answer["calibration"]
    assert any("rows of 1 workers were purged" in note for note in answer["notes"])


def test_a_higher_cap_is_put_into_words(engine, window):
    history(window)
    limits = {"queue:imports": {"max_concurrent": 4}}
    answer = simulate({"limits": limits}, since=window[0], until=window[1])
    before, after = (answer[name]["waits"]["queue"]["imports"]["p95"] for name in ("unchanged", "changed"))
    assert after < 0.7 * before
    [words] = [text for text in answer["words"] if text.startswith("imports:")]
    assert "less" in words


def test_a_burst_at_noon_workers_bands_and_a_pause(engine, window):
    history(window, tasks=100)
    burst = {"queue": "imports", "task_type": "shop.imports", "count": 300, "at": "30m", "over": "1m", "runs": 5}
    base = simulate({"load": [burst]}, since=window[0], until=window[1])
    assert base["changed"]["waits"]["queue"]["imports"]["tasks"] > 300
    assert base["changed"]["waits"]["queue"]["imports"]["p95"] > base["unchanged"]["waits"]["queue"]["imports"]["p95"]
    more = {"workers": [{"count": 2, "slots": 10}], "limits": {"queue:imports": {"max_concurrent": 22}}}
    helped = simulate({"load": [burst]} | more, since=window[0], until=window[1])
    assert helped["changed"]["waits"]["queue"]["imports"]["p95"] < base["changed"]["waits"]["queue"]["imports"]["p95"]
    pause = {"pauses": [{"limit": "queue:mail", "at": "10m", "lasts": "20m"}]}
    paused = simulate(pause, since=window[0], until=window[1])
    assert paused["changed"]["waits"]["queue"]["mail"]["worst"] > 600
    urgent = simulate({"priorities": {"shop.mail": "background"}}, since=window[0], until=window[1])
    moved = [urgent[name]["waits"]["band"] for name in ("actual", "unchanged", "predicted")]
    assert [{band: waits["tasks"] for band, waits in run.items()} for run in moved] == [
        {band: waits["tasks"] for band, waits in moved[0].items()}
    ] * 3, "tasks that change bands are compared with themselves"


def test_it_touches_neither_rows_nor_the_index(engine, window):
    history(window, tasks=50)
    put_many(3)
    before = snapshot()
    simulate({"limits": {"everything": {"max_concurrent": 1}}}, since=window[0], until=window[1])
    assert snapshot() == before


def test_on_the_server_of_the_index_it_leaves_nothing(engine, window, monkeypatch):
    history(window, tasks=50)
    put_many(3)
    monkeypatch.setattr(simulated, "_program", lambda: None)
    with pytest.raises(SimulationRefused, match="needs a server of its own"):
        simulate({}, since=window[0], until=window[1])
    before, all_keys = snapshot(), client_of(get_index()).dbsize()
    answer = simulate({}, since=window[0], until=window[1], shared_server=True)
    assert answer["calibration"]["agrees"]
    assert snapshot() == before
    assert client_of(get_index()).dbsize() == all_keys


def test_a_killed_simulation_leaves_no_server(engine, process_env, tmp_path):
    script = (
        "import django; django.setup()\n"
        "from queue_app.what_if.index import simulated_index\n"
        "with simulated_index() as index:\n"
        "    print(index._client.info('server')['process_id'], flush=True)\n"
        "    input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=process_env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    server = psutil.Process(int(child.stdout.readline()))
    child.kill()
    child.communicate()
    server.wait(timeout=60)
    assert not server.is_running()


def test_retries_and_what_has_not_ended_take_their_slots(engine, window):
    history(window, tasks=60)
    at = window[0] + timedelta(minutes=1)
    AttemptFactory(task=Task.objects.first(), attempt=0, started_at=at, finished_at=at + timedelta(minutes=3))
    TaskFactory(queue="mail", task_type="shop.mail", created_at=window[0])
    answer = simulate({}, since=window[0], until=window[1])
    assert answer["recorded_attempts"] == Task.objects.count() + TaskAttempt.objects.count()
    assert "Tasks that have not ended (1) run as long as the median of their type." in answer["notes"]


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ({"limit": {}}, "A scenario has no part 'limit'"),
        ({"limits": {"mail": {}}}, "names no limit"),
        ({"limits": {"queue:mail": {"cap": 3}}}, "has no 'cap'"),
        ({"limits": {"everything": {"rate_count": 5, "rate_seconds": 1}}}, "everything has no 'rate_count'"),
        ({"limits": {"type:shop.mail": {"fair_by": "user"}}}, "type:shop.mail has no 'fair_by'"),
        ({"limits": {"queue:mail": {"max_concurrent": 0}}}, "max_concurrent must be a whole number above 0"),
        ({"limits": {"queue:mail": {"max_concurrent": "5"}}}, "not '5'"),
        ({"limits": {"queue:mail": {"rate_count": 5}}}, "a rate needs"),
        ({"limits": []}, "must hold a table"),
        ({"bands": {"urgent": {}}}, "is no band"),
        ({"workers": {"count": 2}}, "must be a list"),
        ({"workers": [{"cores": 2}]}, "workers has no 'cores'"),
        ({"pauses": [{"limit": "queue:mail", "at": "noon"}]}, "at must be a time"),
        ({"load": [{"at": "99999999999999d"}]}, "at must be a time up to 366d"),
        ({"workers": [{"at": "2h", "until": "1h"}]}, "until must come after at"),
        ({"load": [{"count": 10**9}]}, "at most 1e+06"),
        ({"load": [{"count": None}]}, "count must be a whole number"),
        ({"load": [{"weight": None}]}, "weight must be a whole number"),
        ({"workers": [{"slots": None}]}, "slots must be a whole number"),
        ({"load": [{"user": datetime(2020, 1, 1, tzinfo=UTC)}]}, "must hold tables"),
        ({"load": [{"queue": "a\x1fb"}]}, "none of them invisible"),
        ({"load": [{"capabilities": "gpu"}]}, "must be a list of names"),
        ({"limits": {"queue:mail": {"fair_by": "planet"}}}, "fair_by cannot be 'planet'"),
        ({"limits": {"queue:mail": {"paused": "yes"}}}, "paused cannot be"),
        ({"limits": {"queue:mail": {"max_concurrent": 2.5}}}, "must be a whole number"),
        ({"workers": [{"count": 100000, "slots": 100000}]}, "at most 100000 slots"),
        ({"priorities": ["low"]}, "must hold a band"),
        ({"bands": {"low": {"promote_after_seconds": float("nan")}}}, "must be a number"),
    ],
)
def test_a_scenario_without_sense_is_refused(engine, window, scenario, said):
    history(window, tasks=20)
    with pytest.raises(InvalidTaskData) as error:
        simulate(scenario, since=window[0], until=window[1])
    assert said in str(error.value)


def test_too_many_tasks_are_refused(engine, window, override):
    assert parts.MAX_TASKS == 5_000_000
    override(parts, MAX_TASKS=5_000)
    history(window, tasks=20)
    with pytest.raises(InvalidTaskData, match="at most 5,000 tasks, not 5,020"):
        simulate({"load": [{"count": 1_000}] * 5}, since=window[0], until=window[1])


def test_a_window_is_refused_before_its_tasks_are_read(engine, window, override):
    """Waiting tasks count too: they stand in the way of the others."""
    history(window, tasks=20)
    put_many(3)
    Task.objects.filter(status="queued").update(queued_at=window[0])
    override(recorded, MAX_TASKS=23)
    assert record(*window).plan.load
    override(recorded, MAX_TASKS=22)
    with (
        failing(recorded.rows, "tasks"),
        pytest.raises(SimulationRefused, match="more than 22 tasks: choose a shorter one"),
    ):
        record(*window)


@pytest.mark.parametrize("scenario", [{"load": [{"count": 3_000}] * 2}, {"load": [{"count": 10}, {"count": -1}]}])
def test_a_scenario_is_refused_before_its_tasks_are_made(override, scenario):
    override(parts, MAX_TASKS=5_000)
    with failing(Load, "add"), pytest.raises(InvalidTaskData):
        parts.changed(parts.empty(0, 60.0), scenario)


def test_an_empty_or_future_window_is_refused(engine, window):
    with pytest.raises(SimulationRefused, match="No task ended"):
        simulate({}, since=window[0], until=window[1])
    with pytest.raises(SimulationRefused, match="must begin before it ends"):
        simulate({}, since=window[1], until=window[0])


def test_a_written_scenario_needs_no_window(engine, tmp_path, capsys):
    path = tmp_path / "peak.toml"
    path.write_text("""
seconds = 3600
[[workers]]
slots = 2
[limits."queue:imports"]
max_concurrent = 1
[[load]]
queue = "imports"
count = 10
runs = "30s"
[[load]]
queue = "mail"
count = 5
runs = 10
""")
    call_command("taskqueue", "simulate", "--scenario", str(path), "--by", "queue")
    text = capsys.readouterr().out
    assert "imports" in text
    assert "with the changes: 15 attempts, 5% of the slots in use, drained at" in text
    call_command("taskqueue", "simulate", "--scenario", str(path), "--set", "queue:imports.max_concurrent=2", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["changed"]["waits"]["queue"]["imports"]["worst"] < 200


@pytest.mark.parametrize("seconds", [1e308, float("nan"), 0, -1, "soon", "400d"])
def test_a_scenario_has_a_length_that_a_clock_can_count(engine, seconds):
    with pytest.raises(InvalidTaskData, match="seconds"):
        simulate({"load": [{"queue": "a"}]}, seconds=seconds)


def test_an_error_of_the_report_ends_both_runs(engine, window, override):
    override(module, REPORT_SECONDS=0.001)
    history(window, tasks=300)

    def stop(what: str, _share: float) -> None:
        if what != "reading":
            raise OperationEnded("stopped")

    with pytest.raises(OperationEnded):
        simulate({"limits": {"queue:mail": {"max_concurrent": 1}}}, since=window[0], until=window[1], report=stop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("simulation")]


def test_what_never_starts_is_said_and_no_wait_is_made_up(engine):
    heavy = {"queue": "a", "count": 5, "weight": 50}
    answer = simulate({"load": [heavy], "workers": [{"slots": 1}]}, seconds=60)
    assert answer["words"] == ["a: new; of 5 tasks, 5 never start."]


def test_a_name_that_no_task_has_is_said(engine, window):
    history(window, tasks=20)
    scenario = {
        "limits": {"queue:imprts": {"max_concurrent": 3}, "queue:imports": {"max_concurrent": 3}},
        "priorities": {"shop.tasks.nothing": "low"},
    }
    notes = " ".join(simulate(scenario, since=window[0], until=window[1])["notes"])
    assert "queue:imprts: no task of the simulation has this name." in notes
    assert "type:shop.tasks.nothing: no task" in notes
    assert "queue:imports" not in notes


def test_the_command_shows_actual_beside_simulated(engine, window, capsys):
    history(window, tasks=100)
    since, until = (at.isoformat() for at in window)
    call_command(
        "taskqueue", "simulate", "--since", since, "--until", until, "--set", "queue:imports.max_concurrent=1",
        "--workers", "1x4",
    )  # fmt: skip
    text = capsys.readouterr().out
    assert "p95 actual" in text
    assert "p95 predicted" in text
    assert "calibration: The simulation of the recorded period agrees" in text
    assert "imports: " in text


def test_a_changed_limit_is_named_where_none_of_its_tasks_ended(engine, window):
    """A queue whose tasks all fail and wait for a retry has attempts, and no waits."""
    history(window, tasks=40)
    Worker.objects.update(task_types=["shop.err", "shop.imports", "shop.mail"], concurrency=40)
    failing_task = TaskFactory(queue="err", task_type="shop.err", status="scheduled", created_at=window[0])
    for number in range(30):
        at = window[0] + timedelta(minutes=number)
        AttemptFactory(task=failing_task, attempt=number, started_at=at, finished_at=at + timedelta(hours=1))
    answer = simulate({"limits": {"queue:err": {"max_concurrent": 1}}}, since=window[0], until=window[1])
    [words] = [text for text in answer["words"] if text.startswith("queue:err: ")]
    attempts, never = answer["changed"]["attempts_by_limit"]["queue:err"]
    assert words == (
        "queue:err: none of its tasks ended in the window, so their waits are not known."
        f" Of {attempts} attempts, {never} never start (0 without the changes)."
    )
    assert attempts == 30
    assert never == answer["changed"]["starved"] > 0
    assert [row[2] for row in list(module.table(answer, "limit"))[1:]] == ["-"], "no made-up 0 s"


def test_an_outage_of_the_scheduler_is_noted(engine, window):
    history(window, tasks=20)
    queue, minute = Queue.objects.order_by("created_at").first().name, timedelta(minutes=1)
    QueueStats.objects.create(queue=queue, taken_at=window[0] + 15 * minute, depth={})
    assert "scheduler" not in " ".join(simulate({}, since=window[0], until=window[0] + 18 * minute)["notes"]), "too new"
    at = [window[0] + number * minute for number in range(-5, 120) if not 30 <= number < 50 and number != 15]
    QueueStats.objects.bulk_create(QueueStats(queue=queue, taken_at=each, depth={}) for each in at)
    notes = simulate({}, since=window[0], until=window[1])["notes"]
    away = f"No scheduler ran from {window[0] + 29 * minute:%Y-%m-%d %H:%M} to {window[0] + 50 * minute:%H:%M} UTC"
    assert [note.startswith(away) for note in notes if "scheduler" in note] == [True]


def recorded_by(slots: int, *, gap: float, tasks: int = 200) -> None:
    """Record tasks of 1 s that came together, with idle time in their slots between them."""
    since = last_window()[0]
    worker = WorkerFactory(name="slow", task_types=["shop.b"], concurrency=slots, started_at=since)
    for number in range(tasks):
        began = since + timedelta(seconds=10 + (number // slots) * (1 + gap))
        task = TaskFactory(queue="b", task_type="shop.b", status="completed", created_at=since, worker_id=worker.id)
        Task.objects.filter(pk=task.pk).update(
            queued_at=since + timedelta(seconds=10), started_at=began, finished_at=began + timedelta(seconds=1)
        )


def test_the_time_between_two_tasks_of_a_slot_counts(engine, window):
    """Without it, each wait behind busy workers would be predicted too short."""
    recorded_by(2, gap=0.5)
    answer = simulate({}, since=window[0], until=window[1])
    assert answer["calibration"]["agrees"], answer["calibration"]
    assert "A slot takes 500 ms from one task to the next: each run is that much longer." in answer["notes"]


def test_the_prediction_is_corrected_by_the_calibration(engine, window):
    """A change that changes nothing predicts what happened, also where the simulation is wrong by itself."""
    history(window)
    Task.objects.filter(queue="imports").update(started_at=F("started_at") + timedelta(minutes=4))
    same = {"limits": {"queue:imports": {"max_concurrent": 2}}}
    answer = simulate(same, since=window[0], until=window[1])
    predicted, actual = (answer[name]["waits"]["queue"]["imports"] for name in ("predicted", "actual"))
    assert not answer["calibration"]["agrees"]
    assert answer["unchanged"]["waits"]["queue"]["imports"]["p50"] < 0.9 * actual["p50"]
    assert predicted["p50"] == pytest.approx(actual["p50"])
    assert "low p50" in module.calibration_words(answer)
    assert "The prediction is corrected by these differences." in module.calibration_words(answer)
    assert answer["words"] == ["No difference: imports, mail."]


def test_progress_goes_on_while_waiting_tasks_start(engine, window, override):
    """A thousand tasks that come at once are all there at the first turn; most of the time goes into their starts."""
    override(engine_module, REPORT_TURNS=1)
    override(module, REPORT_SECONDS=0.001)
    shares = []
    burst = {"queue": "a", "count": 2_000, "runs": 1}
    simulate(
        {"load": [burst], "workers": [{"slots": 2}]}, seconds=3600,
        report=lambda what, share: shares.append(share) if what == "changed" else None,
    )  # fmt: skip
    assert shares == sorted(shares)
    assert len({round(share, 2) for share in shares if share > 0.5}) > 5


@pytest.mark.parametrize("option", [["--set", "max_concurrent=5"], ["--workers", "many"], ["--last", "soon"]])
def test_wrong_options_are_refused(engine, option):
    with pytest.raises(CommandError):
        call_command("taskqueue", "simulate", *option)
