"""A delay says its unit: a timedelta, or milliseconds by name. A bare number is refused wherever a delay is taken."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tickwheel
from tests.support.outbox.messages import message_table, send
from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer
from tickwheel import Client
from tickwheel.client.admin.topics import wire_settings
from tickwheel.errors import BadTime

BARE: list[Any] = [5, -5, 0.5, np.array([5, 6]), array("q", [5, 6]), [timedelta(1), 5], True]
SECONDS = timedelta(seconds=5)


@on_both
async def test_a_bare_number_is_refused_wherever_a_delay_is_taken() -> None:
    async with FakeServer() as server, Client(dial=server.dial) as client:
        await client.send("tea", b"held")
        transaction = client.transaction()
        async with client.subscribe("tea") as subscription:
            message = await subscription.receive()
            assert message is not None
            asked: list[Callable[[Any], Awaitable[Any]]] = [
                lambda bare: client.send("tea", b"x", delay=bare),
                lambda bare: client.send_many("tea", [b"x"], delay=bare),
                lambda bare: client.prepare("tea", b"x", delay=bare),
                lambda bare: client.reschedule(id=1, delay=bare),
                lambda bare: client.redeliver(id=1, delay=bare),
                lambda bare: client.reschedule_where("tea", delay=bare),
                lambda bare: client.redeliver_where("tea", delay=bare),
                lambda bare: client.create_schedule("s", "tea", every=bare),
                lambda bare: client.set_schedule("s", window=bare),
                lambda bare: client.create_topic("tea", ack_wait=bare),
                lambda bare: message.nack(bare),
                lambda bare: message.extend(bare),
            ]
            requests = len(server.events)
            for bare, ask in product((5, -5, 0.5), asked):
                with pytest.raises(BadTime, match="does not say in which unit"):
                    await ask(bare)
            with pytest.raises(BadTime, match="does not say in which unit"):
                transaction.send("tea", b"x", delay=5)
            with pytest.raises(BadTime, match="does not say in which unit"):
                transaction.reschedule(id=1, delay=5)
            assert len(server.events) == requests


@on_both
async def test_many_delays_have_units_too() -> None:
    async with FakeServer() as server, Client(dial=server.dial) as client:
        for bare in BARE:
            with pytest.raises(BadTime):
                await client.send_many("tea", [b"a", b"b"], delay=bare)
        with warnings.catch_warnings(action="ignore"):  # NumPy 2.5 deprecates that there is no unit
            generic = np.array([5, 6], dtype="timedelta64")
        with pytest.raises(BadTime, match="do not say in which unit"):
            await client.send_many("tea", [b"a", b"b"], delay=generic)
        with pytest.raises(BadTime, match="NaT"):
            await client.send_many("tea", [b"a"], delay=np.array(["NaT"], dtype="timedelta64[s]"))
        assert server.messages == []
        for options in (
            {"delay": [SECONDS, timedelta(seconds=6)]},
            {"delay": np.array([5, 6], dtype="timedelta64[s]")},
            {"delay": np.array([4_999_999_999, 5_999_000_001], dtype="timedelta64[ns]")},
            {"delay_ms": [5_000, 6_000]},
            {"delay_ms": array("q", [5_000, 6_000])},
            {"delay_ms": np.array([5_000, 6_000])},
        ):
            await client.send_many("tea", [b"a", b"b"], **options)
            assert [(one.time_ms, one.relative) for one in server.messages[-2:]] == [
                (5_000, True),
                (6_000, True),
            ]


@on_both
async def test_milliseconds_by_name_and_zero_are_taken() -> None:
    async with FakeServer() as server, Client(dial=server.dial) as client:
        for options in ({"delay": SECONDS}, {"delay_ms": 5_000}):
            sent = await client.send("tea", b"a", **options)
            assert (server.messages[-1].time_ms, server.messages[-1].relative) == (5_000, True)
            assert await client.reschedule(id=sent.id, **options) == "rescheduled"
        await client.send("tea", b"a", delay=0)
        assert server.messages[-1].time_ms == 0
        for two in ({"delay": SECONDS, "delay_ms": 1}, {"deliver_at": datetime.now(UTC), "delay_ms": 1}):
            with pytest.raises(BadTime, match="Both"):
                await client.send("tea", b"a", **two)
        with pytest.raises(BadTime, match="delay_ms is a timedelta"):
            await client.send("tea", b"a", delay_ms=SECONDS)  # type: ignore[arg-type]


def test_the_advice_says_what_to_write() -> None:
    with pytest.raises(BadTime) as refused:
        wire_settings({"ack_wait": 5})
    assert refused.value.advice == "Write ack_wait=timedelta(seconds=5), or ack_wait_ms=5 for milliseconds."
    assert wire_settings({"ack_wait_ms": 5, "max_backoff": SECONDS}) == {
        "ack_wait_ms": 5,
        "max_backoff_ms": 5_000,
    }


def test_message_tables_take_no_bare_numbers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mails.db'}"
    with message_table(url) as table:
        send(table, "now", delay=0)
        with table.database.begin() as connection:
            for refused in (
                lambda: table.send(connection, message="x", delay=5),  # type: ignore[arg-type]
                lambda: table.send_many(connection, [{"message": "x"}], delay=0.5),  # type: ignore[arg-type]
                lambda: table.reschedule(connection, [1], delay=5),  # type: ignore[arg-type]
            ):
                with pytest.raises(BadTime, match="does not say in which unit"):
                    refused()
        claimed = table.claim(5)
        for wait in (claimed.nack, claimed.extend, claimed[0].nack, claimed[0].extend):
            with pytest.raises(BadTime, match="does not say in which unit"):
                wait(5)  # type: ignore[arg-type]
        claimed.nack(delay_ms=5)


def test_the_blocking_client_says_the_same(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        with pytest.raises(BadTime, match="does not say in which unit"):
            client.send("tea", b"x", delay=5)  # type: ignore[arg-type]
        client.send("tea", b"x", delay_ms=1)
        with client.subscribe("tea") as subscription:
            message = subscription.receive(timeout=20)
            assert message is not None
            with pytest.raises(BadTime, match="does not say in which unit"):
                message.nack(5)  # type: ignore[arg-type]
            assert message.nack(delay_ms=5) == "nacked"
