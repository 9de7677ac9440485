"""The test suites of Kombu and Celery, unmodified, with a broker of Tickwheel: ``python -m tests.interop.celery.run``.

Their source distributions are fetched by version and hash. Each suite gets a broker of its own, and Celery's a Redis
for results, on this machine only. How the tests end is compared with ``known_differences.toml``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.processes.daemon_harness import Daemon
from tests.support.run.their_suites import End, Ran, complaints, expected, run, tail
from tickwheel_bench.contenders import Redis

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
KNOWN: Final = HERE / "known_differences.toml"
SOURCES: Final = ROOT / "build" / "celery-suites"
_LIMIT_S: Final = 3_600.0


class Suite(NamedTuple):
    """Files of one of the two."""

    source: str
    files: tuple[str, ...]
    plugins: tuple[str, ...] = ()
    wants_redis: bool = False


_CELERY: Final = "celery-5.7.0"
_KOMBU: Final = "kombu-5.7.0"
SUITES: Final = {
    "kombu-integration": Suite(_KOMBU, ("t/integration/test_tickwheel.py",)),
    "kombu-unit": Suite(
        _KOMBU,
        ("t/unit/test_simple.py", "t/unit/test_pidbox.py", "t/unit/transport/test_memory.py"),
        ("tests.interop.celery.memory",),
    ),
    "celery-tasks": Suite(_CELERY, ("t/integration/test_tasks.py",), wants_redis=True),
    # Each file in a process of its own: behind test_inspect one of test_worker fails, with Redis as the broker, too.
    **{
        f"celery-{name.replace('_', '-')}": Suite(
            _CELERY, (f"t/integration/test_{name}.py",), wants_redis=True
        )
        for name in (
            "inspect",
            "worker",
            "beat",
            "group_chains",
            "loader",
            "serialization",
        )
    },
    "celery-canvas": Suite(_CELERY, ("t/integration/test_canvas.py",), wants_redis=True),
}


def fetch(source: str) -> Path:
    """The folder of a source distribution, which is fetched if it is not there."""
    folder = SOURCES / source
    if not folder.exists():
        SOURCES.mkdir(parents=True, exist_ok=True)
        words = ["download", "--no-deps", "--no-binary", ":all:", "--require-hashes", "--quiet"]
        subprocess.run(
            [sys.executable, "-m", "pip", *words, "-r", str(HERE / "sdists.txt"), "-d", str(SOURCES)],
            check=True,
        )
        for archive in SOURCES.glob("*.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(SOURCES, filter="data")
        shutil.copy(
            HERE / "kombu_integration.py", SOURCES / _KOMBU / "t" / "integration" / "test_tickwheel.py"
        )
    return folder


def judge(name: str, python: str, folder: Path) -> list[str]:
    """Runs a suite; what is wrong, each in a sentence."""
    suite, report, log = SUITES[name], folder / f"{name}.json", folder / f"{name}.log"
    source = fetch(suite.source)
    plugins = ("tests.interop.celery.reporting", *suite.plugins)
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += [word for plugin in plugins for word in ("-p", plugin)]
    with contextlib.ExitStack() as stack:
        port = 0
        if suite.wants_redis:
            if Redis.missing() is not None:
                sys.exit("The suites of Celery need a Redis server for results: apt-get install redis-server")
            port = stack.enter_context(Redis(folder, is_durable=False)).port
        daemon = stack.enter_context(Daemon(folder / name))
        environment = {
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(port),
            "TEST_BACKEND": f"redis://127.0.0.1:{port}/0",
            "TEST_BROKER": daemon.url,
            "TICKWHEEL_SUITE_REPORT": str(report),
            "WORKER_LOGLEVEL": "INFO",
        }
        exit_code = run(" ".join([*words, *suite.files]), source, environment, log, _LIMIT_S)
    if not report.exists():
        return [f"the suite did not come to its end:\n{tail(log)}"]
    ran = [Ran(test, End(end)) for test, end in json.loads(report.read_text()).items()]
    counts = ", ".join(f"{sum(one.end is end for one in ran)} {end}" for end in End)
    print(f"{name}: {counts}", flush=True)
    found = complaints(ran, expected(KNOWN, name), exit_code)
    return [*found, tail(log)] if found else []


def main() -> int:
    """0: all is as it is known to be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"Of {', '.join(SUITES)}; all by default.")
    parser.add_argument("--python", default=sys.executable, help="With what the suites need installed.")
    chosen = parser.parse_args()
    unknown = set(chosen.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    python = os.path.abspath(chosen.python)
    is_bad = False
    with tempfile.TemporaryDirectory(prefix="tickwheel-celery-") as name:
        for suite in chosen.suites or SUITES:
            for complaint in judge(suite, python, Path(name)):
                is_bad = True
                print(f"{suite}: {complaint}", flush=True)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
