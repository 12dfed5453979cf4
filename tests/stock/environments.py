"""Virtual environments with the wheel, on each Python and Django of the scenes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def uv() -> str:
    """Return the program."""
    candidates = [Path(sys.executable).parent / "uv", shutil.which("uv"), ROOT / ".dev/uv/bin/uv"]
    return next(str(path) for path in candidates if path and Path(path).exists())


def run(*command: object, **options: object) -> str:
    """Run a command that must succeed; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=300, **options,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def find_python(version: str) -> str | None:
    """Return a Python of this version that is on this machine: the present one, pyenv's, or one that uv finds."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*pyenv.glob(f"{version}.*/bin/python"), *pyenv.glob(f"{version}/bin/python")]
    if found:
        return str(found[0])
    done = subprocess.run(
        [uv(), "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


class Environments:
    """They are made once for all scenes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run(uv(), "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder / "dist", cwd=ROOT)
        (self.wheel,) = (folder / "dist").glob("*.whl")

    def python(self, version: str, django: str) -> Path:
        """Return the Python of an environment with the locked packages, another Django on top, and the wheel."""
        folder = self.folder / f"{version}-{django}"
        python = folder / "bin" / "python"
        if not python.exists():
            run(uv(), "venv", "--quiet", "--python", find_python(version), folder)
            pip = (uv(), "pip", "install", "--quiet", "--python", python)
            run(*pip, "--requirement", ROOT / "requirements" / "quickstart.txt")
            run(*pip, f"django~={django}.0")
            run(*pip, "--no-deps", self.wheel)
        return python
