"""What a user of Vitess messaging knows, through the real daemon: the comment, the columns, acks, big transactions."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Message, Subscription
from tickwheel.errors import BadTopicSettings, TransactionTooLarge, UnknownTopic

_numbers = count()
KEYS = {
    "vt_ack_wait": "30",
    "vt_purge_after": "86400",
    "vt_batch_size": "10",
    "vt_cache_size": "10000",
    "vt_poller_interval": "30",
}
MAX_FRAME_BYTES = 5 << 20


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Frames are small."""
    return {"max_frame_bytes": MAX_FRAME_BYTES}


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"vitess_{next(_numbers)}"


def comment(**changes: str | None) -> str:
    """The sample table's comment with other values; None leaves a key out."""
    pairs = {name: value for name, value in (KEYS | changes).items() if value is not None}
    return ",".join(["vitess_message", *(f"{name}={value}" for name, value in pairs.items())])


async def get(subscription: Subscription) -> Message:
    """The next message."""
    message = await subscription.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


@pytest.mark.promise("V34", "V36")
@pytest.mark.parametrize("missing", KEYS)
async def test_each_mandatory_key_is_demanded(daemon: Daemon, topic: str, missing: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(BadTopicSettings, match=missing):
            await client.create_topic(topic, vitess=comment(**{missing: None}))
        with pytest.raises(UnknownTopic):
            await client.topic(topic)


@pytest.mark.promise("V37", "V38")
@pytest.mark.parametrize(
    "bad",
    [
        {"vt_ack_wait": "soon"},
        {"vt_min_backoff": "-1"},
        {"vt_max_backoff": "x"},
        {"vt_min_backoff": "60", "vt_max_backoff": "30"},
        {"vt_batch_size": "0"},
        {"vt_message_cols": "id|message"},
        {"vt_unknown": "1"},
    ],
)
async def test_bad_values_are_refused(daemon: Daemon, topic: str, bad: dict[str, str]) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(BadTopicSettings):
            await client.create_topic(topic, vitess=comment(**bad))
        with pytest.raises(UnknownTopic):
            await client.topic(topic)


@pytest.mark.promise("V30")
async def test_a_changed_comment_counts_at_once(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, vitess=comment())
        async with client.subscribe(topic) as subscription:
            await client.set_topic(topic, vitess=comment(vt_ack_wait="0.1", vt_max_backoff="0.2"))
            await client.send(topic, b"x")
            assert [(await get(subscription)).epoch for _ in range(3)] == [1, 2, 3]


@pytest.mark.promise("V5", "V19", "V23", "V24")
async def test_the_columns_of_a_message(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    """priority 50, an epoch that counts deliveries, time_next until it is acked, time_acked from then on."""
    sql = (
        "select decode(body) as body, priority, epoch, time_next is null as no_next, "
        f"time_acked is null as no_acked from {topic} order by id"
    )
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic, credit=2) as subscription:
        await client.send(topic, b"acked")
        await (await get(subscription)).nack(0)
        await (await get(subscription)).ack(confirm=True)
        await client.send(topic, b"leased", priority=7)
        await get(subscription)
        await client.send(topic, b"later", delay=timedelta(hours=1))
        asked = (await client.query(sql)).rows
        printed = await trio.to_thread.run_sync(Shell(tmp_path, daemon.url).json, "query", sql)
    assert asked == [
        ["acked", 50, 2, True, False],
        ["leased", 7, 1, False, True],
        ["later", 50, 0, False, True],
    ]
    assert [list(row.values()) for row in printed] == asked


@pytest.mark.promise("V55", "V56", "V57")
async def test_many_acks_in_one_request_and_none_twice(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, ack_wait_ms=300, max_backoff_ms=300)
        await client.send_many(topic, [b"x"] * 100)
        async with client.subscribe(topic) as subscription:
            acked = 0
            while acked < 100:
                batch = await subscription.receive_batch(PATIENCE_S)
                assert batch is not None
                await batch.ack(confirm=True)
                await batch.ack(confirm=True)  # a second one changes nothing
                acked += len(batch)
            assert await subscription.receive(1) is None, "what is acked is never sent again"
        (stats,) = [one for one in await client.topics() if one.name == topic]
        assert (stats.groups[0].acked, stats.groups[0].delivered) == (100, 100)


@pytest.mark.promise("V41")
async def test_a_transaction_beyond_a_frame_is_refused_whole(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
        tx = client.transaction()
        for _ in range(6):
            tx.send(topic, bytes(1 << 20))
        with pytest.raises(TransactionTooLarge):
            await tx.commit()
        assert await client.browse(topic) == []
        async with client.transaction() as small:
            small.send(topic, bytes(1 << 20))
        assert len(await client.browse(topic)) == 1
