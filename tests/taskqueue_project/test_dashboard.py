"""The Grafana dashboard: every panel asks for metrics that exist, in expressions that Prometheus parses."""

import json
import re
import subprocess
from pathlib import Path

from queue_app.metrics.names import ALL, HISTOGRAM
from tests.support.programs import require

DASHBOARD = Path(__file__).resolve().parent.parent.parent / "taskqueue_project/deploy/grafana/taskqueue.json"
BOARD = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
NAMES = {metric.name for metric in ALL} | {f"{metric.name}_bucket" for metric in ALL if metric.kind == HISTOGRAM}


def test_panels_say_what_they_show_and_do_not_overlap():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_it_asks_for_metrics_that_exist_and_for_nearly_all_of_them():
    used = {word for text in EXPRESSIONS for word in re.findall(r"[a-z]\w+", text) if word in NAMES}
    for text in EXPRESSIONS:
        assert any(word in NAMES for word in re.findall(r"[a-z]\w+", text)), text
    used_metrics = {name.removesuffix("_bucket") for name in used}
    assert {metric.name for metric in ALL} - used_metrics <= {
        "queue_paused", "tasks_delayed_total", "worker_heartbeat_failures_total", "index_generation",
        "index_rebuild_seconds", "scheduler_leader_age_seconds", "task_duration_seconds", "queue_age_seconds",
        "task_state_total", "limit_value", "limit_run_time_ratio", "limits_adapted_total", "index_way",
    }  # fmt: skip


def test_prometheus_parses_every_expression(tmp_path):
    promtool = require("promtool")
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$queue", ".*")} for number, text in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    ran = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(EXPRESSIONS)} rules found" in ran.stdout
