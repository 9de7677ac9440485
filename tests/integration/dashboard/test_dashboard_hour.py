"""The last hour of a topic, in the dashboard: its numbers, since when it is known, and who sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.visiting import Shown, Visitor
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.guarded import Guarded
from tickwheel_web.dashboard.figures import sampling

pytestmark = pytest.mark.alone

UNKNOWN = "Nothing is known of the last hour yet."


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "EVERY_S", 0.05)


def sums(page: Shown) -> tuple[int, int, int]:
    """Of the table: what was sent and delivered in all minutes, and the most backlog."""
    part = page.html.partition('id="hour"')[2].partition("</section>")[0].partition("<tbody>")[2]
    rows = [re.findall(r'<td class="num">([\d,]+)</td>', row) for row in part.split("<tr>")[1:]]
    known = [[int(cell.replace(",", "")) for cell in row] for row in rows if row]
    assert len(rows) == 60
    return (
        sum(row[0] for row in known),
        sum(row[1] for row in known),
        max((row[2] for row in known), default=0),
    )


async def test_what_came_and_went_is_shown(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon, trio.fail_after(PATIENCE_S):
        app = tickwheel.web.app(daemon.url)
        async with app.router.lifespan_context(app), tickwheel.Client(daemon.url) as client:
            visitor = Visitor(app)
            await client.create_topic("orders")
            await client.create_group("orders", "billing")
            await client.send("orders", b"before anybody looked")
            page = await visitor.get("/topics/orders")
            assert (page.status, UNKNOWN in page.text) == (200, True)
            while UNKNOWN in (page := await visitor.get("/topics/orders")).text:
                await trio.sleep(0.05)
            assert sums(page)[:2] == (0, 0), "what came before the first sample is no news"
            await client.send_many("orders", [b"x"] * 5)
            while sums(page := await visitor.get("/topics/orders")) != (5, 0, 6):
                await trio.sleep(0.05)
            async with client.subscribe("orders", "billing") as subscription:
                for _ in range(6):
                    message = await subscription.receive(PATIENCE_S)
                    assert message is not None
                    await message.ack()
            while sums(page := await visitor.get("/topics/orders")) != (5, 6, 6):
                await trio.sleep(0.05)
            assert "Sampled since" in page.text
            assert "Where the ground is shaded nothing is known" in page.text
            hour = page.html.partition('id="hour"')[2].partition("</section>")[0]
            assert hour.count('role="img"') == 2
            assert re.search(r"<title>[^<]+: 5 sent, 6 delivered, backlog 6</title>", hour)
            assert page.html.index('id="hour"') < page.html.index('id="messages"'), "the page begins with it"
            assert 'id="hour"' not in (await visitor.get("/topics/orders?tab=settings")).html
            await client.delete_topic("orders")
            await client.create_topic("orders")
            while sums(await visitor.get("/topics/orders")) != (0, 0, 0):
                await trio.sleep(0.05)


async def test_who_sees_a_topic_sees_its_hour(guarded: Guarded) -> None:
    """And nobody else: the samples are of all topics, and were taken with the token of another."""
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        for topic in ("orders", "secret"):
            await client.create_topic(topic)
    app = tickwheel.web.app(guarded.daemon.url)
    with trio.fail_after(PATIENCE_S):
        async with app.router.lifespan_context(app):
            admin, watcher = Visitor(app), Visitor(app)
            await watcher.log_in(guarded.tokens["watcher"])
            assert UNKNOWN in (await watcher.get("/topics/orders")).text
            await admin.log_in(guarded.tokens["all"])
            async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
                while UNKNOWN in (await watcher.get("/topics/orders")).text:
                    await trio.sleep(0.05)
                for topic, count in (("orders", 3), ("secret", 4)):
                    await client.send_many(topic, [b"x"] * count)
                while sums(await admin.get("/topics/secret"))[0] != 4:
                    await trio.sleep(0.05)
            assert sums(await watcher.get("/topics/orders"))[0] == 3
            page = await watcher.get("/topics/secret")
            assert (page.status, 'id="hour"' in page.html) == (403, False)
