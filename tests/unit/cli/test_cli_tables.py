"""Tables: nothing is cut, whatever the width."""

from __future__ import annotations

import click
import pytest

from tickwheel_cli.shared.output import counted
from tickwheel_cli.shared.tables import table_lines

COLUMNS = (("topic", "left"), ("ready", "right"), ("subscribers", "right"))
ROWS = [["reminders", "3", "12"], ["q" * 30, "1,000", "0"]]


def plain(width: int | None, *optional: str) -> list[str]:
    return [click.unstyle(line) for line in table_lines(COLUMNS, ROWS, width, optional=optional)]


def test_a_pipe_gets_everything_on_one_line() -> None:
    wide = [["x" * 500, "1", "2"]]
    assert table_lines(COLUMNS, wide, None)[1] == f"{'x' * 500}      1            2"


def test_columns_are_aligned() -> None:
    assert plain(100) == [
        "topic                           ready  subscribers",
        "reminders                           3           12",
        f"{'q' * 30}  1,000            0",
    ]


def test_a_narrow_terminal_leaves_out_what_matters_least() -> None:
    assert plain(49, "subscribers") == [
        "topic                           ready",
        "reminders                           3",
        f"{'q' * 30}  1,000",
        "(no room for: subscribers)",
    ]


@pytest.mark.parametrize("optional", [(), ("subscribers",)])
def test_a_terminal_that_is_too_narrow_gets_records(optional: tuple[str, ...]) -> None:
    assert plain(36, *optional) == [
        "topic        reminders",
        "ready        3",
        "subscribers  12",
        "",
        f"topic        {'q' * 30}",
        "ready        1,000",
        "subscribers  0",
    ]


def test_wide_characters_take_two_columns() -> None:
    rows = [["時間", "1"], ["abcd", "2"]]
    assert table_lines((("a", "left"), ("b", "left")), rows, None)[1:] == ["時間  1", "abcd  2"]


@pytest.mark.parametrize(("number", "text"), [(0, "0 messages"), (1, "1 message"), (2_000, "2,000 messages")])
def test_numbers_of_things(number: int, text: str) -> None:
    assert counted(number, "message") == text
