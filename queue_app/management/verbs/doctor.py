"""Examine settings, servers, processes and queues; tells what is wrong and what to do. Changes nothing."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict

from queue_app.management.verbs import FOUND, OK, UNREACHABLE, Call, Needs, add_json
from queue_app.services.doctor import Finding, Level, examine

EXAMPLE = "taskqueue doctor --json"
#: It reports what others refuse to begin with.
NEEDS = Needs.NOTHING
MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--strict", action="store_true", help="end with 1 for a warning too")
    parser.add_argument("--quiet", action="store_true", help="say nothing of what is fine; for cron")
    add_json(parser)


def run(call: Call) -> int:
    """Print each finding as it is made; end with 1 when one fails, with 4 when a server is away."""
    findings: list[Finding] = []
    for finding in examine():
        findings.append(finding)
        if finding.level is not Level.OK or not call["quiet"]:
            call.say(_line(call, finding))
    bad = [finding for finding in findings if finding.level is Level.FAIL]
    warned = [finding for finding in findings if finding.level is Level.WARN]
    if not call["quiet"] or bad or warned:
        call.say(f"{len(findings) - len(bad) - len(warned)} fine, {len(warned)} to see to, {len(bad)} wrong")
    call.data({"findings": [asdict(finding) for finding in findings], "warn": len(warned), "fail": len(bad)})
    if any(finding.message.startswith("does not answer") for finding in bad):
        return UNREACHABLE
    return FOUND if bad or (warned and call["strict"]) else OK


def _line(call: Call, finding: Finding) -> str:
    paint = {Level.OK: call.style.SUCCESS, Level.WARN: call.style.WARNING, Level.FAIL: call.style.ERROR}
    line = f"{paint[finding.level](MARKS[finding.level])}  {finding.check}: {finding.message}"
    return f"{line}\n      {finding.hint}" if finding.hint else line
