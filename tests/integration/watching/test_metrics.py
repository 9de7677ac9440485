"""What /metrics says after a load that is known exactly, and what a scrape does to the broker."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.clients.http_client import OPEN_METRICS, Scraped, get, scrape
from tests.support.native.driver import SMALL
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import sync
from tickwheel.errors import BodyTooLarge
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import SystemClock
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.monitoring.metrics import Metrics
from tickwheel_broker.monitoring.vitals import DiskSight
from tickwheel_broker.monitoring.watched import Sight
from tickwheel_broker.wiring import watched_parts
from timerlog.store import Store

HTTP = {"http_listen": True, "http_port": 0}
TOPIC_FIGURES = ("accepted_total", "cancelled_total", "purged_total", "scheduled", "ready")
GROUP_FIGURES = ("delivered", "redelivered", "acked", "dead")


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """The broker has metrics, and small bodies."""
    return {"max_body_bytes": 1000, **HTTP}


def http_url(daemon: Daemon) -> str:
    return str(daemon.wait_for_event("started")["http"])


def of_topic(found: Scraped, topic: str) -> list[float]:
    return [found.value(f"messages_{name}", topic=topic) for name in TOPIC_FIGURES]


def of_group(found: Scraped, topic: str, group: str = "default") -> list[float]:
    return [found.value(f"messages_{name}_total", topic=topic, group=group) for name in GROUP_FIGURES]


def timers_on_wheel(found: Scraped) -> float:
    return sum(found.value("wheel_timers", level=str(level)) for level in range(4))


async def receive(
    subscription: tickwheel.Subscription[tickwheel.Message, tickwheel.Batch], count: int
) -> list[tickwheel.Message]:
    found = []
    with trio.fail_after(PATIENCE_S):
        for _ in range(count):
            message = await subscription.receive()
            assert message is not None
            found.append(message)
    return found


async def test_a_known_load_is_counted_exactly(daemon: Daemon, topic: str) -> None:
    url = http_url(daemon)
    before = scrape(url)
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many(topic, [b"now"] * 70)
        await client.send_many(topic, [b"later"] * 30, delay=timedelta(days=2))
        far = await client.send(topic, b"far", delay=timedelta(days=2_000))
        assert await client.cancel(id=far.id) == "cancelled"
        async with client.subscribe(topic, credit=50, batch=50) as subscription:
            messages = await receive(subscription, 50)
            for message in messages[:40]:
                await message.ack()
            await messages[40].nack(0)
            again = await receive(subscription, 21)
            assert sorted(message.epoch for message in again) == [*([1] * 20), 2]
            await subscription.flush()
            # A count of the wheel that took a while is said again for a while: it may be the one of before.
            with trio.fail_after(PATIENCE_S):
                while timers_on_wheel(found := scrape(url)) < 30 + 1 + 30:
                    await trio.sleep(0.05)
    assert of_topic(found, topic) == [101, 1, 0, 30, 70]
    assert of_group(found, topic) == [71, 1, 40, 0]
    assert found.value("backlog_messages", topic=topic, group="default") == 30
    assert found.value("leases", topic=topic, group="default") == 30
    assert found.value("connections") == before.value("connections") + 1
    assert found.value("subscribers") == 1
    for name, count in (("delivery_lateness_seconds", 70), ("first_delivery_lateness_seconds", 70)):
        assert found.value(f"{name}_count") - before.value(f"{name}_count") == count
    # The cancelled one stays on the wheel until its time; so do the ends of leases that were acked.
    assert timers_on_wheel(found) == found.value("timers_due", within="later") + found.value("timers_gone")
    assert found.value("messages_due", within="day") == 0
    assert found.value("messages_due", within="week") == 30
    assert found.value("timers_due", within="week") == 30 + 30


async def test_dead_letters_and_refusals(daemon: Daemon, topic: str) -> None:
    url = http_url(daemon)
    before = scrape(url)
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=1)
        await client.send_many(topic, [b"bad"] * 3)
        async with client.subscribe(topic) as subscription:
            for message in await receive(subscription, 3):
                await message.nack(0)
        for _ in range(2):
            with pytest.raises(tickwheel.TickwheelError):
                await client.topic("there-is-none")
        with pytest.raises(BodyTooLarge):
            await client.send(topic, bytes(2_000))  # the client knows, and asks nobody
        found = scrape(url)
    assert of_group(found, topic) == [3, 0, 0, 3]
    assert of_topic(found, f"{topic}.dead")[0] == 3
    assert found.refusals("unknown_topic") - before.refusals("unknown_topic") == 2


async def test_both_formats_say_the_same(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send(topic, b"x")
    url = http_url(daemon)
    plain, open_metrics = scrape(url), scrape(url, OPEN_METRICS)
    assert plain.names() == open_metrics.names()
    assert of_topic(plain, topic) == of_topic(open_metrics, topic)
    assert get(f"{url}/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4")
    answer = get(f"{url}/metrics", Accept=OPEN_METRICS)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.count("# EOF") == 1


def test_metrics_follow_the_rules_of_names(daemon: Daemon) -> None:
    found = scrape(http_url(daemon))
    for name, family in found.families.items():
        assert name.startswith(("tickwheel_", "process_")), name
        assert family.documentation, name
        if name.startswith("tickwheel_"):
            assert family.documentation.endswith("."), name
            assert family.type != "unknown", name
        assert not name.endswith(("_ms", "_milliseconds", "_kib")), name
        for sample in family.samples:
            assert set(sample.labels) <= {
                *("topic", "group", "code", "level", "queue", "within", "le", "version", "python", "state"),
            }


async def test_sync_figures_agree_with_the_engine(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for _ in range(5):
            await client.send(topic, b"x")
        first = await client.stats()
        found = scrape(http_url(daemon))
        last = await client.stats()
    assert first.syncs <= found.value("sync_seconds_count") <= last.syncs
    assert found.value("sync_seconds_count") == found.value("group_commit_replies_count")
    assert first.appended_bytes <= found.value("log_appended_bytes_total") <= last.appended_bytes
    assert found.value("sync_seconds_sum") > 0


async def test_what_has_no_label_of_its_own_is_added_up(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", metrics_topics=2, **HTTP) as daemon:
        async with tickwheel.Client(daemon.url) as client:
            for number, name in enumerate(("a", "b", "c", "other", "e")):
                await client.send_many(name, [b"x"] * 10**number)
            await client.create_topic("sharded", shards=4)
            await client.send_many("sharded", [b"x"] * 7, keys=[f"k{number}" for number in range(7)])
            for name in ("a", "b", "c"):
                async with client.subscribe(name, "g"), client.subscribe(name, "h"):
                    pass
        found = scrape(http_url(daemon))
    accepted = {
        labels[0][1]: value
        for (name, labels), value in found.samples.items()
        if name == "tickwheel_messages_accepted_total"
    }
    assert accepted == {"a": 1, "b": 10, "other": 100 + 1_000 + 10_000 + 7}
    groups = {
        (dict(labels)["topic"], dict(labels)["group"])
        for (name, labels) in found.samples
        if name == "tickwheel_backlog_messages"
    }
    assert groups == {("a", "g"), ("a", "h"), ("b", "other"), ("other", "other")}
    assert found.value("topics") == 6 + 4


def test_killed_while_it_is_scraped(tmp_path: Path) -> None:
    """What the log holds is the same afterwards, and the next broker answers."""
    daemon = Daemon(tmp_path / "data", **HTTP)
    with daemon, sync.Client(daemon.url) as client:
        client.send_many("t", [b"x"] * 5_000, delay=timedelta(hours=1))
        url, over = http_url(daemon), threading.Event()
        counted: list[float] = []

        def keep_scraping() -> None:
            while True:
                try:
                    counted.append(of_topic(scrape(url), "t")[0])
                except OSError:
                    over.set()
                    return
                if len(counted) == 5:
                    over.set()

        scraping = threading.Thread(target=keep_scraping)
        scraping.start()
        assert over.wait(PATIENCE_S)
        daemon.kill()
        scraping.join(PATIENCE_S)
        assert not scraping.is_alive()
        assert set(counted) == {5_000}
    with daemon:
        assert of_topic(scrape(http_url(daemon)), "t") == [5_000, 0, 0, 5_000, 0]


async def test_a_scrape_lets_others_work_in_between(tmp_path: Path) -> None:
    """Of 500 topics, no more than a slice is looked at, and no more than some lines are written, in one go."""
    clock = SystemClock()
    store = Store.open(tmp_path, SMALL, clock.now_ms())
    for number in range(500):
        store.topics.open(f"t{number}", clock.now_ms())
    settings = from_arguments(data_dir=str(tmp_path), metrics_topics=500)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        sight = Sight(
            settings,
            watched=watched_parts(
                Broker(settings=settings, store=store, clock=clock, runner=InPlace(), nursery=nursery)
            ),
        )
        metrics = Metrics(sight, DiskSight(settings.data_dir))
        await metrics.scrape("")
        nursery.start_soon(count_turns)
        text, _ = await metrics.scrape("")
        nursery.cancel_scope.cancel()
    found = Scraped(text.decode())
    families_of_topics = 5
    assert turns > 500 / 20 + families_of_topics * 500 / 100 + len(found.families) - families_of_topics
    assert len([name for name, _ in found.samples if name == "tickwheel_messages_ready"]) == 500
    store.close(clean=False)


async def test_a_scrape_ends_with_the_broker_of_a_node(tmp_path: Path) -> None:
    clock = SystemClock()
    store = Store.open(tmp_path, SMALL, clock.now_ms())
    for number in range(500):
        store.topics.open(f"t{number}", clock.now_ms())
    settings = from_arguments(data_dir=str(tmp_path), metrics_topics=500)
    texts: list[bytes] = []
    async with trio.open_nursery() as nursery:
        sight = Sight(
            settings,
            watched=watched_parts(
                Broker(settings=settings, store=store, clock=clock, runner=InPlace(), nursery=nursery)
            ),
        )
        metrics = Metrics(sight, DiskSight(settings.data_dir))

        async def scrape() -> None:
            texts.append((await metrics.scrape(""))[0])

        nursery.start_soon(scrape)
        while not sight._looks:
            await trio.lowlevel.checkpoint()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert not texts
        sight.hide()
        store.close(clean=False)
        await scrape()
        nursery.cancel_scope.cancel()
    assert len(texts) == 2
    for text in texts:
        assert "tickwheel_topics" not in Scraped(text.decode()).families
