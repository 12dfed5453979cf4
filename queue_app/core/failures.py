"""Failures: fingerprints that are equal for the same cause, and the delay before a retry.

A fingerprint covers the exception class, the frames of the project's own code and the message.
Ids, numbers, addresses, quoted values and names after a colon differ each time and are replaced.
Frames have no line numbers, so a group survives an edit further up in the file.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Final

# The wait before a retry.

DEFAULT_BASE_SECONDS: Final = 20.0
DEFAULT_CAP_SECONDS: Final = 6 * 3600.0


def retry_delay(
    failures: int,
    *,
    base: float = DEFAULT_BASE_SECONDS,
    cap: float = DEFAULT_CAP_SECONDS,
    jitter: Callable[[float, float], float] | None = None,
) -> float:
    """Return the seconds to wait after the ``failures``-th failure: ``base * 2^(failures - 1)``, at most ``cap``.

    ``jitter(0, delay)``, such as ``random.uniform``, picks a shorter wait, so that tasks that
    failed together are not retried together ("full jitter").
    """
    if failures < 1:
        raise ValueError(f"failures counts from 1, not {failures}")
    exponent = min(failures - 1, 62)  # 2^62 s exceeds every cap, and the product stays finite
    delay = float(min(base * 2**exponent, cap))
    return jitter(0.0, delay) if jitter else delay


MAX_FRAMES: Final = 3
MAX_MESSAGE: Final = 300
LENGTH: Final = 16

_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"\n]{1,500})", line \d+, in (?P<name>\S{1,200})', re.MULTILINE)
#: Frames of installed packages, of Python and of the executor, which calls every task.
_OTHERS: Final = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|/workers/|/queue_app/")
_CAPITAL: Final = r"[^\W\d_a-z][\w<>.'-]{0,60}"
_VARIABLE: Final = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE), "<url>"),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b"), "<mail>"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"""'[^'\n]{0,200}'|"[^"\n]{0,200}"|`[^`\n]{0,200}`|[“„«][^”“»\n]{0,200}[”“»]"""), "<text>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    # after a colon: words with capitals, as in "declined: Ann Lee", or one word that ends the clause
    (re.compile(rf"(?<=: )(?!<)(?:{_CAPITAL}(?: {_CAPITAL})+|\S{{1,60}})(?=[.,;)]* ?$|[,;)] )"), "<name>"),
)


def normalise(message: str) -> str:
    """Return a message on one line, with placeholders for the parts that differ each time."""
    text = " ".join(message[: 4 * MAX_MESSAGE].split())
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text[:MAX_MESSAGE]


def own_frames(traceback: str) -> list[str]:
    """Return the last frames of the project's own code in a traceback, as ``file:function``, innermost last."""
    frames = [(frame["file"].replace("\\", "/"), frame["name"]) for frame in _FRAME.finditer(traceback[-64_000:])]
    own = [(file.split("/")[-2:], name) for file, name in frames if is_own(file)]  # without the deployment directory
    return [f"{'/'.join(parts)}:{name}" for parts, name in own[-MAX_FRAMES:]]


def is_own(file: str) -> bool:
    """Return whether a file is the project's own code."""
    return not _OTHERS.search(file.replace("\\", "/"))


def fingerprint(exception_class: str, message: str, traceback: str = "") -> str:
    """Return 16 hex digits that are equal for failures with the same cause."""
    parts = (exception_class, *own_frames(traceback), normalise(message))
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "replace")).hexdigest()[:LENGTH]
