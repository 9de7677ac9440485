"""What the broker says of a token: how long it counts, and what its silence means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel.errors import NotConnected, TokenRevoked
from tickwheel.protocol.grants import Granted
from tickwheel_flight.callers import FRESH_S, TRUSTED_S, Callers
from tickwheel_flight.server import address_of


class Broker:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[str, str]] = []
        self.answer: Granted | Exception = Granted(None)
        self.callers = Callers(self.log_in, lambda: self.now_s)

    def log_in(self, token: str, address: str) -> Granted:
        self.asked.append((token, address))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_an_answer_counts_for_some_seconds() -> None:
    broker = Broker()
    for _ in range(5):
        assert broker.callers.granted("t", "1.2.3.4") is broker.answer
    assert broker.asked == [("t", "1.2.3.4")]
    broker.callers.granted("t", "5.6.7.8")
    broker.callers.granted("u", "1.2.3.4")
    assert len(broker.asked) == 3
    broker.now_s = FRESH_S
    broker.callers.granted("t", "1.2.3.4")
    assert len(broker.asked) == 4


def test_a_token_that_is_refused_is_forgotten() -> None:
    broker = Broker()
    broker.callers.granted("t", "a")
    broker.now_s, broker.answer = FRESH_S, TokenRevoked()
    with pytest.raises(TokenRevoked):
        broker.callers.granted("t", "a", has_begun=True)
    broker.answer = NotConnected()
    with pytest.raises(NotConnected):
        broker.callers.granted("t", "a", has_begun=True)


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_a_stream_goes_on_for_a_while_without_the_broker() -> None:
    broker = Broker()
    granted = broker.callers.granted("t", "a")
    broker.answer, broker.now_s = NotConnected(), TRUSTED_S - 1
    assert broker.callers.granted("t", "a", has_begun=True) is granted
    with pytest.raises(NotConnected):  # a new one does not begin
        broker.callers.granted("t", "a")
    broker.now_s = TRUSTED_S
    with pytest.raises(NotConnected):
        broker.callers.granted("t", "a", has_begun=True)


@table(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:40792", "127.0.0.1"),
        ("ipv6:%5B::1%5D:40792", "::1"),
        ("ipv6:[fe80::1%25eth0]:40792", "fe80::1"),
        ("ipv6:[::ffff:10.0.0.1]:1", "10.0.0.1"),
        ("unix:/run/x.sock", "unknown"),
        ("", "unknown"),
    ],
)
def test_addresses_of_readers(peer: Any, address: str) -> None:
    assert address_of(peer) == address
