"""The commands as processes: output and exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PASSWORD = "hunter2-secret"
NOWHERE = {
    "postgresql": {"DATABASE_URL": f"postgresql://me:{PASSWORD}@127.0.0.1:1/db"},
    "redis": {"REDIS_URL": f"redis://me:{PASSWORD}@127.0.0.1:1/0"},
}


def manage(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends."""
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(("command", "server"), [("runworker", "postgresql"), ("runscheduler", "redis")])
def test_a_server_out_of_reach_is_one_line_without_the_password(process_env, command, server):
    ended = manage(command, **(process_env | NOWHERE[server]))
    assert ended.returncode == 4
    assert "127.0.0.1:1" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert PASSWORD not in ended.stderr + ended.stdout


def test_a_burst_without_work_ends_well(process_env):
    ended = manage("runworker", "--burst", **process_env)
    assert ended.returncode == 0, ended.stderr
