"""The window of positions that have addresses, and how it moves."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.native.driver import MIB
from tests.support.stores.far import FAR
from tickwheel_native import memory
from timerlog.commitlog import addresses
from timerlog.commitlog.addresses import END_POSITION, LogAddresses
from timerlog.errors import DiskFull, LogAtItsEnd, NoAddressSpace


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("segment")
    os.pwrite(fd, b"here", 0)
    os.ftruncate(fd, MIB)
    yield fd
    os.close(fd)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as callbacks:
        yield callbacks


def nothing(_: memory.Address) -> None:
    """There is no segment."""


@pytest.mark.parametrize(
    "first",
    [0, 1 << 44, FAR, 1 << 46, 1 << 47, 1 << 48, 1 << 53, END_POSITION - MIB - 4096, END_POSITION - MIB],
)
def test_a_byte_lies_at_its_position(file: int, undo: ExitStack, first: int) -> None:
    window = LogAddresses(first, first + MIB)
    undo.callback(window.release)
    assert memory.map_file(window.pointer, first, file, 0, MIB, writable=False) == 0
    assert bytes(window.view(first, 5)) == b"here\0"
    assert window.holds(first, first + MIB)
    assert not window.holds(first - 1, first)


def test_it_moves_in_its_last_quarter(file: int, undo: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ROOM_BYTES", 7 * MIB)
    window = LogAddresses(0, MIB)
    undo.callback(window.release)
    assert (window.start, window.end) == (0, 8 * MIB)
    asked: list[memory.Address] = []

    def fill(pointer: memory.Address) -> None:
        asked.append(pointer)
        assert memory.map_file(pointer, 3 * MIB, file, 0, MIB, writable=False) == 0

    window.reach(3 * MIB, 6 * MIB, fill)
    assert (window.start, asked) == (0, [])
    window.reach(3 * MIB, 6 * MIB + 4096, fill)
    assert asked == [window.pointer]
    assert (window.start, window.end) == (3 * MIB, 13 * MIB + 4096)
    assert bytes(window.view(3 * MIB, 4)) == b"here"


def test_where_nothing_can_be_reserved_it_stays(undo: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ROOM_BYTES", 7 * MIB)
    window = LogAddresses(FAR, FAR + MIB)
    undo.callback(window.release)
    pointer = window.pointer

    def full(_: memory.Address) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    window.reach(FAR, FAR + 8 * MIB, full)
    with pytest.raises(NoAddressSpace, match="mapped elsewhere: Cannot allocate memory"):
        window.reach(FAR, FAR + 8 * MIB + 4096, full)
    assert (window.start, window.end, window.pointer) == (FAR, FAR + 8 * MIB, pointer)
    assert issubclass(NoAddressSpace, DiskFull), "what is accepted already goes on"


def test_a_log_that_spans_more_than_there_is(undo: ExitStack) -> None:
    with pytest.raises(NoAddressSpace, match="cannot reserve address space for the log"):
        LogAddresses(0, 1 << 47)


def test_the_last_position(undo: ExitStack) -> None:
    with pytest.raises(LogAtItsEnd, match=str(END_POSITION)):
        LogAddresses(END_POSITION - MIB, END_POSITION + 1)
    window = LogAddresses(END_POSITION - MIB, END_POSITION)
    undo.callback(window.release)
    with pytest.raises(LogAtItsEnd):
        window.reach(END_POSITION - MIB, END_POSITION + MIB, nothing)


def test_what_was_reserved_is_given_back() -> None:
    """A process has room for some sixty windows at a time, and for any number one after the other."""
    for number in range(200):
        window = LogAddresses(number * MIB, (number + 1) * MIB)
        window.reach(number * MIB, number * MIB + (1 << 41), nothing)
        window.release()
