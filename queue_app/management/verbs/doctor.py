"""Examine settings, servers, processes and queues, and say what to do. Changes nothing."""

from argparse import ArgumentParser
from dataclasses import asdict

from queue_app.core.reasons import Finding, Level
from queue_app.diagnose.doctor import examine
from queue_app.management.verbs import FOUND, OK, UNREACHABLE, Call, Needs, add_json

EXAMPLE = "taskqueue doctor --json"
#: Nothing: it reports the problems for which other verbs refuse to start.
NEEDS = Needs.NOTHING
MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 for a warning too")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only warnings and failures, for cron")
    add_json(parser)


def run(call: Call) -> int:
    """Print each finding at once; exit with 1 for a failure, with 4 when a server does not answer."""
    findings: list[Finding] = []
    for finding in examine():
        findings.append(finding)
        if finding.level is not Level.OK or not call["quiet"]:
            call.write(_line(call, finding))
    failures = [finding for finding in findings if finding.level is Level.FAIL]
    warnings = sum(finding.level is Level.WARN for finding in findings)
    if not call["quiet"] or failures or warnings:
        oks = len(findings) - len(failures) - warnings
        call.write(f"ok: {oks}, warnings: {warnings}, failures: {len(failures)}")
    call.write_json({"findings": [asdict(finding) for finding in findings], "warn": warnings, "fail": len(failures)})
    if any(finding.message.startswith("does not answer") for finding in failures):
        return UNREACHABLE
    return FOUND if failures or (warnings and call["strict"]) else OK


def _line(call: Call, finding: Finding) -> str:
    paint = {Level.OK: call.style.SUCCESS, Level.WARN: call.style.WARNING, Level.FAIL: call.style.ERROR}
    line = f"{paint[finding.level](MARKS[finding.level])}  {finding.check}: {finding.message}"
    return f"{line}\n      {finding.hint}" if finding.hint else line
