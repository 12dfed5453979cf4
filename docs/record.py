"""Record a command in a terminal as an animated SVG, for the README.

.venv/bin/python docs/record.py docs/images/quickstart.svg ./dev quickstart --exit
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from html import escape
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 104, 30
CHARACTER, LINE, MARGIN = 7.83, 18, 14
#: Seconds: the longest pause that is shown, between two changes of a line, and for the end.
PAUSE, CHANGE, END = 1.0, 0.4, 8.0
TOKEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")
#: Texts of one machine or one run only.
PRIVATE = ((re.escape(str(ROOT)), "~/taskqueue"), (r"(?<=, password )\S+", "••••••••••••••••"))
STYLE = """text{{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d9d9d9;white-space:pre}}
.past{{visibility:hidden}}text,g{{animation-duration:{0}s;animation-timing-function:step-end;animation-iteration-count:infinite}}
@media(prefers-reduced-motion:reduce){{text,g{{animation-name:none!important}}}}"""


def record(command: list[str]) -> list[tuple[float, str]]:
    """Run a command in a terminal of its own; return what it wrote, with the times."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 200, COLUMNS, 0, 0))
    written, at, last = [], PAUSE, time.monotonic()
    while True:
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:  # the end, on Linux
            chunk = b""
        if not chunk:
            os.waitpid(child, 0)
            return written
        now = time.monotonic()
        at, last = at + min(now - last, PAUSE), now
        written.append((round(at, 2), chunk.decode(errors="replace")))


def histories(command: list[str]) -> list[list[tuple[float, str]]]:
    """Return for each line of the terminal its texts and the times at which they appear."""
    lines = [[(0.0, "\x1b[1m$ " + " ".join(command) + "\x1b[0m")], [(0.0, "")]]
    for at, chunk in record(command):
        for part in TOKEN.findall(chunk):
            if part == "\n":
                lines.append([(at, "")])
            elif part.endswith("K"):
                lines[-1].append((at, ""))
            elif part != "\r" and (part[0] != "\x1b" or part.endswith("m")):
                lines[-1][-1] = (lines[-1][-1][0], lines[-1][-1][1] + part)
    return [[each for number, each in enumerate(line) if is_kept(line, number)] for line in lines]


def is_kept(line: list[tuple[float, str]], number: int) -> bool:
    """Return whether a text of a line stays long enough to be shown."""
    at, text = line[number]
    is_last = number == len(line) - 1
    return bool(text.strip()) and (is_last or int(at / CHANGE) != int(line[number + 1][0] / CHANGE))


def spans(text: str) -> str:
    """Return a line with its colours as SVG."""
    for private, shown in PRIVATE:
        text = re.sub(private, shown, text)
    parts = []
    for segment in Text.from_ansi(text).render(Console(color_system="truecolor"), end=""):
        style, colour = segment.style, ""
        if style and style.color:
            colour = f' fill="{Color.get_truecolor(style.color, MONOKAI).hex}"'
        bold = ' font-weight="bold"' if style and style.bold else ""
        parts.append(f"<tspan{colour}{bold}>{escape(segment.text)}</tspan>")
    return "".join(parts)


def picture(lines: list[list[tuple[float, str]]]) -> str:
    """Return the SVG in which the lines appear, change and scroll, again and again."""
    total = max(at for line in lines for at, _ in line) + END
    rules, body, scroll = [STYLE.format(round(total, 1))], [], ["0%{transform:translateY(0)}"]
    for row, line in enumerate(lines):
        if row >= ROWS and line:
            scroll.append(f"{line[0][0] / total:.2%}{{transform:translateY({(ROWS - 1 - row) * LINE}px)}}")
        for number, (at, text) in enumerate(line):
            name, is_past = f"l{row}-{number}", number < len(line) - 1
            end = f"{line[number + 1][0] / total:.2%}{{visibility:hidden}}" if is_past else ""
            rules.append(f"@keyframes {name}{{0%{{visibility:hidden}}{at / total:.2%}{{visibility:visible}}{end}}}")
            kind = ' class="past"' if is_past else ""
            y = MARGIN + (row + 1) * LINE - 5
            body.append(f'<text x="{MARGIN}" y="{y}"{kind} style="animation-name:{name}">{spans(text)}</text>')
    shift = min(0, ROWS - len(lines)) * LINE
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>{"".join(rules)}@keyframes scroll{{{"".join(scroll)}}}</style>
<rect width="100%" height="100%" rx="8" fill="#0c0c0c"/>
<g style="animation-name:scroll;transform:translateY({shift}px)">{"\n".join(body)}</g></svg>
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(histories(sys.argv[2:])))
