"""How log records look in a terminal and elsewhere."""

import io
import logging
import sys

import pytest
from django.core.management.color import color_style, no_style

from queue_app.logs import console
from queue_app.logs.console import Console, Facts, LineFormatter


def record(message, *args, level=logging.INFO, name="taskqueue", **attributes):
    made = logging.makeLogRecord({"name": name, "levelno": level, "levelname": logging.getLevelName(level)})
    made.msg, made.args, made.created, made.msecs = message, args, 0.0, 0.0
    made.__dict__.update(attributes)
    return made


@pytest.fixture
def terminal(monkeypatch):
    """Format a record for a terminal of a given width, without its time."""

    def show(made, *, columns=80, colors=None):
        monkeypatch.setenv("COLUMNS", str(columns))
        return LineFormatter(colors or no_style(), is_terminal=True).format(made)[len("00:00:00 ") :]

    return show


@pytest.fixture
def plain():
    return lambda made: LineFormatter(no_style(), is_terminal=False).format(made)[len("1970-01-01 00:00:00,000 ") :]


START = ("%s: %s", "worker w1", Facts({"queues": "all", "to stop": "Ctrl-C or SIGTERM"}))


def test_the_start_is_a_block_in_a_terminal_and_a_line_elsewhere(terminal, plain):
    assert terminal(record(*START)).splitlines() == ["worker w1", "    queues   all", "    to stop  Ctrl-C or SIGTERM"]
    assert plain(record(*START)) == "INFO taskqueue: worker w1: queues: all; to stop: Ctrl-C or SIGTERM"


def test_a_narrow_terminal_wraps_the_values_of_the_block(terminal):
    facts = Facts({"tasks": "shop.tasks.first, shop.tasks.second and 3 more"})
    assert terminal(record("%s: %s", "worker w1", facts), columns=36).splitlines() == [
        "worker w1",
        "    tasks  shop.tasks.first,",
        "           shop.tasks.second and 3",
        "           more",
    ]


def test_a_terminal_shows_the_level_of_what_went_wrong_and_whose_line_it_is(terminal):
    assert terminal(record("well")) == "well"
    assert terminal(record("hm", level=logging.WARNING)) == "WARNING hm"
    assert terminal(record("no", level=logging.ERROR, name="shop")) == "ERROR shop: no"


def test_colors(terminal):
    assert terminal(record("no", level=logging.ERROR), colors=color_style(force_color=True)) == (
        "\x1b[31;1mERROR\x1b[0m no"
    )


def test_lines_of_a_task_name_it(plain):
    made = record("paid", name="shop", taskqueue_task_type="shop.tasks.pay", taskqueue_task_id="01")
    assert plain(made) == "INFO shop: paid (shop.tasks.pay 01)"


def test_a_traceback_is_indented(plain):
    try:
        int("boom")
    except ValueError:
        made = record("failed", level=logging.ERROR, exc_info=sys.exc_info())
    first, *more = plain(made).splitlines()
    assert first == "ERROR taskqueue: failed"
    assert more[0] == "    Traceback (most recent call last):"
    assert more[-1] == "    ValueError: invalid literal for int() with base 10: 'boom'"


def test_no_text_can_fake_a_record_or_steer_the_terminal(plain, terminal):
    text = "a\r\n1970-01-01 00:00:00,000 ERROR taskqueue: fake \x1b[2J\x07\x9b"
    shown = "a", "    1970-01-01 00:00:00,000 ERROR taskqueue: fake ?[2J??"
    assert plain(record("%s", text)).removeprefix("INFO taskqueue: ").splitlines() == list(shown)
    assert terminal(record("%s", text)).splitlines() == list(shown)


def test_an_empty_message(plain):
    assert plain(record("")) == "INFO taskqueue: "


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def install(monkeypatch):
    """Install a console on a root logger that has only the ``handlers`` of the project, and none of pytest."""
    root, logger = logging.getLogger(), console.logger
    levels = root.level, logger.level

    def install(stream, verbosity=1, handlers=(), **options):
        monkeypatch.setattr(root, "handlers", list(handlers))
        monkeypatch.setattr(logger, "handlers", [])
        root.setLevel(logging.WARNING)
        logger.setLevel(logging.NOTSET)
        console.install(stream, verbosity, **options)
        return root

    yield install
    root.setLevel(levels[0])
    logger.setLevel(levels[1])


@pytest.mark.parametrize(
    ("environment", "color", "is_colored"),
    [({}, None, True), ({"NO_COLOR": "1"}, None, False), ({}, False, False), ({"NO_COLOR": "1"}, True, True)],
)
def test_who_decides_about_colors(install, monkeypatch, environment, color, is_colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    install(screen := Terminal(), color=color).error("no")
    assert ("\x1b[" in screen.getvalue()) is is_colored


@pytest.mark.parametrize(
    ("verbosity", "shown"), [(0, {"W"}), (1, {"I", "W", "w"}), (2, {"D", "I", "W", "i", "w"}), (3, set("DIWdiw"))]
)
def test_the_levels_of_verbosity(install, verbosity, shown):
    install(stream := io.StringIO(), verbosity)
    own, other = console.logger, logging.getLogger("shop")
    for logger, names in ((own, "DIW"), (other, "diw")):
        for name, level in zip(names, (logging.DEBUG, logging.INFO, logging.WARNING), strict=True):
            logger.log(level, "=%s", name)
    assert {line[-1] for line in stream.getvalue().splitlines()} == shown | {"w"}


def test_handlers_of_the_project_win(install):
    root = install(stream := io.StringIO(), handlers=[logging.StreamHandler(io.StringIO())])
    assert len(root.handlers) == 1
    root.error("no")
    assert stream.getvalue() == ""


def test_a_terminal_is_told_what_logging_hides(install):
    install(screen := Terminal(), handlers=[logging.StreamHandler(io.StringIO())])
    assert screen.getvalue() == "LOGGING of this project hides lines of the logger 'taskqueue' below WARNING.\n"


def test_a_logger_with_a_handler_of_its_own_is_left_to_it(install, monkeypatch):
    install(stream := io.StringIO())
    monkeypatch.setattr(logging.getLogger("shop"), "handlers", [logging.StreamHandler(io.StringIO())])
    logging.getLogger("shop.tasks").error("taken")
    logging.getLogger("other").error("printed")
    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == ["printed"]


def test_a_stop_overwrites_what_ctrl_c_left_in_the_terminal(install):
    root = install(screen := Terminal())
    console.number(2)
    console.logger.info("stops", extra={"taskqueue": {"event": "Stopping"}})
    assert screen.getvalue().startswith("\r2 | ")
    assert isinstance(root.handlers[0], Console)
