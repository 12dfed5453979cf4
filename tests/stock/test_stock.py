"""What the stock scenes are made of: every pair of values, and a canary that sees what it is there for."""

import json
from itertools import combinations, product

from tests.stock import plans
from tests.stock.__main__ import FACTORS, scenes


def test_six_scenes_hold_every_pair_of_values():
    played = list(scenes())
    assert len(played) == 6
    for one, other in combinations(FACTORS, 2):
        seen = {(scene[one], scene[other]) for scene in played}
        assert seen == set(product(FACTORS[one], FACTORS[other]))


def test_the_canary_sees_compiled_plans_and_those_that_read_a_large_table(tmp_path):
    def plan(query, *nodes, **more):
        found = {
            "Node Type": "Result",
            "Total Cost": 1e10,
            "Plans": [{"Node Type": "Seq Scan", **node} for node in nodes],
        }
        text = json.dumps({"Query Text": query, "Plan": found, **more}, indent=2).replace("\n", "\n\t")
        return f"2026-11-23 18:00:00.000 UTC [7] LOG:  duration: 0.093 ms  plan:\n\t{text}\n"

    task, queue = {"Relation Name": "queue_app_task"}, {"Relation Name": "queue_app_queue"}
    log = tmp_path / "log"
    log.write_text(
        plan("SELECT 1 FROM queue_app_queue", queue)
        + plan("SELECT 1 FROM django_session", JIT={"Functions": 7})
        + plan("SELECT 2 FROM queue_app_task", queue, JIT={"Functions": 65})
        + plan("SELECT 3 FROM queue_app_task", queue, task)
    )
    assert plans.problems(plans.logged(log), {"queue_app_task"}) == {
        "compiled for a cost of 1e+10: SELECT 2 FROM queue_app_task",
        "reads all of queue_app_task: SELECT 3 FROM queue_app_task",
    }
