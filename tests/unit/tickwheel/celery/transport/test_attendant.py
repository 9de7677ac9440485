"""A thread that turns a connection, until it is told to leave, or the connection is lost for good."""

from __future__ import annotations

import logging
import threading

import pytest

from tickwheel.celery.transport import attendant
from tickwheel.celery.transport.attendant import Attendant
from tickwheel.protocol.errors import NotConnected

PATIENCE_S = 10


class Connection:
    """One that notes what is done with it, and may be lost."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.turns = 0
        self.has_turned_thrice = threading.Event()
        self._is_lost = is_lost

    def reconnect(self) -> None:
        if self._is_lost:
            raise NotConnected("It has been lost for 30 s.")

    def turn(self) -> None:
        self.turns += 1
        if self.turns == 3:
            self.has_turned_thrice.set()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendant, "_EVERY_S", 0.01)


def test_it_turns_until_it_leaves() -> None:
    connection = Connection()
    one = Attendant(connection)
    assert connection.has_turned_thrice.wait(PATIENCE_S)
    one.leave()
    turns = connection.turns
    assert not one._thread.is_alive()
    assert connection.turns == turns


def test_a_connection_that_is_lost_for_good(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tickwheel.celery"):
        one = Attendant(Connection(is_lost=True))
        one._thread.join(PATIENCE_S)
        one.leave()
    assert ["leases are not renewed" in record.message for record in caplog.records] == [True]
