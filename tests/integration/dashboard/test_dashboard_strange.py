"""Pages about messages that other programs have put there."""

from __future__ import annotations

import msgspec

from tests.support.clients.strange import send_strange
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import Daemon
from tickwheel import Client

FAR_MS = 4_000_000_000_000


async def test_pages_of_messages_that_others_wrote(visitor: Visitor, client: Client, daemon: Daemon) -> None:
    send_strange(daemon.url, "others", deliver_at_ms=FAR_MS, keys=True)
    assert (await visitor.get("/messages?topic=others")).status == 200
    for one in await client.browse("others", limit=1_000, max_body_bytes=0):
        for page in (f"/messages/{one.id}", f"/messages/{one.id}?history=1", f"/messages/{one.id}?form=hex"):
            assert (await visitor.get(page)).status == 200


async def test_pages_of_dead_letters_that_others_wrote(
    visitor: Visitor, client: Client, daemon: Daemon
) -> None:
    await client.create_topic("letters")
    count = send_strange(daemon.url, "letters.dead")
    for page in ("/dead", "/dead?topic=letters", "/", "/topics", "/topics/letters"):
        assert (await visitor.get(page)).status == 200
    exported = (await visitor.ask("GET", "/dead/export?topic=letters")).body.splitlines()
    assert len([msgspec.json.decode(line) for line in exported]) == count
    replayed = await visitor.post(
        "/dead", {"topic": "letters", "action": "replay", "scope": "all", "delay": "1h"}
    )
    assert replayed.status == 200
    assert "It stopped there" not in replayed.text
