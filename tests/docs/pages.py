"""The pages, and the fenced blocks in them.

A comment before a block says what a test does with it:

    <!-- run -->              one step of the page's session, in order
    <!-- file: shop/x.py -->  a module that the page's blocks may import
    <!-- settings -->         settings of a project; the system checks must like them
    <!-- exec -->             executed by itself; what a settings or a urls module has before is given
    <!-- endless -->          the same, until its loop asks Redis a second time
    <!-- compile -->          only compiled, and its imports looked up: what needs something that a test cannot have
    <!-- test -->             test functions, called with the fixtures that they name, after the page's session
    <!-- refused -->          curl commands that are answered with an error
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = {"run", "file", "settings", "exec", "endless", "compile", "test", "refused"}
_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[a-z]+)(?:: (?P<name>[^ ]+))? -->\n)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    mark: str
    name: str

    @property
    def label(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """Return the commands typed after a prompt, each on one line."""
        joined = self.text.replace("\\\n", " ")
        return [line.removeprefix("$ ").strip() for line in joined.splitlines() if line.startswith("$ ")]


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 1,
            match["language"].strip(),
            match["text"],
            match["mark"] or "",
            match["name"] or "",
        )
        for match in _FENCE.finditer(text)
    ]


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language in languages]
