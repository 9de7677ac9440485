"""`tickwheel simulate` on the command line."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from click.testing import CliRunner

from tickwheel_cli.main import root
from timerlog.services.dequeue_get import DequeueGet


def simulate(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(root, ["simulate", *arguments], standalone_mode=True)
    return found.exit_code, found.output


def test_each_seed_has_a_line() -> None:
    code, output = simulate("--seeds", "3-4", "--hours", "0.001")
    assert code == 0
    assert [line.partition(";")[0] for line in output.splitlines()] == ["seed 3: ok", "seed 4: ok"]


def test_json_says_all_of_it() -> None:
    code, output = simulate("--seed", "3", "--hours", "0.001", "--json")
    assert code == 0
    report = json.loads(output)
    assert report["violation"] == ""
    assert report["profile"]["producers"] >= 1
    assert report["command"] == "tickwheel simulate --seed 3 --hours 0.001"


def test_a_failure_says_how_to_see_it_again() -> None:
    with mock.patch.object(DequeueGet, "turn", side_effect=ZeroDivisionError("a defect")):
        code, output = simulate("--seed", "3", "--hours", "0.002")
    assert code == 1
    assert "seed 3: FAILED" in output
    assert "ZeroDivisionError: a defect" in output
    assert output.splitlines()[-1] == "To repeat it: tickwheel simulate --seed 3 --hours 0.002"


@pytest.mark.parametrize(
    "arguments", [("--seeds", "x"), ("--seeds", "1-"), ("--seed", "1", "--seeds", "1-2")]
)
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...]) -> None:
    assert simulate(*arguments)[0] == 2
