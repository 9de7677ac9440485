"""`tickwheel receive` ends well only if the broker has taken what it did with the messages that it printed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer, serving
from tickwheel import Batch, Client, ReceiptResult
from tickwheel.client import client as client_module
from tickwheel.errors import AckRefused, DiskFull, RequestTimeout, StaleReceipt, TickwheelError
from tickwheel.protocol.machine import AckRequested, ServerEvent
from tickwheel_cli.messages import receive
from tickwheel_cli.messages.receive import Wish
from tickwheel_cli.shared.waiting import Waiting

PATIENCE = timedelta(milliseconds=50)


def wish(**fields: object) -> Wish:
    return Wish(**{"topic": "tea", "group": "default", "acks": True, "form": "line", **fields})  # type: ignore[arg-type]


async def print_some(server: FakeServer, client: Client, count: int | None, of: Wish) -> None:
    await client.send_many("tea", [b"a", b"b"])
    if count is None:
        await receive._print_all(client, of, Waiting(None, PATIENCE))
    else:
        await receive._print_some(client, of, Waiting(count, PATIENCE))
    assert len(server.seen(AckRequested)) > 0


def full(event: ServerEvent) -> TickwheelError | None:
    return DiskFull() if isinstance(event, AckRequested) else None


@on_both
async def test_acks_that_were_made(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (None, 2):
        async with serving() as (server, client):
            await print_some(server, client, count, wish())
            assert [message.acked for message in server.messages] == [{"default"}] * 2
            assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.promise("when-a-call-is-cancelled")
@on_both
async def test_acks_that_no_disk_has_room_for(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (None, 2):
        async with serving() as (server, client):
            server.refuse = full
            with pytest.raises(DiskFull):
                await print_some(server, client, count, wish())


@on_both
async def test_acks_of_messages_that_are_others_by_now(capsys: pytest.CaptureFixture[str]) -> None:
    def taken(event: ServerEvent) -> None:
        if isinstance(event, AckRequested):
            server.messages[1].epochs["default"] = 7

    async with serving() as (server, client):
        server.before = taken
        with pytest.raises(StaleReceipt, match="message 2 was refused"):
            await print_some(server, client, 2, wish())
        assert [message.acked for message in server.messages] == [{"default"}, set()]


@on_both
async def test_messages_that_are_others_by_now_are_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are, in whichever batches they came."""
    asked: list[int] = []

    async def nack(batch: Batch, *_: object, **__: object) -> list[ReceiptResult]:
        asked.extend(message.id for message in batch)
        return [ReceiptResult.STALE_RECEIPT if message.id == 1 else ReceiptResult.NACKED for message in batch]

    monkeypatch.setattr(Batch, "nack", nack)
    monkeypatch.setattr(receive, "_MOST_CREDIT", 1)
    for count in (None, 2):
        asked.clear()
        async with serving() as (_, client):
            await client.send_many("tea", [b"a", b"b"])
            of, waiting = wish(acks=False, nack_delay=timedelta(0)), Waiting(count, PATIENCE)
            with pytest.raises(AckRefused, match="Message 1 was not given back: stale_receipt") as raised:
                await (receive._print_some if count else receive._print_all)(client, of, waiting)
            assert raised.value.refused == {1: "stale_receipt"}
            assert asked in ([1, 2], [1])  # what `--count` has printed when the first of it is settled


@on_both
async def test_messages_that_cannot_become_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nack(batch: Batch, *_: object, **__: object) -> list[ReceiptResult]:
        return [ReceiptResult.NACKED] * len(batch)

    monkeypatch.setattr(Batch, "nack", nack)
    async with serving() as (_, client):
        await client.send_many("tea", [b"a", b"b"])
        with pytest.raises(AckRefused, match=r"Message 1 was not made a dead letter: nacked \(and 1 more\)"):
            await receive._print_all(client, wish(acks=False, gives_up=True), Waiting(None, PATIENCE))


@on_both
async def test_acks_that_are_not_confirmed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it soon, also without a broker that answers."""
    monkeypatch.setattr(receive, "_CONFIRMED_S", 0.05)
    monkeypatch.setattr(client_module, "CLOSE_TIMEOUT_S", 0.05)
    async with serving() as (server, client):
        server.after = lambda event: "silent" if isinstance(event, AckRequested) else None
        with pytest.raises(RequestTimeout, match="not confirmed within"):
            await print_some(server, client, None, wish())
