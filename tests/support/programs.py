"""Programs of the system that tests drive. A test without its program is skipped; the last line of a run names them."""

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import pytest

#: Debian has some programs where only root looks.
SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"


@dataclass(frozen=True)
class Program:
    """A program, its package in Debian, and the group of tests that needs it."""

    name: str
    package: str
    group: str
    other_names: tuple[str, ...] = ()


#: .ci/run installs the same list; tests/test_programs.py compares them.
PROGRAMS = {
    program.name: program
    for program in (
        Program("promtool", "prometheus", "alerts and dashboard"),
        Program("pgbouncer", "pgbouncer", "connection pooler"),
        Program("chromium", "chromium", "browser", ("chromium-browser", "google-chrome-stable", "google-chrome")),
        Program("node", "nodejs", "JavaScript worker"),
        Program("npm", "npm", "client for TypeScript"),
        Program("systemd-analyze", "systemd", "systemd units"),
        Program("pg_lsclusters", "postgresql", "the system's PostgreSQL"),
        Program("xgettext", "gettext", "translations"),
        Program("redis-server", "redis-server", "stock scenes"),
    )
}


def require(name: str) -> str:
    """Return the path of a program, or skip the test."""
    for each in (name, *PROGRAMS[name].other_names):
        if path := shutil.which(each) or shutil.which(each, path=SYSTEM_FOLDERS):
            return path
    return skip(name)


def skip(name: str) -> NoReturn:
    """Skip the test because a program is missing."""
    pytest.skip(f"{name} is not installed (Debian: {PROGRAMS[name].package})")


def summary(reasons: Iterable[str]) -> str:
    """Return one line: the groups that were skipped because a program is missing; "" if there is none."""
    names = {found[1] for reason in reasons if (found := re.search(r"(\S+) is not installed \(Debian: ", reason))}
    missing = [program for program in PROGRAMS.values() if program.name in names]
    if not missing:
        return ""
    groups = ", ".join(f"{program.group} ({program.name})" for program in missing)
    return f"Skipped: {groups}. To run them: apt install {' '.join(program.package for program in missing)}"
