"""The architecture page follows a message on four ways: each file is there, and a room entered twice says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
WAYS = ("Sent", "Due", "Delivered", "Acked")
ROOTS = (ROOT, ROOT / "tickwheel", ROOT / "broker" / "tickwheel_broker")
BROKER = "(root)"


class Stop(NamedTuple):
    """A row: a room, or none if it is that of the row above."""

    number: int
    room: str
    is_again: bool
    files: list[str]


def way(name: str) -> list[Stop]:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n**{name}.**")[2]
    table = text.partition("|---|")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [
        Stop(
            int(number),
            BROKER if room.startswith(BROKER) else "".join(re.findall(r"`([\w/]+)/`", room)),
            room.endswith(" again"),
            re.findall(r"`([\w/]+\.\w+)`", files),
        )
        for number, room, files, _ in cells
    ]


def places(room: str) -> list[Path]:
    if room == BROKER:
        return [ROOTS[2]]
    return [root / room for root in ROOTS if (root / room).is_dir()]


@pytest.mark.parametrize("name", WAYS)
def test_each_file_is_in_its_room(name: str) -> None:
    room = ""
    for stop in way(name):
        room = stop.room or room
        assert len(found := places(room)) == 1, stop
        assert stop.files, stop
        for file in stop.files:
            assert (found[0] / file).is_file() or (ROOT / file).is_file(), f"{room}: {file}"


@pytest.mark.parametrize("name", WAYS)
def test_a_room_that_is_entered_twice_says_so(name: str) -> None:
    stops = way(name)
    assert [stop.number for stop in stops] == list(range(1, len(stops) + 1))
    entered = [stop for stop in stops if stop.room]
    rooms = [stop.room for stop in entered]
    assert len(set(rooms)) >= 3
    assert [stop.room in rooms[:index] for index, stop in enumerate(entered)] == [
        stop.is_again for stop in entered
    ]
