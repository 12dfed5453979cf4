"""Write `llms.txt`, the index of the pages for programs that read documentation (llmstxt.org), after a build."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SECTIONS = ("tutorial", "how-to", "examples", "reference", "explanation", "runbooks")


def setup(app):  # noqa: ANN001, ANN201 - Sphinx is not imported for its types alone
    """Connect with Sphinx."""
    app.connect("build-finished", lambda app, _error: Path(app.outdir, "llms.txt").write_text(index()))
    return {"parallel_read_safe": True}


def index() -> str:
    """Return the index: each page with its title and first sentence."""
    lines = ["# Task queue for Django", "", f"> {_sentence((DOCS / 'index.md').read_text())}", ""]
    for section in SECTIONS:
        paths = sorted((DOCS / section).glob("*.md"), key=lambda path: (path.stem != "index", path.stem))
        lines += [f"## {_title(paths[0].read_text())}", ""]
        is_list = len(paths) > 1 and section != "tutorial"  # whose index is its first page
        for path in paths[is_list:]:
            text = path.read_text()
            says = _sentence(text)
            lines.append(f"- [{_title(text)}]({section}/{path.stem}.html)" + (f": {says}" if says else ""))
        lines.append("")
    return "\n".join(lines)


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _sentence(text: str) -> str:
    """Return the first sentence of a page, without its links."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    first = next((part for part in prose.split("\n\n")[1:] if part.strip() and part.strip()[0] not in "#<|-"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.?]) ", plain)[0].rstrip(":")
