"""The moves of messages and deliveries that a broker makes while everything fails are those of ``timerlog.life``."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import ALONE, keeps_every_promise
from tests.support.stores.life import Watch, listed, moving
from timerlog.layout import DeliveryState, MessageState, RecordType
from timerlog.life import DELIVERIES, MESSAGES

SEEDS = range(4)


def test_a_broker_makes_no_move_that_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    for seed in SEEDS:
        keeps_every_promise(seed, ALONE)
    assert moving(watch.messages) <= listed(MESSAGES)
    assert moving(watch.deliveries) <= listed(DELIVERIES)
    assert (RecordType.PUT, MessageState.SCHEDULED, MessageState.READY) in watch.messages
    for step in (
        (RecordType.LEASE, DeliveryState.LEASED, DeliveryState.LEASED),
        (RecordType.ACK, DeliveryState.LEASED, DeliveryState.ACKED),
        (RecordType.NACK, DeliveryState.LEASED, DeliveryState.WAITING),
    ):
        assert step in watch.deliveries, step
