"""`./dev bench peers`: this checkout beside other task queues, in a comparison harness that its caller has.

The harness is copied, and so is the code measured: nothing is written into either, and edits meanwhile do not matter.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from peer_figures import WORKLOADS, collect, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OURS = "this_checkout"
NEEDED = (
    "base.py",  # what a contender extends
    "bench.py",  # runs workloads; writes JSON to the folder in BENCH_RAW
    "contenders",  # FILE.py for each queue: schema, enqueue calls, commands of its workers
    "interleave.py",  # runs rounds by turns
    "probe.py",  # what a contender's task calls
    "producer.py",  # the process that enqueues
    "requirements.txt",  # packages of the harness and the queues
    "services.py",  # fresh PostgreSQL and Valkey for each contender
)
# What a contender must not inherit: settings of this project's benchmarks, and servers that are not the harness's.
NOT_PASSED_ON = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH", "REDIS_URL", "VIRTUAL_ENV")


def main(arguments: list[str]) -> int:
    """Run the workloads, and print the table of what was measured; 1 when something failed."""
    options = parse(arguments)
    names = [f"{OURS}:{options.index or 'default'}", *options.peers]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped either way, it removes what it made
    with tempfile.TemporaryDirectory(prefix="taskqueue-peers-") as temporary:
        folder = copy_harness(options.harness, Path(temporary) / "harness")
        python = (options.python_env or make_environment(Path(temporary) / "env", folder)) / "bin" / "python"
        # The harness forbids its processes to write bytecode, and each would compile all of it again.
        subprocess.run([python, "-m", "compileall", "-q", folder], check=True)
        raw = options.raw or Path(temporary) / "raw"
        try:
            code = 0 if measure(python, folder, raw, names, options.workloads, options.rounds) else 1
        except KeyboardInterrupt:
            code = 130  # what was measured until then is worth a table
        print("\n" + table(collect(raw, names, options.workloads), names, options.workloads), flush=True)
    return code


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the options, and refuse what cannot work before anything is built."""
    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__)
    parser.add_argument("peers", nargs="+", metavar="PEER", help="FILE or FILE:VARIANT of the harness's contenders/")
    parser.add_argument("--harness", required=True, type=called_from, metavar="DIR", help="the folder of the harness")
    parser.add_argument("--index", choices=["rows"], help="ours without Redis; default: with it")
    parser.add_argument("--python-env", type=called_from, metavar="DIR", help="use this environment; default: make one")
    parser.add_argument("--raw", type=called_from, metavar="DIR", help="keep the raw results in this empty folder")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each has its turn; default: 3")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="W,W", help="default: %(default)s")
    options = parser.parse_args(arguments)
    missing = [name for name in NEEDED if not (options.harness / name).exists()]
    if missing:
        parser.error(f"{options.harness} is no comparison harness: it lacks {', '.join(missing)}")
    for peer in options.peers:
        if not (options.harness / "contenders" / f"{peer.partition(':')[0]}.py").is_file():
            known = sorted(path.stem for path in (options.harness / "contenders").glob("[!_]*.py"))
            parser.error(f"the harness has no contender {peer!r}; it has {', '.join(known)}")
    options.workloads = options.workloads.split(",")
    if unknown := sorted(set(options.workloads) - set(WORKLOADS)):
        parser.error(f"there is no workload {unknown[0]!r}; choose from {', '.join(WORKLOADS)}")
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.raw and options.raw.exists() and any(options.raw.iterdir()):
        parser.error(f"{options.raw} is not empty: the results of two runs must not be mixed")
    if options.python_env:
        modules = "django, django_redis, psutil, psycopg, redis, rest_framework"
        python = options.python_env / "bin" / "python"
        if not python.exists() or subprocess.run([python, "-c", f"import {modules}"], check=False).returncode:
            parser.error(f"{python} does not exist or cannot import {modules}; without --python-env one is made")
    return options


def called_from(path: str) -> Path:
    """Return a path as the caller of `./dev` means it: the script changes to the project's folder."""
    return Path(os.environ.get("DEV_CALLED_FROM", "."), Path(path).expanduser()).resolve()


def copy_harness(harness: Path, folder: Path) -> Path:
    """Copy the harness, and beside it, where all its processes look first, this checkout as in a wheel."""
    for pattern in ("*.py", "*.md", "*.txt", "contenders/*.py"):
        for source in harness.glob(pattern):
            target = folder / source.relative_to(harness)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    shutil.copyfile(HERE / "contender.py", folder / "contenders" / f"{OURS}.py")
    without = shutil.ignore_patterns("__pycache__")
    for source, target in (("queue_app", "queue_app"), ("workers", "workers"), ("templates", "queue_app/templates")):
        shutil.copytree(ROOT / source, folder / target, ignore=without, dirs_exist_ok=True)
    return folder


def make_environment(environment: Path, harness: Path) -> Path:
    """Install what the harness and this project require, compiled."""
    uv = shutil.which("uv") or shutil.which("uv", path=f"{Path(sys.executable).parent}:{ROOT / '.dev/uv/bin'}")
    if uv is None:
        sys.exit("./dev bench peers: uv was not found; install it, or give an environment with --python-env.")
    requirements = ("-r", harness / "requirements.txt", "-r", ROOT / "pyproject.toml", "--extra", "redis")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *requirements], check=True
    )
    return environment


def measure(python: Path, folder: Path, raw: Path, names: list[str], workloads: list[str], rounds: int) -> bool:
    """Give each contender its turn in every round; return whether every program ended well."""
    passed = True
    others = ",".join(workload for workload in workloads if workload != "w3")
    for number in range(1, rounds + 1):
        for name in names:
            if others:
                passed &= run(python, folder, raw / f"round-{number}", "bench.py", name, "--workloads", others)
        for name in names:
            if "w3" in workloads:
                passed &= run(python, folder, raw, "interleave.py", "1", name, "--more")
    return passed


def run(python: Path, folder: Path, raw: Path, *arguments: str) -> bool:
    """Run a program of the harness, and let it stop its servers when this one is stopped."""
    environment = {key: setting for key, setting in os.environ.items() if key not in NOT_PASSED_ON}
    environment["BENCH_RAW"] = str(raw)
    # In a session of its own, so that Ctrl-C reaches it once: a second one would break off its tidying up.
    program = subprocess.Popen(
        [python, *arguments], cwd=folder, env=environment, stdout=sys.stderr, start_new_session=True
    )
    try:
        code = program.wait()
    except KeyboardInterrupt:
        program.send_signal(signal.SIGINT)
        program.wait(60)
        raise
    if code:
        print(f"./dev bench peers: {' '.join(arguments)} ended with {code}", file=sys.stderr, flush=True)
    return code == 0
