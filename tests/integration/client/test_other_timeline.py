"""A client lives on while its broker's log becomes another one: a backup is restored, or the directory is an empty one.

It settles nothing that is not its own, and is given the rest.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Client, sync
from tickwheel.client.results import ReceiptResult
from tickwheel.errors import RequestUncertain, StaleReceipt
from tickwheel.protocol.receipts import Receipt, decode_receipt, encode_receipt
from tickwheel_bench.processes import free_port
from timerlog.maintenance.backup import back_up, restore

SENT = 5
HOUR = timedelta(hours=1)
PATIENCE = timedelta(seconds=PATIENCE_S)


class Lost:
    """A broker that is backed up, goes on, and is killed; then another directory is served at its address."""

    def __init__(self, tmp_path: Path, how: str) -> None:
        self.path, self.how, self.port = tmp_path, how, free_port()
        self.daemon = self.at("data").start()
        self.url = self.daemon.url

    def at(self, name: str) -> Daemon:
        return Daemon(self.path / name, listen_port=self.port, ack_wait="60s", drain_timeout="200ms")

    def back_up(self) -> None:
        back_up(self.path / "data", self.path / "copy", round(time.time() * 1_000))

    def come_back(self) -> None:
        self.daemon.kill()
        if self.how == "restored":
            restore(self.path / "copy", self.path / "again", 77)
        self.daemon = self.at("again").start()

    def __enter__(self) -> Lost:
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.kill()


@pytest.fixture(params=["restored", "empty"])
def lost(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    with Lost(tmp_path, request.param) as broker:
        yield broker


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "was refused: stale_receipt" in text]


@pytest.mark.promise("when-the-log-has-another-past")
async def test_a_subscriber_drops_what_it_holds_and_acks_nothing_of_others(
    lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tickwheel")
    async with Client(lost.url, connect_timeout=PATIENCE_S) as client:
        await client.send_many("t", [b"before"] * SENT)
        async with client.subscribe("t", credit=2 * SENT) as subscription:
            for _ in range(SENT):
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                await message.ack(confirm=True)
            lost.back_up()
            await client.send_many("t", [b"lost"] * SENT)
            held = [await subscription.receive(PATIENCE_S) for _ in range(SENT - 1)]
            await trio.to_thread.run_sync(lost.come_back)
            async with sync_client(lost) as other:
                again = await other.send_many("t", [b"new"] * SENT)
            if lost.how == "restored":
                assert not set(again.ids()) & {message.id for message in held if message is not None}
            with trio.fail_after(PATIENCE_S):
                while not any("another log than before" in text for text in caplog.messages):
                    await trio.sleep(0.02)
            for message in held:
                assert message is not None
                with pytest.raises(StaleReceipt):
                    await message.ack(confirm=True)
                assert await message.nack() == ReceiptResult.STALE_RECEIPT
                assert await message.extend(HOUR) == ReceiptResult.STALE_RECEIPT
                await message.ack()
            assert len(refusals(caplog)) >= 1
            assert any("1 messages of 't' that waited here are dropped" in text for text in caplog.messages)
            # All five of others are there, each once.
            found = [await subscription.receive(PATIENCE_S) for _ in range(SENT)]
            assert [message.body for message in found if message is not None] == [b"new"] * SENT
            for message in found:
                assert message is not None
                await message.ack(confirm=True)
            group = await client.group("t", "default")
            assert (group.acked, group.backlog) == (2 * SENT if lost.how == "restored" else SENT, 0)


def sync_client(lost: Lost) -> Client:
    return Client(lost.url, connect_timeout=PATIENCE_S)


@pytest.mark.promise("when-the-log-has-another-past")
def test_a_blocking_subscriber_and_what_was_fetched(lost: Lost, caplog: pytest.LogCaptureFixture) -> None:
    with sync.Client(lost.url, connect_timeout=PATIENCE_S) as client:
        client.create_topic("t")
        client.create_topic("f")
        lost.back_up()
        client.send_many("t", [b"lost"] * SENT)
        client.send_many("f", [b"lost"] * SENT)
        fetched = client.fetch("f", count=SENT, wait=PATIENCE)
        with client.subscribe("t", credit=SENT) as subscription:
            held = subscription.receive(PATIENCE_S)
            assert held is not None
            lost.come_back()
            with sync.Client(lost.url, connect_timeout=PATIENCE_S) as other:
                other.send_many("t", [b"new"] * SENT)
                other.send_many("f", [b"new"] * SENT)
                others = other.fetch("f", count=SENT, wait=PATIENCE)
                new = subscription.receive(PATIENCE_S)
                while new is not None and new.body == b"lost":  # the client has not met the other log yet
                    new = subscription.receive(PATIENCE_S)
                assert new is not None
                assert new.body == b"new"
                with pytest.raises(StaleReceipt):
                    held.ack(confirm=True)
                with pytest.raises(StaleReceipt):
                    fetched.ack(confirm=True)
                assert set(fetched.nack()) == set(fetched.give_back()) == {ReceiptResult.STALE_RECEIPT}
                new.ack(confirm=True)
                others.ack(confirm=True)
                assert other.group("t", "default").acked == 1


@pytest.mark.promise("when-the-log-has-another-past")
@pytest.mark.parametrize("lost", ["restored"], indirect=True)
def test_receipts_and_ids_that_programs_remember(lost: Lost) -> None:
    """As those of HTTP, of a gateway, of a recall: no client holds them."""
    with sync.Client(lost.url, connect_timeout=PATIENCE_S) as client:
        client.send("t", b"before")
        client.fetch("t", count=0)
        lost.back_up()
        ids = client.send_many("t", [b"lost"] * SENT).ids()
        client.fetch("t", "later", count=0)
        receipts = [
            [(fetched.group_id, message.id, message.epoch) for message in fetched]
            for fetched in (
                client.fetch("t", count=SENT + 1, wait=PATIENCE),
                client.fetch("t", "later", count=SENT + 1, wait=PATIENCE),
            )
        ]
        timers = client.send_many("t", [b"timer"] * SENT, delay=HOUR).ids()
    lost.come_back()
    with sync.Client(lost.url, connect_timeout=PATIENCE_S) as client:
        new = (
            client.send_many("t", [b"new"] * SENT).ids()
            + client.send_many("t", [b"timer"] * SENT, delay=HOUR).ids()
        )
        assert not set(new) & {*ids, *timers}
        assert set(client.cancel(ids=timers)) == {"not_found"}
        assert set(client.reschedule(ids=timers, delay=timedelta(seconds=1))) == {"not_found"}
        held = client.fetch("t", count=SENT + 1, wait=PATIENCE)
        named = client.fetch("t", "another", count=SENT + 1, wait=PATIENCE)
        assert len(held) == len(named) == SENT + 1
        for group in receipts:
            for group_id, message_id, epoch in group:
                text = encode_receipt("t", "default", Receipt(group_id, message_id, epoch))
                _, same_id, same_epoch = decode_receipt("t", "default", text)
                for settle in (client.ack, client.nack, client.give_back, _kept(client)):
                    assert settle(group_id, [(same_id, same_epoch)]) == [ReceiptResult.STALE_RECEIPT]
        held.ack(confirm=True)
        named.ack(confirm=True)


def _kept(client: sync.Client) -> Callable[..., list[ReceiptResult]]:
    return lambda group_id, receipts: client.extend(group_id, receipts, HOUR)


@pytest.mark.promise("when-the-log-has-another-past")
async def test_what_was_asked_about_ids_is_not_asked_another_log(lost: Lost) -> None:
    """The answer to a cancel is lost with the broker; by key it is asked again."""
    async with Client(lost.url, connect_timeout=PATIENCE_S) as client:
        await client.send("t", b"before")
        lost.back_up()
        sent = await client.send("t", b"lost", delay=HOUR)
        lost.daemon.process.send_signal(signal.SIGSTOP)
        outcomes: dict[str, Any] = {}

        async def ask(name: str, **target: Any) -> None:
            try:
                outcomes[name] = await client.cancel(**target)
            except RequestUncertain as error:
                outcomes[name] = error.code

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(ask, "id", id=sent.id))
                group.start_soon(partial(ask, "key", topic="t", key="unknown"))
                await anyio.sleep(0.1)
                await anyio.to_thread.run_sync(lost.come_back)
        assert outcomes["id"] == "request_uncertain"
        assert outcomes["key"] in ("not_found", "request_uncertain")


@pytest.mark.parametrize("lost", ["restored"], indirect=True)
def test_a_place_in_the_events_of_what_is_lost_is_known_as_such(lost: Lost) -> None:
    with sync.Client(lost.url, connect_timeout=PATIENCE_S) as client:
        first = client.send("t", b"before").id
        shared = client.events("earliest").next
        lost.back_up()
        lost_id = client.send_many("t", [b"lost"] * SENT).ids()[0]
        place = client.events(shared).next
        assert place[0] > shared[0]
    lost.come_back()
    with sync.Client(lost.url, connect_timeout=PATIENCE_S) as client:
        new = client.send_many("t", [b"new" * 1_000] * SENT).ids()
        client.send("t", b"and more than was lost", delay=HOUR)
        tail = client.events(place)
        assert tail.has_gap
        assert [one.id for one in tail.events if one.event == "sent"][:SENT] == list(new)
        follow = client.events(tail.next)
        assert not follow.has_gap
        assert not client.events(shared).has_gap, "it lies in what was restored"
        assert {first, *new} <= {one.id for one in client.events("earliest").events}
        assert lost_id not in {one.id for one in client.events("earliest").events}
