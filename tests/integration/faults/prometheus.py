"""A real Prometheus on our alert rules, in a hurry: a minute of the rules is three seconds."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from tests.integration.processes import ROOT
from tests.support.waiting import until

RULES = ROOT / "taskqueue_project/deploy/prometheus/alerts.yml"
#: By so much all times of the rules are divided: ``for``, windows, and limits on metrics that are times.
HURRY = 20
SCRAPE_SECONDS = 1.0


def hurried(rules: dict[str, Any]) -> dict[str, Any]:
    """Return rules with every time divided by ``HURRY``; rates, shares and numbers of tasks stay."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = _shorter(rule["for"])
            rule["expr"] = re.sub(r"\[(\w+)\]", lambda found: f"[{_shorter(found[1])}]", rule["expr"])
            if "_seconds" in rule["expr"]:
                rule["expr"] = re.sub(r"> (\d+)$", lambda found: f"> {int(found[1]) / HURRY}", rule["expr"])
    return rules


def _shorter(duration: str) -> str:
    number, unit = int(duration[:-1]), duration[-1]
    return f"{number * {'s': 1000, 'm': 60_000, 'h': 3_600_000}[unit] // HURRY}ms"


class Prometheus:
    """Debian's Prometheus, scraping one address."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "alerts.yml").write_text(yaml.safe_dump(hurried(yaml.safe_load(RULES.read_text()))))
        every = f"{int(SCRAPE_SECONDS * 1000)}ms"
        scraped = {"job_name": "taskqueue", "static_configs": [{"targets": [target]}]}
        config = {"global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}}
        config |= {"rule_files": ["alerts.yml"], "scrape_configs": [scraped]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"

    def __enter__(self) -> Self:
        """Start it."""
        path = shutil.which("prometheus")
        if path is None:
            raise SystemExit("The alerts are run by a real Prometheus: apt install prometheus.")
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(path, f"--config.file={self._folder / 'prometheus.yml'}"),
                    *(f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address={self._address}"),
                ],
                stdout=log,
                stderr=log,
            )
        until(self._is_ready, "Prometheus is ready")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(30)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            return bool(self._ask("query", query="vector(1)"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def _ask(self, what: str, **params: str) -> dict[str, Any]:
        address = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
            return data

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"}

    def fired_since(self, began: float) -> set[str]:
        """Return the names of those that fired at any evaluation since then (``time.time()``)."""
        window = f"{max(1, int((time.time() - began) * 1000))}ms"
        found = self._ask("query", query=f'count_over_time(ALERTS{{alertstate="firing"}}[{window}])')
        return {each["metric"]["alertname"] for each in found["result"]}
