"""The alert rules, run by promtool: each fault fires exactly its alert, and a healthy system fires none."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from queue_app.metrics.names import ALL, HISTOGRAM
from tests.support.programs import require

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "taskqueue_project/deploy/prometheus/alerts.yml"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}

#: An hour of a healthy system, a sample every 15 s, as two web processes show it.
HEALTHY = {
    'up{component="redis"}': "1x240",
    'up{component="postgresql"}': "1x240",
    "index_away_seconds": "0x240",
    'workers_total{status="active"}': "4x240",
    'queue_depth{queue="mail",priority="high"}': "900x240",
    'queue_depth{queue="mail",priority="low"}': "50x240",
    'queue_oldest_age_seconds{queue="mail",priority="low"}': "1400x240",
    'queue_active{queue="mail"}': "3x240",
    'queue_paused{queue="mail"}': "0x240",
    'task_transitions_total{status="completed"}': "0+20x240",
    'task_transitions_total{status="failed"}': "0+2x240",
    'task_transitions_total{status="dead_letter"}': "0+2x240",
    'tasks_dlq_total{reason="retries_exhausted"}': "0+2x240",
    "worker_capacity_used_ratio": "0.85x240",
    "scheduler_leading": "1x240",
    "index_ready": "1x240",
    'stalled{kind="not_started"}': "0x240",
    'stalls_total{kind="not_started"}': "0x80 1x160",
    "schedule_overdue_seconds": "45x240",
    'schedule_failures_in_a_row{schedule="nightly"}': "2x240",
    "workflow_held_seconds": "3500x240",
    'maintenance_age_seconds{job="promote"}': "60x240",
    'maintenance_age_seconds{job="purge"}': "100x240",
}


def since(minute: int, before: str, after: str) -> str:
    """Return samples with one value up to a minute and another value after it."""
    return f"{before}x{minute * 4 - 1} {after}x{239 - minute * 4}"


#: Alert -> (what is other than in health from minute 20 on, seconds later it has fired, seconds it may not have yet).
FAULTS = {
    "TaskQueueRedisDown": ({'up{component="redis"}': since(20, "1", "0")}, 90, 30),
    "TaskQueueIndexAway": (
        {"index_away_seconds": "0x79 15+15x160", 'up{component="redis"}': since(20, "1", "0")},
        90,
        30,
    ),
    "TaskQueuePostgreSQLDown": ({'up{component="postgresql"}': since(20, "1", "0")}, 90, 30),
    "TaskQueueNoActiveWorker": (
        {
            'workers_total{status="active"}': since(20, "4", "0"),
            'queue_active{queue="mail"}': since(20, "3", "0"),
            "worker_capacity_used_ratio": since(20, "0.85", "0"),
        },
        1200,
        100,
    ),
    "TaskQueueHighDepth": ({'queue_depth{queue="mail",priority="high"}': since(20, "900", "1001")}, 90, 30),
    "TaskQueueDepth": ({'queue_depth{queue="mail",priority="low"}': since(20, "50", "5001")}, 90, 30),
    "TaskQueueFailureRate": ({'task_transitions_total{status="failed"}': "0+2x79 160+10x160"}, 400, 30),
    "TaskQueueDeadLetters": ({'tasks_dlq_total{reason="retries_exhausted"}': "0+2x79 160+4x160"}, 240, 30),
    "TaskQueueSaturated": ({"worker_capacity_used_ratio": since(20, "0.85", "0.95")}, 660, 570),
    "TaskQueueLowWaiting": (
        {'queue_oldest_age_seconds{queue="mail",priority="low"}': since(20, "1400", "1501")},
        90,
        30,
    ),
    "TaskQueueNoScheduler": (
        {"scheduler_leading": since(20, "1", "0"), "schedule_overdue_seconds": since(20, "45", "900")},
        90,
        30,
    ),
    "TaskQueueIndexNotReady": ({"index_ready": since(20, "1", "0")}, 150, 90),
    "TaskQueueStalled": ({'stalled{kind="not_started"}': since(20, "0", "1")}, 90, 30),
    "TaskQueueStallsAgain": ({'stalls_total{kind="not_started"}': "0x79 4x160"}, 120, 30),
    "TaskQueueMaintenanceOverdue": ({'maintenance_age_seconds{job="promote"}': since(20, "60", "400")}, 90, 30),
    "TaskQueueScheduleOverdue": ({"schedule_overdue_seconds": since(20, "45", "61")}, 90, 30),
    "TaskQueueScheduleFails": ({'schedule_failures_in_a_row{schedule="nightly"}': since(20, "2", "3")}, 90, 30),
    "TaskQueueWorkflowHeld": ({"workflow_held_seconds": since(20, "3500", "3601")}, 90, 30),
    "TaskQueueNotConsumed": ({'queue_active{queue="mail"}': since(20, "3", "0")}, 660, 570),
}
#: Conditions that resemble a fault but fire no alert, at the end of the hour.
HARMLESS = {
    "paused on purpose": {
        'queue_active{queue="mail"}': since(20, "3", "0"),
        'queue_paused{queue="mail"}': since(20, "0", "1"),
    },
    "one failure in a quiet night": {
        'task_transitions_total{status="completed"}': "7x240",
        'task_transitions_total{status="failed"}': "0x200 1x39",
        'task_transitions_total{status="dead_letter"}': "0x240",
    },
    "no metrics at all": dict.fromkeys(HEALTHY, "_x240"),
}


@pytest.fixture(scope="session")
def promtool() -> str:
    return require("promtool")


def scenario(name: str, changed: dict[str, str], firing: dict[int, list[str]]) -> dict:
    """Return one test for promtool: exactly these alerts fire at this second."""
    series = HEALTHY | changed
    return {
        "name": name,
        "interval": "15s",
        "input_series": [
            {"series": _labelled(name, instance), "values": values}
            for name, values in series.items()
            for instance in ("web1", "web2")
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0',
                "eval_time": f"{second}s",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
            }
            for second, alerts in firing.items()
        ],
    }


def _labelled(name: str, instance: str) -> str:
    return name.replace("{", f'{{instance="{instance}",') if "{" in name else f'{name}{{instance="{instance}"}}'


@pytest.mark.slow
def test_each_fault_fires_its_alert_and_no_other(promtool, tmp_path):
    start = 20 * 60
    tests = [scenario("health", {}, {second: [] for second in (600, 1800, 3540)})]
    tests += [
        scenario(alert, changed, {start: [], start + not_yet: [], start + fired: [alert]})
        for alert, (changed, fired, not_yet) in FAULTS.items()
    ]
    tests += [scenario(name, changed, {3540: []}) for name, changed in HARMLESS.items()]
    suite = {"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": tests}
    path = tmp_path / "alerts_test.yml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    ran = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_fault_that_fires_it():
    assert set(FAULTS) == set(ALERTS)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_every_alert_has_a_page_that_tells_what_to_do(name):
    page = ROOT / ALERTS[name]["annotations"]["runbook"]
    text = page.read_text()
    assert f"`{name}`" in text.splitlines()[2]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it means", "What to look at", "What to do"]
    assert page.stem in (page.parent / "index.md").read_text()


def test_the_rules_use_metrics_that_exist():
    known = {metric.name for metric in ALL} | {f"{m.name}_count" for m in ALL if m.kind == HISTOGRAM}
    used = set()
    for rule in ALERTS.values():
        text = re.sub(r"\{[^}]*\}|\([a-z, ]*\)(?=\s*\()|by \([^)]*\)|on \([^)]*\)|\[\w+\]", " ", rule["expr"])
        used |= {word for word in re.findall(r"\b[a-z]\w*\b", text) if word not in WORDS}
    assert used <= known, used - known
    assert len(used) > 10


WORDS = {"min", "max", "sum", "by", "on", "and", "or", "unless", "increase", "rate"}
