"""Few snapshots at a time, and none that is looked at is closed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.unit.flight.filled import fill
from tickwheel_flight.directory import Directory
from tickwheel_flight.snapshots import (
    IDLE_S,
    KEPT_READINGS,
    MAX_READINGS,
    PATIENCE_S,
    Snapshots,
    StoodStill,
    TooManyReadings,
)
from tickwheel_flight.tickets import Moment
from timerlog.readers.describe import Offline


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    found: Path = tmp_path_factory.mktemp("snapshots") / "data"
    fill(found)
    return Directory(found).now()[1]


class World:
    def __init__(self, offline: Offline) -> None:
        self.now_s = 0.0
        self.offline = offline
        self.snapshots = Snapshots(lambda: self.now_s)

    def borrow(self, number: int, has_left: bool = True, reader: str = ""):  # type: ignore[no-untyped-def]
        """For a reading of its own; by default of a reader of its own, who does not wait."""
        moment = Moment("0" * 16, number, 1, 1, 0, True)
        return self.snapshots.borrow(moment, self.offline, lambda: has_left, reader or f"reader-{number}")


def test_streams_of_a_reading_share_a_snapshot(offline: Offline) -> None:
    world = World(offline)
    with world.borrow(1) as one:
        with world.borrow(1) as other:
            assert one is other
        assert not one.is_gone
        with world.borrow(2) as third:
            assert third.snapshot is not one.snapshot
    assert one.is_gone
    with world.borrow(1) as again:
        assert again is not one


def test_who_reads_much_leaves_room_for_others(offline: Offline) -> None:
    world = World(offline)
    with ExitStack() as held:
        for number in range(MAX_READINGS - KEPT_READINGS):
            held.enter_context(world.borrow(number, reader="much"))
        with pytest.raises(TooManyReadings):
            world.borrow(98, reader="much").__enter__()
        with world.borrow(0, reader="much"), world.borrow(99, reader="other"):
            pass
        for number in range(KEPT_READINGS):
            held.enter_context(world.borrow(100 + number, reader=f"other-{number}"))
        with pytest.raises(TooManyReadings):
            world.borrow(99, reader="another").__enter__()


def test_who_stands_still_makes_room(offline: Offline) -> None:
    world = World(offline)
    held = [world.borrow(number) for number in range(MAX_READINGS)]
    opened = [one.__enter__() for one in held]
    with pytest.raises(TooManyReadings):
        world.borrow(99).__enter__()
    world.now_s = IDLE_S
    for one in opened[1:]:
        with world.snapshots.working(one):
            assert one.snapshot.messages is not None
    with world.snapshots.working(opened[0]), pytest.raises(TooManyReadings):
        world.borrow(99).__enter__()
    world.now_s += IDLE_S - 1
    with world.snapshots.working(opened[1]):
        pass
    world.now_s += 1
    with world.borrow(99):
        assert [one.is_gone for one in opened[:2]] == [True, False]
    with pytest.raises(StoodStill), world.snapshots.working(opened[0]):
        pass
    for context in held:
        context.__exit__(None, None, None)
    with world.borrow(0) as found:  # as if nothing had been
        assert found.streams == 1


def test_a_reader_waits_for_room_and_no_longer(offline: Offline) -> None:
    world = World(offline)
    held = [world.borrow(number) for number in range(MAX_READINGS)]
    opened = [one.__enter__() for one in held]

    def patient() -> bool:
        """The others go on reading meanwhile."""
        world.now_s += PATIENCE_S / 4
        for one in opened:
            one.used_s = world.now_s
        return False

    with pytest.raises(TooManyReadings):
        world.snapshots.borrow(Moment("0" * 16, 99, 1, 1, 0, True), offline, patient).__enter__()
    assert world.now_s == PATIENCE_S
    for one in held:
        one.__exit__(None, None, None)
