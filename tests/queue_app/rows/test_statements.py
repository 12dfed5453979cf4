"""What holds for every statement of the rows."""

import re
from pathlib import Path

import pytest

from queue_app import rows
from queue_app.rows import waiting
from queue_app.rows.database import fetch_all

MODULES = sorted(Path(rows.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_column_is_compared_with_a_time_that_changes_from_row_to_row(module):
    """No index can be searched for such a time: a million rows would be read to find none."""
    assert not re.findall(r"[<>]=? *clock_timestamp\(\)", module.read_text())


def test_the_look_for_due_tasks_reads_what_is_due_only(db):
    fetch_all("SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)")
    plan = "\n".join(line for (line,) in fetch_all(f"EXPLAIN {waiting._DUE}", [100]))
    assert "Index Cond: (run_after <= statement_timestamp())" in plan
