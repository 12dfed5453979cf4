"""The console of the project's commands."""

from io import StringIO

from django.core.management.base import OutputWrapper

from taskqueue_project.terminal import terminal


def test_a_progress_bar_stays_on_its_line():
    written = StringIO()
    terminal(OutputWrapper(written)).print("half a line", end="\r")
    assert written.getvalue() == "half a line\r"
