"""What `make test` runs: the lanes, one after the other, and then, alone, what failed of the tests that start programs.

A failure that does not come again is a flake: the run is green, says FLAKY with the name, and keeps both outputs in
`build/flaky.jsonl`. Find why: a flake is a defect of the product until shown otherwise. `tests/flaky.toml` lists those
that somebody looks into. A failure of a test that starts no program is final.

    python -m tests.support.run.gate [--jobs N] [--durations | --overdue | words for pytest …]

With words for pytest, it runs what they name in the usual way, once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.run.lanes import LANES, processes
from tests.support.run.outcomes import ENDED, SECONDS
from tests.support.run.profile import PROCESSES

ROOT: Final = Path(__file__).resolve().parents[3]
OUTCOMES: Final = ROOT / "build" / "outcomes"
FLAKY: Final = ROOT / "build" / "flaky.jsonl"
DURATIONS: Final = Path(__file__).with_name("durations.json")
WORTH_S: Final = 3
"""A file that takes less needs no place of its own in the order."""
LIST: Final = ROOT / "tests" / "flaky.toml"
MANY: Final = 10
"""More failures than these are no flakes."""
DAYS: Final = 14
"""A test stays in the list no longer."""
PASSED, FAILED, NOTHING_RAN = 0, 1, 5
"""How pytest ends."""


class End(NamedTuple):
    """How a test ended in one run of pytest."""

    test: str
    failed: bool
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--durations", action="store_true", help="write what the last run took")
    parser.add_argument(
        "--overdue", action="store_true", help="fail when a flake is in the list for too long"
    )
    known, words = parser.parse_known_args(arguments)
    if known.durations:
        print(write_durations())
        return PASSED
    if known.overdue:
        wrong = overdue(datetime.now(UTC).date())
        print("\n".join(wrong), file=sys.stderr)
        return FAILED if wrong else PASSED
    if words:
        return pytest(f"--numprocesses={known.jobs}", *words)
    shutil.rmtree(OUTCOMES, ignore_errors=True)
    codes, failed = [], list[End]()
    for lane in LANES:
        print(f"\n=== {lane} ===", flush=True)
        jobs = processes(lane, known.jobs)
        codes.append(pytest(f"--numprocesses={jobs}", f"--lane={lane}", f"--outcomes={OUTCOMES / lane}"))
        failed += [end for end in ends(OUTCOMES / lane) if end.failed]
    if set(codes) <= {PASSED, NOTHING_RAN}:
        return PASSED
    if not set(codes) <= {PASSED, FAILED, NOTHING_RAN} or not failed:
        return max(codes)
    return again(failed)


def again(failed: Sequence[End]) -> int:
    """Run the failed tests once more, alone; say which were flakes. Returns how pytest would end."""
    tests = sorted({end.test for end in failed})
    final = [test for test in tests if not test.startswith(PROCESSES)]
    if final or len(tests) > MANY:
        reason = "start no program" if final else f"are more than {MANY}"
        print(f"\nNot run again, because failures {reason}: {', '.join(final or tests)}", flush=True)
        return FAILED
    print("\n=== what failed, once more ===", flush=True)
    folder = OUTCOMES / "again"
    code = pytest("--numprocesses=0", f"--outcomes={folder}", *tests)
    ended = ends(folder)
    for test in tests:
        later = [end for end in ended if end.test == test]
        if later and not any(end.failed for end in later):
            first = "\n".join(end.output for end in failed if end.test == test)
            keep(test, first, "\n".join(end.output for end in later))
    return code


def keep(test: str, first: str, second: str) -> None:
    """Say that a test is a flake, and write down both of its outputs."""
    print(f"FLAKY {test}", flush=True)
    FLAKY.parent.mkdir(exist_ok=True)
    line = {"test": test, "at": datetime.now(UTC).isoformat(), "failed": first, "passed": second}
    with FLAKY.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def ends(folder: Path) -> list[End]:
    """How tests ended in a run with this folder."""
    path = folder / ENDED
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [End(**json.loads(line)) for line in lines]


def overdue(today: date, path: Path = LIST) -> list[str]:
    """What is wrong with the list of flakes: a test that is in it for too long, or a line without its words."""
    wrong = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("flaky", []):
        if set(entry) != {"test", "since", "why"} or not isinstance(entry["since"], date):
            wrong.append(f"{entry}: an entry has test, since (a date) and why")
        elif (today - entry["since"]).days > DAYS:
            wrong.append(
                f"{entry['test']} is in {path.name} since {entry['since']}: repair it ({entry['why']})"
            )
    return wrong


def write_durations() -> str:
    """Write what the last run took for the order of the next; return a table by folder, for `docs/reliability.md`."""
    seconds: Counter[str] = Counter()
    for path in OUTCOMES.glob(f"*/{SECONDS}"):
        seconds.update(json.loads(path.read_text(encoding="utf-8")))
    long = {file: round(s) for file, s in sorted(seconds.items()) if s >= WORTH_S}
    DURATIONS.write_text(json.dumps(long, indent=1) + "\n", encoding="utf-8")
    folders: Counter[str] = Counter()
    for file, s in seconds.items():
        folders["/".join(file.split("/")[:-1][:3])] += s
    rows = [f"| `{folder}` | {s:,.0f} |" for folder, s in folders.most_common()]
    return "\n".join(
        ["| folder | processor seconds |", "|---|---|", *rows, f"| all | {seconds.total():,.0f} |"]
    )


def pytest(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
