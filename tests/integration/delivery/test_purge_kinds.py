"""Whatever else a broker holds, while messages around it are purged, through the real daemon: prepared messages,
transactions, dead letters, schedules, ordering keys, keys; also with a query running and on a full disk."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.integration.delivery.test_purge import COUNT, work_off
from tests.integration.disk.test_daemon_disk_full import BODY as LARGE_BODY
from tests.integration.disk.test_daemon_disk_full import SMALL_DISK, fill
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.run.profile import amount
from tickwheel.errors import DiskFull

HEADER = "tickwheel-dead"


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """What is done is purged at once."""
    return {"purge_after": "0s"}


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


async def get(subscription: tickwheel.Subscription[tickwheel.Message, tickwheel.Batch]) -> tickwheel.Message:
    message = await subscription.receive(PATIENCE_S)
    assert message is not None
    return message


async def purge_around(client: tickwheel.Client) -> tickwheel.PurgeResult:
    """Purges, with so much that is done that every segment goes, also the one that is being written."""
    await work_off(client, "padding")
    result = await client.purge()
    assert result.purged_messages >= COUNT
    assert result.kept_messages == 0, "every segment was purged"
    return result


def restart(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


async def test_prepared_messages_wait_on(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        first = await client.prepare("orders", b"one", key="k1", headers={"n": 1}, priority=3)
        second = await client.prepare("orders", b"two")
        assert (await purge_around(client)).moved_messages == 2
        restart(daemon)
        async with client.subscribe("orders") as subscription:
            became = await first.commit()
            message = await get(subscription)
            assert (message.id, message.body, message.key, message.headers) == (
                became,
                b"one",
                "k1",
                {"n": 1},
            )
            await second.rollback()
            await message.ack(confirm=True)
        await purge_around(client)
        assert await client.commit_prepared([first.id, second.id]) == [("not_found", 0), ("not_found", 0)]
        assert await client.browse("orders") == []


async def test_a_transaction_is_known_by_its_id(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await client.send("in", b"x")
        async with client.subscribe("in") as subscription:
            taken = await get(subscription)
            async with client.transaction() as tx:
                tx.ack(taken)
                tx.send("out", b"y", delay=timedelta(hours=1))
        assert tx.result is not None
        assert (await purge_around(client)).moved_messages == 1
        restart(daemon)
        again = client.transaction()
        again._id, again._sends = tx._id, tx._sends
        repeated = await again.commit()
        assert repeated is not None
        assert repeated.ids == tx.result.ids
        (left,) = await client.browse("out")
        assert (left.id, left.body) == (tx.result.ids[0][0], b"y")


async def test_dead_letters_stay_and_come_back(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await client.create_topic("mails", max_attempts=1, purge_after=0)
        await client.send("mails", b"x", key="mail-1")
        async with client.subscribe("mails") as subscription:
            assert await (await get(subscription)).nack(error="no such user") == "dead"
        await purge_around(client)
        restart(daemon)
        assert await client.browse("mails") == [], "its group is done with it"
        (letter,) = await client.browse("mails.dead")
        assert (letter.body, letter.headers[HEADER]["error"]) == (b"x", "no such user")
        assert await client.replay_dead("mails") == {"sent_again": 1}
        async with client.subscribe("mails") as subscription:
            message = await get(subscription)
            assert (message.body, message.key) == (b"x", "mail-1")
            await message.ack(confirm=True)


async def test_errors_of_a_message_that_still_fails_are_kept(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await client.create_topic("mails", max_attempts=2, min_backoff_ms=1)
        await client.send("mails", b"x")
        async with client.subscribe("mails") as subscription:
            assert await (await get(subscription)).nack(timedelta(seconds=2), error="first") == "nacked"
            await purge_around(client)
            restart(daemon)
            message = await get(subscription)
            assert message.epoch == 2
            assert await message.nack(error="second") == "dead"
        (letter,) = await client.browse("mails.dead")
        assert [error for _, _, error in letter.headers[HEADER]["history"]] == ["first", "second"]


async def test_schedules_and_their_next_message_stay(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        made = await client.create_schedule("hourly", "reports", every=timedelta(hours=1), body=b"report")
        await client.create_schedule("beat", "beats", every=timedelta(milliseconds=100), body=b"beat")
        async with client.subscribe("beats") as subscription:
            slots = []
            for turn in range(12):
                message = await get(subscription)
                slots.append(message.deliver_at_ms)
                await message.ack(confirm=True)
                if turn % 4 == 3:
                    await purge_around(client)
        assert len(set(slots)) == len(slots), (
            "no slot was sent twice, although the keys of its message were purged"
        )
        restart(daemon)
        assert (await client.schedule("hourly")).next_ms == made.next_ms
        assert {schedule.name for schedule in await client.schedules()} == {"hourly", "beat"}


async def test_ordering_keys_go_on_in_order(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        for number in range(4):
            await client.send("steps", b"%d" % number, order_key="one")
        async with client.subscribe("steps", credit=10) as subscription:
            await (await get(subscription)).ack(confirm=True)
            held = await get(subscription)
            assert (await purge_around(client)).moved_messages == 3
            assert await subscription.receive(0.2) is None, "it waits for the one that is held"
            await held.ack(confirm=True)
            last = [await get(subscription), None]
            assert held.body + last[0].body == b"12"
            await last[0].ack(confirm=True)
            final = await get(subscription)
            assert final.body == b"3"
            await final.ack(confirm=True)


async def test_a_lease_and_its_receipt_outlive_a_purge(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await client.send("jobs", b"long")
        async with client.subscribe("jobs") as subscription:
            held = await get(subscription)
            await purge_around(client)
            restart(daemon)
            await held.ack(confirm=True)
        stats = next(topic for topic in await client.topics() if topic.name == "jobs")
        assert (stats.groups[0].acked, stats.groups[0].backlog) == (1, 0)


async def test_a_key_counts_until_its_message_is_purged(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await client.create_topic("long", purge_after=timedelta(days=1))
        waiting = await client.send("short", b"waits", key="far", delay=timedelta(hours=1))
        await work_off(client, "long", 3)
        await work_off(client, "short", 3)
        before = await client.send("short", b"again", key="short-1")
        assert before.duplicate, "acked, and not purged yet"
        await purge_around(client)
        assert (await client.send("long", b"again", key="long-1")).duplicate
        assert (await client.send("short", b"again", key="far")).id == waiting.id
        assert (await client.send("short", b"again", key="short-1")).id > before.id


async def test_queries_meanwhile_see_each_message_once_and_whole(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client, tickwheel.Client(daemon.url) as other:
        far = {f"far-{number}" for number in range(200)}
        for key in sorted(far):
            await client.send("t", key.encode(), key=key, delay=timedelta(hours=1))
        answers = 0

        async def ask() -> None:
            nonlocal answers
            while True:
                found = await other.query(
                    "select key, decode(body) as body, state from t where state in ('scheduled', 'ready')"
                )
                rows = [row for row in found.dicts() if row["state"] == "scheduled"]
                assert {row["key"] for row in rows} == {row["body"] for row in rows} == far
                assert len(rows) == len(far)
                answers += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for wanted in range(1, amount("queries") + 1):
                with trio.fail_after(PATIENCE_S):
                    while answers < wanted:
                        assert (await purge_around(client)).moved_messages == len(far)
            nursery.cancel_scope.cancel()


async def test_a_purge_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", prelude=SMALL_DISK, segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.send("later", b"kept", key="kept", delay=timedelta(hours=1))
            sent, _ = await fill(client)
            async with client.subscribe("t") as subscription:
                for _ in range(sent):
                    await (await get(subscription)).ack()
                await subscription.flush()
            with pytest.raises(DiskFull):
                await client.send("t", LARGE_BODY)
            await client.set_topic("t", purge_after=0)
            await client.purge()
            assert await client.browse("t") == []
            assert (await fill(client))[0] == sent, "there is as much room as there was at first"
            (left,) = await client.browse("later")
            assert left.body == b"kept"
        assert daemon.stop() == 0
