"""Find the files for the demo to index: text files that are not too large and not ignored by git."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Bytes at the start of a file that are checked for binary content.
SNIFF = 8192
MAX_BYTES = 2 * 1024 * 1024
MAX_FILES = 5000


@dataclass
class Folder:
    """The text files as (relative path, size), and the number of skipped files by reason."""

    root: Path
    files: list[tuple[str, int]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def read_folder(root: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Folder:
    """Return the text files below `root`; raise `NotADirectoryError`."""
    root = root.expanduser().resolve()
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder.")
    folder = Folder(root)
    names = _listed_by_git(folder)
    for name in sorted(_walk(folder)) if names is None else names:
        reason = _reason_to_skip(root / name, max_bytes)
        if not reason and len(folder.files) >= max_files:
            reason = f"beyond {max_files} files"
        if reason:
            folder.skipped[reason] += 1
        else:
            folder.files.append((name, (root / name).stat().st_size))
    return folder


def _reason_to_skip(path: Path, max_bytes: int) -> str:
    """Return why a file is not indexed, or ""."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "name is not UTF-8"
    if path.is_symlink() or not path.is_file():
        return "not a regular file"
    try:
        if path.stat().st_size > max_bytes:
            return f"larger than {max_bytes // 1024} KiB"
        with path.open("rb") as file:
            return "binary" if b"\0" in file.read(SNIFF) else ""
    except OSError:
        return "unreadable"


def _listed_by_git(folder: Folder) -> list[str] | None:
    """Return the files that git does not ignore, or None outside of a repository."""
    known = _git(folder.root, "--cached", "--others", "--exclude-standard", "--deduplicate")
    if known is None:
        return None
    ignored = _git(folder.root, "--others", "--ignored", "--exclude-standard", "--directory")
    if ignored:
        folder.skipped["ignored by git (files or whole folders)"] = len(ignored)
    # git still lists a file whose deletion is not committed.
    return sorted(name for name in known if os.path.lexists(folder.root / name))


def _git(root: Path, *options: str) -> list[str] | None:
    command = ["git", "-C", str(root), "ls-files", "-z", *options]
    try:
        result = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return [os.fsdecode(name) for name in result.stdout.split(b"\0") if name]


def _walk(folder: Folder) -> Iterator[str]:
    """Yield the files below a folder outside of git, without hidden ones."""
    for place, folders, files in os.walk(folder.root):
        hidden = [name for name in folders if name.startswith(".")]
        folder.skipped["hidden"] += len(hidden)
        folders[:] = sorted(set(folders) - set(hidden))
        for name in files:
            if name.startswith("."):
                folder.skipped["hidden"] += 1
            else:
                yield str((Path(place) / name).relative_to(folder.root))
    folder.skipped += Counter()  # drops a count of 0
