"""All faults, in the order in which the long form runs them."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.faults import (
    claims,
    clients,
    clocks,
    damage,
    deaths,
    detours,
    disks,
    edits,
    failover,
    flows,
    machines,
    network,
    outages,
    stalls,
)
from tests.integration.faults.run import Run
from tests.integration.faults.starts import start

type Fault = Callable[[Run], None]


def nothing(run: Run) -> None:
    """Disturb nothing; the order in each lane must hold too."""
    run.load()
    start(run)
    run.reach(1)
    assert run.inversions() == []


FAULTS: list[Fault] = [
    nothing,
    deaths.kill_children,
    deaths.kill_supervisor,
    deaths.kill_everything,
    deaths.stop_and_continue,
    outages.flush,
    outages.flush_every_second,
    outages.restart_valkey,
    outages.valkey_away,
    outages.restart_postgres,
    outages.cut_connections,
    outages.stop_postgres,
    outages.use_up_connections,
    outages.pause_valkey,
    *detours.FAULTS,
    failover.fail_over,
    *claims.FAULTS,
    disks.fill_disk_of_postgres,
    disks.fill_disk_of_valkey,
    *network.FAULTS,
    machines.machine_vanishes,
    deaths.suspend_host,
    deaths.freeze_everything,
    deaths.kill_scheduler,
    deaths.kill_celery,
    deaths.two_of_everything,
    clients.half_sent_requests,
    flows.workflows,
    edits.edit_limits,
    *damage.FAULTS,
    clocks.valkey_clock_ahead,
    clocks.valkey_clock_back,
    clocks.postgres_clock_ahead,
    clocks.postgres_clock_back,
    clocks.clocks_of_machines,
    stalls.work_stands_still,
    stalls.nothing_stands_still,
]

#: The longest standstill that a fault may cause, in seconds, while the servers that work needs are there.
STANDSTILL_LIMIT = 30.0
_KILLS = (
    deaths.kill_children,
    deaths.kill_supervisor,
    deaths.kill_everything,
    deaths.kill_scheduler,
    deaths.kill_celery,
)
_LOSSES = (outages.flush, outages.flush_every_second, outages.restart_valkey, outages.restart_postgres)
_STEPS = (clocks.valkey_clock_ahead, clocks.valkey_clock_back, clocks.clocks_of_machines)
STANDSTILL_LIMITS: dict[Fault, float] = {
    **dict.fromkeys((*_KILLS, *_LOSSES, outages.cut_connections), 5.0),
    **dict.fromkeys(_STEPS, clocks.STEP_LIMIT),
    damage.damage_again_and_again: 15.0,
}
