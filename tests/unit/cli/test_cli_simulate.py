"""`tickwheel simulate`: which seeds it takes. What it finds has its own tests in tests/simulation."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tickwheel_cli.main import root


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--seeds", "9-2"), "the smaller one comes first"),
        (("--seeds", "1-"), "is no range of seeds"),
        (("--seeds", "1-2", "--seed", "3"), "exclude each other"),
        (("--url", "tickwheel://127.0.0.1:1"), "No such option"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], problem: str) -> None:
    done = CliRunner().invoke(root, ["simulate", *arguments])
    assert (done.exit_code, problem in done.output) == (2, True), done.output
