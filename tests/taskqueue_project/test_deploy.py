"""The deployment files agree with each other, with the commands, and with the programs that read them."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from django.core.management import load_command_class
from django.urls import resolve

from tests.support.programs import require

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "taskqueue_project/deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
MANIFESTS = {
    (item["kind"], item["metadata"].get("name", "")): item
    for path in (DEPLOY / "kubernetes").glob("*.yaml")
    if path.name != "kustomization.yaml"
    for item in yaml.safe_load_all(path.read_text())
}
UNITS = {path.name: path.read_text() for path in (DEPLOY / "systemd").iterdir()}
MARGIN = 10  # seconds beyond a process's own limit, to return its tasks and sign off


def parsed(words):
    """Return the options of a management command; fail the test for an unknown one."""
    _python, script, name, *arguments = words
    assert script == "manage.py"
    app = "django.core" if name == "migrate" else "queue_app"
    return vars(load_command_class(app, name).create_parser("manage.py", name).parse_args(arguments))


def seconds(text):
    return int(str(text).removesuffix("s"))


def pod(kind, name):
    return MANIFESTS[kind, name]["spec"]["template"]["spec"]


def commands():
    for name, service in COMPOSE["services"].items():
        if service.get("command", [""])[0] == "python":
            yield f"compose {name}", service["command"], service.get("stop_grace_period", "10s")
    for kind, name in MANIFESTS:
        if kind in ("Deployment", "Job"):
            spec = pod(kind, name)
            for container in spec["containers"]:
                if container.get("command", [""])[0] == "python":
                    yield f"{kind} {name}", container["command"], spec.get("terminationGracePeriodSeconds", 30)
    for name, text in UNITS.items():
        for line in re.findall(r"^ExecStart=(.*manage\.py.*)$", text, re.MULTILINE):
            yield name, shlex.split(line), re.search(r"^TimeoutStopSec=(\d+)", text, re.MULTILINE)[1]


COMMANDS = {name: rest for name, *rest in commands()}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_exist_with_their_options_and_get_the_time_to_end(name):
    words, given = COMMANDS[name]
    options = parsed(words)
    if "runworker" in words:
        assert seconds(given) >= options["grace"] + MARGIN


def test_the_schema_of_compose_files_accepts_ours():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    path = str(DEPLOY / "compose/compose.yaml")
    done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_the_schemas_of_kubernetes_accept_the_manifests(version):
    """The validation is strict, to find misspelt fields; it skips the kinds of KEDA."""
    import kubernetes_validate  # noqa: PLC0415 - its import takes seconds

    judged = [item for item in MANIFESTS.values() if not item["apiVersion"].startswith("keda.sh/")]
    assert len(judged) >= 12
    for item in judged:
        kubernetes_validate.validate(item, version, strict=True)


def test_compose_has_every_process_and_every_server():
    services = COMPOSE["services"]
    assert set(services) == {
        "postgres", "valkey", "migrate", "web", "worker", "scheduler", "celery-worker", "celery-beat", "prometheus",
        "grafana",
    }  # fmt: skip
    assert services["worker"]["deploy"]["replicas"] == 2
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).exists()
        for other in service.get("depends_on", ()):
            assert other in services
        assert ":latest" not in service["image"]
    documented = set(re.findall(r"^([A-Z_]+)=", (DEPLOY / "compose/env.example").read_text(), re.MULTILINE))
    required = set(re.findall(r"\$\{([A-Z_]+):\?\}", (DEPLOY / "compose/compose.yaml").read_text()))
    assert required <= documented
    assert "noeviction" in services["valkey"]["command"]


def test_all_published_ports_are_local():
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_nothing_runs_as_root_or_may_become_it():
    for kind, name in MANIFESTS:
        if kind not in ("Deployment", "Job"):
            continue
        spec = pod(kind, name)
        assert spec["securityContext"]["runAsNonRoot"]
        for container in spec["containers"]:
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["resources"]["limits"]["memory"]
    for name, text in UNITS.items():
        if name.endswith(".service"):
            assert "User=taskqueue" in text
            assert "NoNewPrivileges=yes" in text
    image = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", image, re.MULTILINE) == ["10001:10001"]


def test_probes_ask_for_what_is_served_under_a_name_that_is_allowed():
    config = MANIFESTS["ConfigMap", "taskqueue"]["data"]["ALLOWED_HOSTS"].split(",")
    for name in ("web", "worker", "scheduler"):
        [container] = pod("Deployment", f"taskqueue-{name}")["containers"]
        ports = {port["name"] for port in container["ports"]}
        probes = [container[probe]["httpGet"] for probe in container if probe.endswith("Probe")]
        assert len(probes) >= 2
        for probe in probes:
            assert probe["port"] in ports
            if name == "web":
                assert resolve(probe["path"])
                assert {header["name"]: header["value"] for header in probe["httpHeaders"]}["Host"] in config
            else:
                assert probe["path"] == "/livez"
                assert "--health-port" in container["command"]


def test_budgets_and_services_select_pods_that_exist():
    labels = [
        item["spec"]["template"]["metadata"]["labels"] for (kind, _), item in MANIFESTS.items() if kind == "Deployment"
    ]
    selectors = [item["spec"]["selector"] for (kind, _), item in MANIFESTS.items() if kind == "Service"]
    budgets = [item for (kind, _), item in MANIFESTS.items() if kind == "PodDisruptionBudget"]
    selectors += [item["spec"]["selector"]["matchLabels"] for item in budgets]
    assert len(budgets) == 3
    assert all(selector in labels for selector in selectors)
    for (kind, _), item in MANIFESTS.items():
        if kind == "Deployment":
            assert item["spec"]["selector"]["matchLabels"] == item["spec"]["template"]["metadata"]["labels"]
    listed = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["resources"]
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert set(listed) == there - {"kustomization.yaml", "secret.example.yaml"}


def test_the_scaler_asks_the_endpoint_for_its_own_workers():
    scaled = MANIFESTS["ScaledObject", "taskqueue-worker"]["spec"]
    assert ("Deployment", scaled["scaleTargetRef"]["name"]) in MANIFESTS
    assert "replicas" not in MANIFESTS["Deployment", "taskqueue-worker"]["spec"], "two would fight over the number"
    [trigger] = scaled["triggers"]
    address = re.fullmatch(r"http://([\w.-]+):8000(/[\w/-]+)\?slots=(\d+)", trigger["metadata"]["url"])
    host, path, slots = address.groups()
    assert host in MANIFESTS["ConfigMap", "taskqueue"]["data"]["ALLOWED_HOSTS"].split(",")
    assert resolve(path).kwargs == {"name": "default"}
    worker = pod("Deployment", "taskqueue-worker")["containers"][0]["command"]
    assert parsed(worker)["concurrency"] == slots
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in MANIFESTS


def test_the_image_copies_what_there_is_and_installs_what_was_tested():
    image = (DEPLOY / "Dockerfile").read_text()
    sources = re.findall(r"^COPY (?!--from)(\S+) ", image, re.MULTILINE)
    allowed = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert set(sources) == set(allowed)
    assert all((ROOT / source).exists() for source in sources)

    def pins(name):
        return set(re.findall(r"^([\w.\[\]-]+==[^\s\\;]+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))

    production = pins("production.txt")
    assert len(production) > 20
    assert production <= pins("dev.txt")


def test_units_are_started_by_their_target_and_watched():
    assert "WatchdogSec=" in UNITS["taskqueue-worker@.service"]
    assert "WatchdogSec=" in UNITS["taskqueue-scheduler.service"]
    wanted = re.search(r"^Wants=(.*)$", UNITS["taskqueue.target"], re.MULTILINE)[1].split()
    assert {re.sub(r"@.*\.", "@.", name) for name in wanted} == set(UNITS) - {"taskqueue.target"}


def test_systemd_accepts_the_units(tmp_path):
    analyze = require("systemd-analyze")
    for name, text in UNITS.items():
        (tmp_path / name).write_text(re.sub(r"/srv/taskqueue/venv/bin/\w+", shutil.which("true"), text))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *sorted(str(path) for path in tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "taskqueue" in line]
    assert complaints == []


def test_prometheus_accepts_its_configuration(tmp_path):
    promtool = require("promtool")
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    (tmp_path / "token").write_text("x")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/metrics_token", str(tmp_path / "token")))
    shutil.copy(DEPLOY / "prometheus/alerts.yml", tmp_path)
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
