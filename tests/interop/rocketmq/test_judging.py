"""What is said of the runs of others' suites: on small reports, without the suites."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients.waiting import until
from tests.support.run.their_suites import (
    MOCHAWESOME,
    SUREFIRE,
    BadReport,
    End,
    Expected,
    Ran,
    Read,
    Reports,
    complaints,
    expected,
    read_mochawesome,
    read_surefire,
    run,
)

HERE: Final = Path(__file__).parent
REPORTS: Final = HERE / "reports"
OF_ORDER: Final = "surefire-reports/TEST-org.example.OrderTest.xml"

OF_JUNIT: Final = [
    Ran("DelayTest.testDelay", End.PASSED),
    Ran("DelayTest.testNack", End.PASSED),
    Ran("OrderTest.testNack", End.PASSED),
    Ran("OrderTest.testManyNacks", End.FAILED),
    Ran("OrderTest.testStart", End.FAILED),
    Ran("OrderTest.testLater", End.SKIPPED),
]
OF_MOCHA: Final = [
    Ran("Producer send() should send", End.PASSED),
    Ran("Producer send() should send in order", End.FAILED),
    Ran("Consumer should start", End.SKIPPED),
    Ran("Consumer should receive", End.SKIPPED),
    Ran('Consumer "before all" hook', End.FAILED),
    Ran("util should work", End.PASSED),
]
WANT: Final = Expected(5, {"OrderTest.testManyNacks": "one at a time", "OrderTest.testStart": "no address"})


def nothing_to_do_with_it(folder: Path) -> Path:
    """A folder of a suite that ran before."""
    shutil.copytree(REPORTS / "surefire-reports", folder / "e2e" / "target" / "surefire-reports")
    return folder / "e2e" / "target" / OF_ORDER


def test_the_reports_of_junit(tmp_path: Path) -> None:
    reports = Reports(tmp_path, SUREFIRE, read_surefire)
    nothing_to_do_with_it(tmp_path)
    assert reports.ran() == OF_JUNIT


def test_the_report_of_mocha(tmp_path: Path) -> None:
    reports = Reports(tmp_path, MOCHAWESOME, read_mochawesome)
    file = tmp_path / MOCHAWESOME
    file.parent.mkdir(parents=True)
    shutil.copy(REPORTS / "mochawesome.json", file)
    assert reports.ran() == OF_MOCHA


def test_reports_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    old = nothing_to_do_with_it(tmp_path)
    reports = Reports(tmp_path, SUREFIRE, read_surefire)
    assert reports.ran() == []
    again = old.read_bytes()
    old.unlink()
    old.write_bytes(again)
    os.utime(old, ns=(1, 1))
    assert reports.ran() == OF_JUNIT[2:]


@pytest.mark.parametrize(
    ("read", "file"), [(read_surefire, OF_ORDER), (read_mochawesome, "mochawesome.json")]
)
def test_a_report_that_was_cut_off(tmp_path: Path, read: Read, file: str) -> None:
    whole = (REPORTS / file).read_text()
    cut = tmp_path / "cut"
    for part in (whole[: len(whole) // 2], "", "[]"):
        cut.write_text(part)
        with pytest.raises(BadReport, match="cut"):
            read(cut)


def test_a_run_that_is_as_expected() -> None:
    assert complaints(OF_JUNIT, WANT, 1) == []
    assert complaints([Ran("a", End.PASSED)], Expected(1, {}), 0) == []


def test_a_failure_that_is_not_known() -> None:
    ran = [*OF_JUNIT[1:], Ran("DelayTest.testDelay", End.FAILED)]
    assert complaints(ran, WANT, 1) == ["DelayTest.testDelay failed, and is not known to"]


def test_a_known_failure_that_passes() -> None:
    ran = [one._replace(end=End.PASSED) if one.name == "OrderTest.testStart" else one for one in OF_JUNIT]
    assert complaints(ran, WANT, 1) == ["OrderTest.testStart passed, and is listed as a failure (no address)"]


@pytest.mark.parametrize("end", [None, End.SKIPPED])
def test_a_known_failure_that_did_not_run(end: End | None) -> None:
    ran = [one for one in OF_JUNIT if one.name != "OrderTest.testStart"]
    if end is not None:
        ran.append(Ran("OrderTest.testStart", end))
    assert complaints(ran, WANT, 1) == [
        "4 tests ran, and 5 should have",
        "OrderTest.testStart, which is known to fail, did not run",
    ]


def test_a_run_of_too_few_tests_that_all_pass() -> None:
    three = [Ran(f"T.test{number}", End.PASSED) for number in range(3)]
    assert complaints(three, Expected(119, {}), 0) == ["3 tests ran, and 119 should have"]
    assert complaints([], Expected(119, {}), 0) == ["0 tests ran, and 119 should have"]
    skipped = [Ran(f"T.test{number}", End.SKIPPED) for number in range(119)]
    assert complaints(skipped, Expected(119, {}), 0) == ["0 tests ran, and 119 should have"]


def test_tests_of_one_name_are_not_two() -> None:
    ran = [Ran("T.test", End.PASSED), Ran("T.test", End.PASSED)]
    assert complaints(ran, Expected(2, {}), 0) == ["T.test is there 2 times"]


def test_a_command_that_fails_although_all_tests_pass() -> None:
    ran = [Ran("T.test", End.PASSED)]
    assert complaints(ran, Expected(1, {}), 137) == ["no test failed, and the command ended with 137"]


def test_each_known_failure_has_a_reason(tmp_path: Path) -> None:
    for suite in ("e2e", "node"):
        want = expected(HERE / "known_failures.toml", suite)
        assert want.tests > len(want.failures) > 0
    file = tmp_path / "known.toml"
    file.write_text('[a]\ntests = 2\n[a.failures]\n"T.test" = " "\n')
    with pytest.raises(ValueError, match=r"T\.test"):
        expected(file, "a")


def test_a_command_has_the_environment(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run('echo "$A in $PWD"; echo 2 >&2; exit 3', tmp_path, {"A": "one"}, log, 60) == 3
    assert log.read_text() == f"one in {tmp_path}\n2\n"


async def test_a_command_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run("sleep 600 & echo $!", tmp_path, {}, log, 60) == 0
    state = Path(f"/proc/{log.read_text().strip()}/stat")
    await until(lambda: _has_ended(state))
    with pytest.raises(subprocess.TimeoutExpired):
        run("sleep 600", tmp_path, {}, log, 0.01)


def _has_ended(state: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return state.read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    return True
