"""`./dev`, as far as it can be tried without a network."""

import os
import subprocess
from pathlib import Path

DEV = Path(__file__).parent.parent.parent / "dev"


def dev(*arguments, path=None):
    environment = os.environ | ({"PATH": path} if path else {})
    return subprocess.run(
        ["/bin/sh", str(DEV), *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_help_lists_every_command():
    result = dev("help")
    assert result.returncode == 0
    for command in ("quickstart", "test", "check", "fix", "lua", "docs", "bench", "faults", "ci", "manage", "lock"):
        assert f"\n  {command} " in result.stdout


def test_an_unknown_command_is_refused():
    result = dev("strat")
    assert result.returncode == 1
    assert "unknown command: strat" in result.stderr


def test_another_platform_is_told_so(tmp_path):
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho MINGW64_NT\n")
    uname.chmod(0o755)
    result = dev("test", path=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "only Linux and macOS are supported (this is MINGW64_NT)" in result.stderr


def test_the_lock_file_names_no_registry():
    text = (DEV.parent / "requirements" / "dev.txt").read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text
