"""How late messages were by topic and group, in the dashboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.stats import Figures
from tickwheel_web.dashboard.figures import sampling
from tickwheel_web.dashboard.figures.history import History
from tickwheel_web.dashboard.pages import lateness

pytestmark = pytest.mark.alone


def rows_of(html: str) -> list[list[str]]:
    """Of the table by topic or group, without tags."""
    part = html.partition('id="named"')[2].partition("</section>")[0].partition("<tbody>")[2]
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in part.split("<tr>")[1:]]
    return [[" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in row] for row in cells]


async def test_by_topic_and_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "EVERY_S", 0.05)
    monkeypatch.setitem(lateness._WINDOWS, "hour", ("1 hour", 60.0, 600))  # in spans that are soon over
    sampled, take = trio.Event(), History.add

    def add(history: History, figures: Figures) -> None:
        take(history, figures)
        sampled.set()

    monkeypatch.setattr(History, "add", add)
    with Daemon(tmp_path / "data") as daemon, trio.fail_after(PATIENCE_S):
        app = tickwheel.web.app(daemon.url, lateness_threshold=0.01)
        async with app.router.lifespan_context(app), tickwheel.Client(daemon.url) as client:
            visitor = Visitor(app)
            assert "Nothing is known yet." in (await visitor.get("/lateness")).text
            await sampled.wait()
            for topic, group in (("orders", "billing"), ("gone", "g")):
                await client.create_topic(topic)
                await client.create_group(topic, group)
            await client.send_many("orders", [b"x"] * 5)
            await client.send_many("gone", [b"x"] * 2)
            await trio.sleep(0.03)  # so late they are at least
            for topic, group, count in (("orders", "billing", 5), ("gone", "g", 2)):
                async with client.subscribe(topic, group) as subscription:
                    for _ in range(count):
                        message = await subscription.receive(PATIENCE_S)
                        assert message is not None
                        await message.ack()
            counts = {("orders", "5"), ("gone", "2")}
            while {
                (row[0], row[-1]) for row in rows_of((await visitor.get("/lateness?until=topic")).html)
            } != counts:
                await trio.sleep(0.05)
            path = "/lateness?until=consumer&window=day"
            while len(rows_of((await visitor.get(path)).html)) < 2:
                await trio.sleep(0.05)
            await client.delete_topic("gone")
            while any(one.name == "gone" for one in (await client.figures()).topics):
                await trio.sleep(0.05)
            page = await visitor.get(path)
            assert "Nothing was due in this time, as far as it is known." in page.text, "of no span all of it"
            assert "data-threshold" not in page.html, "no chart without a line"
            while 'data-threshold="0.01"' not in (await visitor.get("/lateness?window=hour")).html:
                await trio.sleep(0.05)
            rows = {tuple(row[:2]): row for row in rows_of(page.html)}
            assert {name: row[-1] for name, row in rows.items()} == {
                ("orders", "billing"): "5",
                ("gone", "g"): "2",
            }
            assert page.html.partition('id="named"')[2].count('class="badge warn"') >= 2
