"""Lists of messages that other programs have put there: every endpoint answers, with all of them."""

from __future__ import annotations

import pytest

from tests.support.clients.asgi import Caller
from tests.support.clients.strange import send_strange
from tests.support.processes.daemon_harness import Daemon

FAR_MS = 4_000_000_000_000


async def test_messages_that_others_wrote(ask: Caller, daemon: Daemon) -> None:
    count = send_strange(daemon.url, "others", deliver_at_ms=FAR_MS, keys=True)
    found = await ask("GET", "/v1/topics/others/messages?bodies=1&limit=1000")
    assert (found.status, len(found.json["items"])) == (200, count)
    for one in found.json["items"]:
        for path in (f"/v1/messages/{one['id']}", f"/v1/messages/{one['id']}/events"):
            assert (await ask("GET", path)).status == 200
        changed = await ask("PATCH", f"/v1/messages/{one['id']}", {"text": "new"})
        assert changed.status in (200, 400, 502)
        assert changed.status == 200 or changed.code != "internal"


@pytest.mark.parametrize("bodies", [0, 1])
async def test_dead_letters_that_others_wrote(ask: Caller, daemon: Daemon, bodies: int) -> None:
    topic = f"letters{bodies}"
    await ask("PUT", f"/v1/topics/{topic}", {})
    count = send_strange(daemon.url, f"{topic}.dead")
    found = await ask("GET", f"/v1/topics/{topic}/dead?bodies={bodies}&limit=1000")
    assert (found.status, len(found.json["items"])) == (200, count)
    replayed = await ask("POST", f"/v1/topics/{topic}/dead/replay", {})
    assert replayed.status == 200


async def test_what_lies_where_prepared_messages_do(ask: Caller, daemon: Daemon) -> None:
    prepared = await ask("POST", "/v1/prepared", {"topic": "shop", "text": "x"})
    assert prepared.status == 201
    count = send_strange(daemon.url, "shop.prepared", deliver_at_ms=FAR_MS)
    found = await ask("GET", "/v1/prepared?topic=shop&limit=1000")
    assert (found.status, len(found.json["items"])) == (200, count + 1)
    for one in found.json["items"][1:]:
        decided = await ask("POST", f"/v1/prepared/{one['id']}/commit")
        assert decided.status < 500


async def test_what_is_received(ask: Caller, daemon: Daemon) -> None:
    count = send_strange(daemon.url, "received", keys=True)
    found = await ask("POST", "/v1/topics/received/groups/g/receive", {"max": 1_000})
    assert (found.status, len(found.json["items"])) == (200, count)
