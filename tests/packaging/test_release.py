"""What a release consists of: an sdist and a wheel that upload and import, and workflows that a host accepts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.packaging.test_wheel import built, run, uv  # noqa: F401 - fixtures

pytestmark = [pytest.mark.packaging, pytest.mark.slow]

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
BIN = Path(sys.executable).parent


def test_the_description_is_rendered_and_the_metadata_are_complete(built):  # noqa: F811
    run(BIN / "twine", "check", "--strict", *built.glob("*.whl"), *built.glob("*.tar.gz"))


def test_the_wheel_holds_one_importable_package_and_no_litter(built):  # noqa: F811
    run(BIN / "check-wheel-contents", *built.glob("*.whl"), cwd=ROOT)


def test_the_schema_of_workflows_accepts_ours():
    assert WORKFLOWS
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)


def test_the_schema_of_dependabot_accepts_our_file():
    run(
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.dependabot",
        ROOT / ".github/dependabot.yml",
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_actions_by_commit(path):
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+(\.\d+){2}", action)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_commands_that_exist(path):
    known = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for line in (step["run"] for step in job["steps"] if "run" in step):
            program, *rest = line.split()
            assert program == "gh" or (ROOT / program).exists(), line
            assert program != "./dev" or f"\n  {rest[0]} " in known, line
