"""Every command in the pages exists and accepts its options; every curl line gets an answer."""

import re
import shlex

import pytest
from django.contrib.auth import get_user_model
from django.core.management import get_commands, load_command_class
from django.test import Client

from queue_app.services.notify import index
from tests.docs.pages import ROOT, all_blocks
from tests.support.factories import DeadLetterFactory, TaskFactory
from tests.support.rows import forget_known_queues

CONSOLE = all_blocks("console")
LINES = [(block.label, line) for block in CONSOLE for line in block.commands()]
DEV = re.findall(r"^  (\w+)  ", (ROOT / "dev").read_text(), re.MULTILINE)


def manage_arguments(line):
    words = shlex.split(line.removesuffix("&"))
    if words[:2] in (["python", "manage.py"], ["./dev", "manage"]):
        return words[2:]
    if words[:3] == ["python", "-m", "django"]:
        return words[3:]
    return words[1:] if words[:2] == ["./dev", "quickstart"] else None


def parser_of(name):
    app = get_commands()[name]
    command = app if not isinstance(app, str) else load_command_class(app, name)
    return command.create_parser("manage.py", name)


@pytest.mark.parametrize(("label", "line"), [entry for entry in LINES if manage_arguments(entry[1])])
def test_manage_py_accepts_it(label, line):
    name, *arguments = manage_arguments(line)
    parser_of(name).parse_args(arguments)


@pytest.mark.parametrize(("label", "line"), [entry for entry in LINES if entry[1].startswith("./dev")])
def test_dev_knows_it(label, line):
    assert line.split()[1] in DEV


def test_readme_names_all_commands_of_dev():
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| `./dev …`") : readme.index("With `DATABASE_URL`")]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(DEV)


def test_readme_begins_with_five_lines_and_the_two_commands():
    title, *lines = (ROOT / "README.md").read_text().splitlines()
    assert title.startswith("# ")
    fence = lines.index("```console")
    assert len([line for line in lines[:fence] if line]) == 5
    assert lines[fence + 1 : fence + 3] == ["$ ./dev quickstart", "$ ./dev test"]


def dead_letter():
    """Create a dead letter."""
    return DeadLetterFactory(task=TaskFactory(queue="mail", status="dead_letter", payload__parameters={"order": 4711}))


def call_with_curl(client, line, task_id):
    """Send the request of a curl line."""
    if "$LETTER_ID" in line:
        line = line.replace("$LETTER_ID", str(dead_letter().id))
    words = shlex.split(line.replace("$API", "/api/v1").replace("$TASK_ID", task_id or ""))[1:]
    address, method, body, headers = "", None, None, {}
    while words:
        word = words.pop(0)
        match word:
            case "-u":
                words.pop(0)
            case "-X":
                method = words.pop(0)
            case "-d":
                body = words.pop(0)
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case _:
                address = word
    content_type = headers.pop("Content-Type", "")
    assert body is None or content_type == "application/json"
    return client.generic(
        method or ("GET" if body is None else "POST"), address, body or "", content_type, headers=headers
    )


@pytest.mark.usefixtures("transactional_db")
def test_curl_examples_get_an_answer():
    index.breaker.reset()
    forget_known_queues()
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="x"))
    task_id, calls = None, 0
    for block in CONSOLE:
        for line in block.commands():
            if not line.startswith("curl"):
                continue
            answer = call_with_curl(client, line, task_id)
            found = answer.json()
            calls += 1
            assert (answer.status_code >= 400) == (block.mark == "refused"), f"{block.label}: {found}"
            task_id = found.get("task_id", task_id)
    assert calls > 8
    forget_known_queues()
