"""A connection for each token in use, at a real broker; and what a token may do."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from tests.support.clients.in_time import broker_in_time
from tickwheel import Client
from tickwheel.errors import ShuttingDown, TooManyConnections
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.rights import CONSUME, PUBLISH, check_right
from tickwheel_gateway.wire.codes import Code, Refused


async def test_one_connection_for_each_token_as_long_as_it_is_used(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with broker_in_time(tmp_path) as place:
        opened: list[str] = []

        def open_client(token: str) -> Client:
            opened.append(token)
            return place.client()

        brokers = Brokers(open_client, idle_s=10.0, most=2)
        with pytest.raises(ShuttingDown):
            async with brokers.client(""):
                pass
        async with brokers.running():
            async with brokers.client("") as first, brokers.client("", "10.0.0.1") as again:
                assert first is again
                await first.fetch("orders", "billing", count=0)
                async with brokers.client("other"):
                    assert len(brokers) == 2
                    with pytest.raises(TooManyConnections):
                        async with brokers.client("third"):
                            pass
                await trio.sleep(11.0)
                assert (len(brokers), brokers.is_connected) == (1, True)
            await trio.sleep(11.0)
            assert len(brokers) == 0
            async with brokers.client("") as later:
                assert later is not first
        assert opened == ["", "other", ""]


class Limited:
    """A client that has logged in."""

    def __init__(self, grants: list[str] | None) -> None:
        self.grants = grants


def check(grants: list[str] | None, permission: str, *topics: str) -> None:
    check_right(cast(Client, Limited(grants)), permission, topics)


def test_rights_are_those_of_the_broker() -> None:
    check(None, CONSUME, "orders")
    check(["consume:orders.*"], CONSUME, "orders.eu", "orders.us")
    check([], CONSUME)


@pytest.mark.parametrize(
    ("grants", "permission", "topics"),
    [
        (["consume:orders.*"], CONSUME, ["orders.eu", "mails"]),
        (["consume:*"], PUBLISH, ["orders"]),
        ([], CONSUME, ["orders"]),
    ],
)
def test_rights_that_it_has_not_granted(grants: list[str], permission: str, topics: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        check(grants, permission, *topics)
    assert caught.value.code == Code.FORBIDDEN
