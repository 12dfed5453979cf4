"""The demo finds the files to index."""

import subprocess

import pytest

from queue_app.models import Task
from taskqueue_project.demo import tasks
from taskqueue_project.demo.folder import read_folder
from taskqueue_project.demo.verdict import _broken, _flaky


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.md").write_text("two words\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "large.txt").write_text("x" * 2000)
    (tmp_path / "link.txt").symlink_to("text.md")
    (tmp_path / ".hidden").write_text("hidden")
    return tmp_path


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)


def test_text_files_are_found_and_the_others_counted(folder):
    found = read_folder(folder, max_bytes=1024)
    assert found.files == [("empty.txt", 0), ("sub/latin.txt", 4), ("text.md", 10)]
    assert found.skipped == {"binary": 1, "larger than 1 KiB": 1, "not a regular file": 1, "hidden": 1}


def test_files_that_git_ignores_are_skipped(folder):
    git(folder, "init")
    (folder / ".gitignore").write_text("large.txt\nbuild/\n")
    (folder / "build").mkdir()
    (folder / "build" / "a.txt").write_text("a")
    (folder / "build" / "b.txt").write_text("b")
    git(folder, "add", "text.md")
    (folder / "text.md").unlink()
    found = read_folder(folder)
    assert [name for name, _ in found.files] == [".gitignore", ".hidden", "empty.txt", "sub/latin.txt"]
    assert found.skipped == {"binary": 1, "ignored by git (files or whole folders)": 2, "not a regular file": 1}


def test_a_folder_inside_a_repository_is_read_alone(folder):
    git(folder, "init")
    assert read_folder(folder / "sub").files == [("latin.txt", 4)]


def test_files_beyond_the_limit_are_counted(folder):
    found = read_folder(folder, max_files=1)
    assert len(found.files) == 1
    assert found.skipped["beyond 1 files"] == 3


def test_names_that_are_not_text_are_skipped(folder):
    try:
        (folder.joinpath("bad-\udcff.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system keeps names in Unicode only")
    assert read_folder(folder).skipped["name is not UTF-8"] == 1


@pytest.mark.parametrize("name", ["missing", "text.md"])
def test_a_path_that_is_not_a_folder_is_refused(folder, name):
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        read_folder(folder / name)


# -- verdict ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "as_expected"),
    [
        ({"status": "completed", "failures": 2, "attempt": 3}, True),
        ({"status": "completed", "failures": 2, "attempt": 5}, True),  # prefetched claims that were returned
        ({"status": "completed", "failures": 1, "attempt": 3}, False),
        ({"status": "executing", "failures": 2, "attempt": 3}, False),
    ],
)
def test_the_flaky_task_succeeds_after_two_failures_however_often_it_was_claimed(ended, as_expected):
    found = _flaky(Task(**ended))
    assert found.is_met is as_expected
    assert found.detail == f"{ended['status']} on attempt {ended['failures'] + 1}"
    assert tasks.SUCCEEDS_ON_ATTEMPT == 3


def test_the_failing_task_has_its_number_of_failures(db):
    assert _broken(Task(status="failed", failures=2, attempt=4)).detail == "failed after 2 attempts"


def test_a_missing_task_is_no_success():
    assert _flaky(None).is_met is False
