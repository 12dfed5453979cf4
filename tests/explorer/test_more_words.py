"""What is said twice, what three do at once, and pauses: drawn anew for each run; ``./dev explore`` tries more."""

import secrets

import pytest

from tests.explorer.meetings import Meeting, sample
from tests.explorer.said_twice import COMMANDS
from tests.explorer.search import search
from tests.explorer.three import search_three
from tests.explorer.twins import TWINS, broken, find_twin

pytestmark = pytest.mark.slow
#: How long each part is tried. A loaded machine tries only its first schedules, each of which is judged.
SECONDS = 6.0


def test_a_command_that_is_said_twice_changes_nothing_the_second_time(explorer):
    seed = secrets.randbelow(10**8)
    print(f"seed {seed}: ./dev explore --twice --seed {seed} goes the same way")
    wanted = [each for each in sample(seed) if set(each.names) & set(COMMANDS)]
    tally = search(explorer, wanted, seconds=SECONDS)
    assert tally.schedules > 0
    assert not tally.findings, "\n\n".join(map(str, tally.findings))


def test_three_actors_break_no_promise(explorer):
    seed = secrets.randbelow(10**8)
    print(f"seed {seed}: ./dev explore --three 100 --seed {seed} goes the same way")
    tally = search_three(explorer, seed, seconds=SECONDS)
    assert tally.schedules > 0
    assert not tally.findings, "\n\n".join(map(str, tally.findings))


@pytest.mark.parametrize("twin", ["replay-once", "cancel-once"])
def test_a_second_delivery_that_changes_something_is_seen(explorer, twin):
    finding, schedules, _ = find_twin(explorer, twin)
    assert finding is not None, f"missed in {schedules} schedules"
    assert any("said twice, it changed more" in problem for problem in finding.problems)


def test_a_tick_of_a_pause_that_ended_is_seen_to_run(explorer):
    finding, schedules, _ = find_twin(explorer, "pause-end")
    assert finding is not None, f"missed in {schedules} schedules"


def test_a_retry_by_the_id_of_the_task_is_not_the_same_once_it_has_failed_again(explorer):
    """As the documentation says. A replay by the id of the dead letter is."""
    by_task = search(explorer, [Meeting(("retry_twice", "fail_next"), "dead")], faults=())
    assert "queue_app_task update status" in str(by_task.findings[0])


def test_what_only_three_show_is_found_among_schedules_that_are_drawn(explorer):
    with broken("flow-lock"):
        tally = search_three(explorer, 1, count=20, faults=(), meetings=TWINS["flow-lock"].meetings)
    assert tally.findings
