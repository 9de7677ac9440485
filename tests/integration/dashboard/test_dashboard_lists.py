"""The dashboard's lists of messages and letters: their order, their parts, and what they leave out."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.clients.visiting import Visitor
from tickwheel import Client

DAY = timedelta(days=1)


async def test_the_soonest_come_first(visitor: Visitor, client: Client) -> None:
    """Over all parts of the list, and of messages with equal times the first that was sent."""
    hours = [(number * 37) % 60 + 1 for number in range(60)] * 2
    start = datetime(2031, 5, 1, tzinfo=UTC)
    times = [start + timedelta(hours=hour) for hour in hours]
    ids = list((await client.send_many("sorted", [b"x"] * 120, deliver_at=times)).ids())
    for address, wanted in (
        ("/messages?topic=sorted", sorted(zip(hours, ids, strict=True))),
        ("/messages?topic=sorted&order=id", [(0, one) for one in ids]),
    ):
        seen: list[str] = []
        following = [address]
        while following:
            page = await visitor.get(following[0].replace("&amp;", "&"))
            seen += re.findall(r'name="message" value="(\d+)"', page.html)
            following = re.findall(r'href="([^"]+)" rel="next"', page.html)
        assert seen == [str(one) for _, one in wanted]


async def test_a_part_that_has_no_room_is_followed_by_another(
    visitor: Visitor, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of the broker has fewer messages than were asked for where their headers are long."""
    ids = list((await client.send_many("long", [b"x"] * 7, delay=DAY)).ids())
    async with client.subscribe("lost", "g") as subscription:
        for _ in range(7):
            await client.send("lost", b"x")
            await (await subscription.receive(60)).nack(give_up=True, error="no")
    own = Client.browse

    async def short(self: Client, topic: str, *, limit: int = 100, **more: Any) -> list[Any]:
        return await own(self, topic, limit=min(limit, 3), **more)

    monkeypatch.setattr(Client, "browse", short)
    for address, name in (("/messages?topic=long", "message"), ("/dead?topic=lost", "letter")):
        seen: list[str] = []
        while address:
            page = await visitor.get(address)
            seen += re.findall(rf'name="{name}" value="(\d+)"', page.html)
            following = re.findall(r'href="([^"]+)" rel="next"', page.html)
            address = following[0].replace("&amp;", "&") if following else ""
        assert len(seen) == len(set(seen)) == 7
        if name == "message":
            assert set(seen) == {str(one) for one in ids}


async def test_a_list_of_errors_says_what_it_left_out(visitor: Visitor, client: Client) -> None:
    async with client.subscribe("faulty", "g") as subscription:
        for number in range(13):
            await client.send("faulty", b"x")
            await (await subscription.receive(60)).nack(give_up=True, error=f"{number:02}{'e' * 300}")
    page = await visitor.get("/dead?topic=faulty")
    assert "3 more errors, of 3 letters: all errors" in page.text
    assert f"00{'e' * 197}…" in page.text, "what is cut says so"
