"""Runs Dramatiq's own tests on a real broker, and compares what they did with what is known: ``make dramatiq-suite``.

Its source distribution has the tests without what they import from beside them; that is in ``beside``. Results and rate
limits are kept in memory and in a Redis server, which is started for it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from tests.support.processes.daemon_harness import Daemon
from tests.support.run.their_suites import complaints, expected, read_surefire, run, tail
from tickwheel_bench.contenders import Redis

HERE: Final = Path(__file__).parent
KNOWN: Final = HERE / "known_failures.toml"
FILES: Final = ("actors", "callbacks", "composition", "results", "worker", "generic_actors", "messages")
LIMIT_S: Final = 1_200


def unpack(archive: Path, into: Path) -> None:
    """The tests of a source distribution, with what is beside them."""
    with tarfile.open(archive) as opened:
        wanted = [one for one in opened.getmembers() if "/tests/" in one.name and one.isfile()]
        for one in wanted:
            one.name = one.name.partition("/")[2]
        opened.extractall(into, wanted, filter="data")
    for ours, theirs in {"fixtures.py": "conftest.py", "common.py": "common.py"}.items():
        shutil.copy(HERE / "beside" / ours, into / "tests" / theirs)
    (into / "tests" / "__init__.py").touch()
    (into / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")


def races() -> list[str]:
    """Tests that pass or fail by chance, and so cannot be judged; each has its reason."""
    found: dict[str, str] = tomllib.loads(KNOWN.read_text())["suite"]["races"]
    assert all(reason.strip() for reason in found.values())
    return list(found)


def judge(archive: Path, words: list[str]) -> list[str]:
    """What is wrong; empty when all is as known."""
    with tempfile.TemporaryDirectory(prefix="tickwheel-dramatiq-") as name:
        folder = Path(name)
        unpack(archive, folder)
        report, log = folder / "report.xml", folder / "log.txt"
        files = " ".join(f"tests/test_{one}.py" for one in FILES)
        left_out = [f"--deselect=tests/{name.replace('.', '.py::', 1)}" for name in races()]
        command = (
            f"{sys.executable} -m pytest -c pytest.ini -p no:cacheprovider -p no:xdist -p no:trio "
            f"--junitxml={report} {files} {shlex.join([*left_out, *words])}"
        )
        with Daemon(folder / "data") as daemon, Redis(folder, is_durable=False) as redis:
            around = {
                "TICKWHEEL_SUITE_BROKER": daemon.url,
                "TICKWHEEL_SUITE_REDIS": redis.url,
                "PYTHONPATH": os.pathsep.join(sys.path),
            }
            code = run(command, folder, around, log, LIMIT_S)
        print(tail(log) if not words else log.read_text(errors="replace"))
        return complaints(read_surefire(report), expected(KNOWN, "suite"), code)


def main() -> int:
    """1 if something is not as known."""
    parser = argparse.ArgumentParser(description="Runs Dramatiq's own tests with Tickwheel as the broker.")
    parser.add_argument("archive", type=Path, help="its source distribution")
    parser.add_argument("words", nargs="*", help="more words for pytest, behind --")
    given = parser.parse_args()
    if Redis.missing() is not None:
        parser.error("there is no redis-server: apt-get install redis-server")
    wrong = judge(given.archive, given.words)
    for one in wrong:
        print(f"WRONG: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
