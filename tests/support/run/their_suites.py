"""Test suites that others wrote, judged: which of their tests ran, which failed, and which were known to.

What is expected of a suite is a table of ``known_failures.toml``: how many tests it has, and the failures that are
meant, by name with the reason. A test that fails and is not listed is a defect, and so is one that is listed and
passes, or did not run. Reports that were there before the suite ran do not count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

SUREFIRE: Final = "**/surefire-reports/TEST-*.xml"
MOCHAWESOME: Final = "node_modules/.mochawesome-reports/mochawesome.json"
_TAIL_CHARS: Final = 4_000


class End(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


_MOCHAS: Final = {"passed": End.PASSED, "failed": End.FAILED}
"""What Mocha says; a pending test has another word, and one that it did not come to has none."""


class Ran(NamedTuple):
    """A test, and how it ended."""

    name: str
    end: End


class Expected(NamedTuple):
    """What a suite should do."""

    tests: int
    """That run, whether they pass or not."""
    failures: dict[str, str]
    """By name, each with its reason."""


class BadReport(Exception):
    """A report cannot be read: its suite did not come to its end."""


Read: TypeAlias = Callable[[Path], list[Ran]]


def expected(file: Path, suite: str) -> Expected:
    """From a file such as ``known_failures.toml``."""
    table = tomllib.loads(file.read_text())[suite]
    failures: dict[str, str] = table["failures"]
    blank = [name for name, reason in failures.items() if not reason.strip()]
    if blank:
        raise ValueError(f"a known failure needs a reason: {', '.join(blank)}")
    return Expected(int(table["tests"]), failures)


def read_surefire(file: Path) -> list[Ran]:
    """A report of JUnit as Maven's Surefire writes it: one for each class. Raises BadReport."""
    try:
        root = ET.parse(file).getroot()
    except ET.ParseError as error:
        raise BadReport(f"{file.name}: {error}") from None
    return [Ran(_name_of(case), _end_of(case)) for case in root.iter("testcase")]


def _name_of(case: ET.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"


def _end_of(case: ET.Element) -> End:
    if case.find("failure") is not None or case.find("error") is not None:
        return End.FAILED
    return End.PASSED if case.find("skipped") is None else End.SKIPPED


def read_mochawesome(file: Path) -> list[Ran]:
    """The report of all tests of a run of Mocha. Raises BadReport."""
    try:
        report = json.loads(file.read_text())
        return [ran for suite in report["results"] for ran in _of_suite(suite)]
    except (ValueError, KeyError, TypeError) as error:
        raise BadReport(f"{file.name}: {error!r}") from None


def _of_suite(suite: dict[str, Any]) -> Iterator[Ran]:
    for test in suite["tests"]:
        yield Ran(test["fullTitle"], _MOCHAS.get(test["state"], End.SKIPPED))
    for hook in (*suite.get("beforeHooks", ()), *suite.get("afterHooks", ())):
        if hook.get("fail"):
            yield Ran(hook["fullTitle"], End.FAILED)
    for inner in suite["suites"]:
        yield from _of_suite(inner)


class Reports:
    """Those that a suite writes below a folder, from now on."""

    def __init__(self, folder: Path, pattern: str, read: Read) -> None:
        self._folder = folder
        self._pattern = pattern
        self._read = read
        self._before = self._there()

    def ran(self) -> list[Ran]:
        """The tests in what was written. Raises BadReport."""
        written = [file for file, when in sorted(self._there().items()) if self._before.get(file) != when]
        return [ran for file in written for ran in self._read(file)]

    def _there(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for file in self._folder.glob(self._pattern):
            about = file.stat()
            found[file] = about.st_mtime_ns, about.st_ino
        return found


def complaints(ran: list[Ran], want: Expected, exit_code: int) -> list[str]:
    """What is wrong with a run, each in a sentence; empty when all is as expected."""
    return list(_complaints(ran, want, exit_code))


def _complaints(ran: list[Ran], want: Expected, exit_code: int) -> Iterator[str]:
    ends = {one.name: one.end for one in ran}
    count = sum(one.end is not End.SKIPPED for one in ran)
    if count != want.tests:
        yield f"{count} tests ran, and {want.tests} should have"
    if exit_code and not any(one.end is End.FAILED for one in ran):
        yield f"no test failed, and the command ended with {exit_code}"
    for name, times in Counter(one.name for one in ran).items():
        if times > 1:
            yield f"{name} is there {times} times"
    for one in ran:
        if one.end is End.FAILED and one.name not in want.failures:
            yield f"{one.name} failed, and is not known to"
    for name, reason in want.failures.items():
        end = ends.get(name)
        if end is None or end is End.SKIPPED:
            yield f"{name}, which is known to fail, did not run"
        elif end is End.PASSED:
            yield f"{name} passed, and is listed as a failure ({reason})"


def run(command: str, folder: Path, environment: Mapping[str, str], log: Path, limit_s: float) -> int:
    """A developer's command, by the shell, with its output in a file. Its exit code; all that it started has ended by
    then. Raises TimeoutExpired."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tail(log: Path) -> str:
    """The end of a command's output."""
    return log.read_text(errors="replace")[-_TAIL_CHARS:]
