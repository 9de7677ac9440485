"""Transactions and prepared messages through the real daemon."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Message, Subscription
from tickwheel.errors import BadArgument, BadTime, StaleReceipt, TransactionRefused

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Prepared messages are asked about soon, and often."""
    return {"check_after": "200ms", "check_interval": "300ms"}


async def get(subscription: Subscription) -> Message:
    """The next message."""
    message = await subscription.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


async def bodies_of(client: tickwheel.Client, topic: str) -> list[bytes]:
    return [message.body for message in await client.browse(topic)]


@pytest.mark.promise("V7", "V40", "V83")
async def test_sends_acks_cancels_and_reschedules_happen_together(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send(f"{topic}-in", b"order")
        reminder = await client.send(f"{topic}-later", b"reminder", delay=HOUR, key="r")
        report = await client.send(f"{topic}-later", b"report", delay=HOUR)
        async with client.subscribe(f"{topic}-in") as subscription:
            order = await get(subscription)
            async with client.transaction() as tx:
                tx.ack(order)
                tx.send(f"{topic}-out", b"invoice", key="i")
                tx.send_many(f"{topic}-mail", [b"1", b"2"], delay=HOUR)
                tx.cancel(f"{topic}-later", key="r")
                tx.reschedule(id=report.id, delay=0)
            assert tx.result is not None
            assert [len(ids) for ids in tx.result.ids] == [1, 2]
            await order.ack(confirm=True)  # to ack twice is harmless
        assert await bodies_of(client, f"{topic}-out") == [b"invoice"]
        assert await bodies_of(client, f"{topic}-mail") == [b"1", b"2"]
        assert await client.cancel(id=reminder.id) == "already_cancelled"
        async with client.subscribe(f"{topic}-later") as subscription:
            assert (await get(subscription)).body == b"report"


@pytest.mark.promise("transactions")
@pytest.mark.parametrize("part", ["key", "keys", "ack", "cancel", "gone", "twice"])
async def test_one_part_that_cannot_be_done_refuses_the_whole(daemon: Daemon, topic: str, part: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send(topic, b"known", key="known")
        later = await client.send(topic, b"later", delay=HOUR)
        async with client.subscribe(topic) as subscription:
            message = await get(subscription)
            if part == "ack":
                await message.ack(confirm=True)
            tx = client.transaction()
            tx.send(f"{topic}-out", b"x")
            if part == "key":
                tx.send(topic, b"y", key="known")
            elif part == "keys":
                tx.send_many(topic, [b"y", b"z"], keys=["same", "same"])
            elif part == "ack":
                tx.ack(message)
            elif part == "cancel":
                tx.cancel(id=message.id)
            elif part == "gone":
                tx.cancel(topic, key="never")
            else:
                tx.cancel(id=later.id)
                tx.reschedule(id=later.id, delay_ms=1)
            with pytest.raises(TransactionRefused):
                await tx.commit()
            assert await bodies_of(client, f"{topic}-out") == []
            assert await client.cancel(id=later.id) == "cancelled", "nothing was changed"
            if part != "ack":
                await message.ack(confirm=True)


async def test_an_exception_in_the_block_does_nothing(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)

        async def fail() -> None:
            async with client.transaction() as tx:
                tx.send(topic, b"x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await bodies_of(client, topic) == []


@pytest.mark.promise("V42", "S10", "S23", "transactions")
async def test_a_transaction_is_whole_after_a_kill_and_not_done_twice(tmp_path: Path, topic: str) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.unix_url) as client:
            await client.send(topic, b"in")
            async with client.subscribe(topic) as subscription:
                message = await get(subscription)
                async with client.transaction() as tx:
                    tx.ack(message)
                    tx.send(f"{topic}-out", b"out")
                request, tx = tx, client.transaction()
                tx._id, tx._sends = request._id, request._sends
                daemon.kill()
                daemon.start()
                again = await tx.commit()
            assert again is not None
            assert request.result is not None
            assert again.ids == request.result.ids, "the broker knew it by its id"
            assert await bodies_of(client, f"{topic}-out") == [b"out"]
            async with client.subscribe(topic) as subscription:
                assert await subscription.receive(0.3) is None, "its ack is there"


@pytest.mark.promise("R73", "transactions")
async def test_prepared_messages_wait_for_their_decision(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        first = await client.prepare(topic, b"paid", key="order-1", headers={"n": 1}, priority=3)
        second = await client.prepare(topic, b"not paid")
        assert await subscription.receive(0.1) is None
        became = await first.commit()
        message = await get(subscription)
        assert (message.id, message.body, message.key, message.headers) == (
            became,
            b"paid",
            "order-1",
            {"n": 1},
        )
        assert message.priority == 3
        await message.ack(confirm=True)
        await second.rollback()
        assert await client.commit_prepared([first.id, second.id]) == [
            ("already_committed", became),
            ("already_rolled_back", 0),
        ]
        assert await client.rollback_prepared([first.id, 1 << 40]) == ["already_committed", "not_found"]
        with pytest.raises(TransactionRefused, match="already_rolled_back"):
            await second.commit()
        with pytest.raises(TransactionRefused, match="already_committed"):
            await first.rollback()
        await second.rollback()
        assert await subscription.receive(0.1) is None


async def test_prepared_messages_are_decided_by_their_keys(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        assert await client.commit_prepared(topic=topic, keys=["a"]) == [("not_found", 0)]
        one = await client.prepare(topic, b"1", key="a")
        two = await client.prepare(topic, b"2", key="b")
        ((result, became),) = await client.commit_prepared(topic=topic, keys=["a"])
        assert (result, became > two.id > one.id) == ("committed", True)
        assert await client.rollback_prepared(topic=topic, keys=["b", "none"]) == ["rolled_back", "not_found"]
        assert await client.commit_prepared(topic=topic, keys=["b", "a"]) == [
            ("not_found", 0),
            ("already_committed", became),
        ]
        with pytest.raises(BadArgument):
            await client.commit_prepared([one.id], topic=topic, keys=["a"])
        keys = [f"k{n}" for n in range(300)]
        for key in keys:
            await client.prepare(topic, b"x", key=key)
        decided = await client.commit_prepared(topic=topic, keys=keys)
        assert {answer for answer, _ in decided} == {"committed"}
        assert len({made for _, made in decided}) == 300


@pytest.mark.promise("R74")
async def test_a_committed_message_is_delivered_at_its_time(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        prepared = await client.prepare(topic, b"x", delay=timedelta(milliseconds=700))
        await prepared.commit()
        message = await get(subscription)
        assert message.deliver_at_ms - message.created_ms > 0
        await message.ack(confirm=True)


async def test_a_commit_is_known_when_its_message_is_gone(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        prepared = await client.prepare(topic, b"x", delay=timedelta(hours=1))
        assert await client.cancel(id=await prepared.commit()) == "cancelled"
        assert await client.commit_prepared([prepared.id]) == [("already_committed", 0)]
        assert await prepared.commit() == 0
        with pytest.raises(TransactionRefused):
            await prepared.rollback()


@pytest.mark.promise("V8", "R75")
async def test_orphans_are_asked_after_until_somebody_knows(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.prepare(topic, b"orphan")
        async with client.check_prepared(topic) as checks, client.subscribe(topic) as subscription:
            first = await checks.receive(PATIENCE_S)
            assert first is not None
            assert (first.body, first.epoch) == (b"orphan", 1)
            del first  # else it is held
            again = await checks.receive(PATIENCE_S)
            assert again is not None
            assert again.epoch == 2
            await again.commit()
            message = await get(subscription)
            assert message.body == b"orphan"
            await message.ack(confirm=True)
            assert await checks.receive(0.8) is None


async def test_who_asks_before_anything_was_prepared_has_the_times_of_checks(
    daemon: Daemon, topic: str
) -> None:
    async with tickwheel.Client(daemon.url) as client:
        async with client.check_prepared(topic):
            early = await client.topic(f"{topic}.prepared")
        await client.prepare(f"{topic}-later", b"x")
        assert early.settings == (await client.topic(f"{topic}-later.prepared")).settings
        assert early.settings["ack_wait_ms"] == early.settings["max_backoff_ms"]


async def test_when_is_asked_first_may_be_said_for_each_message(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for after in (HOUR, None):
            await client.prepare(topic, b"orphan", delay=HOUR, check_after=after)
        waits = [one.deliver_at_ms - one.created_ms for one in await client.browse(f"{topic}.prepared")]
        assert waits == [3_600_000, 200]
        async with client.check_prepared(topic) as checks:
            await client.prepare(topic, b"at once", check_after=timedelta(0))
            asked = {}
            for _ in range(2):
                message = await checks.receive(PATIENCE_S)
                assert message is not None
                asked[message.body] = message
                await message.commit()
            assert asked.keys() == {b"at once", b"orphan"}
        with pytest.raises(BadTime):
            await client.prepare(topic, b"x", check_after=timedelta(days=365 * 9_000))
        assert len(await client.browse(f"{topic}.prepared")) == 1


async def test_a_refusal_names_the_part(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        known = await client.send(topic, b"known", key="k", delay=HOUR)
        gone = await client.send(topic, b"gone", key="gone", delay=HOUR)
        await client.cancel(id=gone.id)
        async with client.subscribe(topic, "g") as subscription:
            await client.send(topic, b"held")
            held = await get(subscription)
            await held.ack(confirm=True)

            def sends(tx: tickwheel.Transaction) -> None:
                tx.send(topic, b"1")
                tx.send_many(topic, [b"2", b"3"], keys=["new", "k"])

            def twins(tx: tickwheel.Transaction) -> None:
                tx.send(topic, b"1")
                tx.send(topic, b"2", key="twin")
                tx.send(topic, b"3", key="twin")

            def acks(tx: tickwheel.Transaction) -> None:
                tx.send(topic, b"1")
                tx.ack(held)

            def cancels(tx: tickwheel.Transaction) -> None:
                tx.cancel(id=known.id)
                tx.cancel(ids=[gone.id])

            def by_key(tx: tickwheel.Transaction) -> None:
                tx.reschedule(topic, keys=["k", "none"], delay=HOUR)

            for fill, part, index, message_id, key, reason in (
                (sends, "send", 2, known.id, "k", "duplicate"),
                (twins, "send", 2, None, "twin", "duplicate"),
                (acks, "ack", 0, held.id, None, "already_acked"),
                (cancels, "cancel", 1, gone.id, None, "already_cancelled"),
                (by_key, "reschedule", 1, None, "none", "not_found"),
            ):
                with pytest.raises(TransactionRefused) as refused:
                    async with client.transaction() as tx:
                        fill(tx)
                error = refused.value
                assert (error.part, error.index, error.id) == (part, index, message_id)
                assert (error.key, error.reason) == (key, reason)
                assert error.message.startswith(f"{part} {index}")
        assert [one.body for one in await client.browse(topic, states="scheduled")] == [b"known"]


async def test_a_fenced_receipt_is_refused_in_a_transaction(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        await client.send(topic, b"x")
        stale = await get(subscription)
        await stale.nack(0)
        fresh = await get(subscription)
        tx = client.transaction()
        tx.ack(stale)
        with pytest.raises(TransactionRefused, match="stale_receipt"):
            await tx.commit()
        with pytest.raises(StaleReceipt):
            await stale.ack(confirm=True)
        async with client.transaction() as good:
            good.ack(fresh)
