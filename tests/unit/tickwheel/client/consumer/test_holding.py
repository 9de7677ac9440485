"""A message that a living, connected client holds is given to no other, however slow its handler is."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing

import tickwheel
from tests.support.clients.in_time import InTime, broker_in_time
from tickwheel import Client, Message
from tickwheel.errors import BadArgument, UnknownGroup

ROOT = Path(__file__).resolve().parents[5]
COUNT = 60
SHORT = {"ack_wait": "2s", "max_backoff": "4s"}


async def send(there: InTime, count: int) -> None:
    async with there.client() as client:
        await client.send_many("t", [b"%d" % number for number in range(count)])


async def handle_all(client: Client, handled: Counter[bytes], slow_s: float, **options: Any) -> None:
    """Until nothing comes any more. A first message that comes again takes a minute."""
    async with client.subscribe("t", **options) as subscription:
        while (message := await subscription.receive(timeout=20)) is not None:
            await trio.sleep(slow_s if message.epoch == 1 or message.body != b"0" else 60)
            handled[message.body] += 1
            await message.ack()
        await subscription.flush()


@pytest.mark.promise("V12", "R54", "while-it-is-being-handled")
@pytest.mark.parametrize(
    ("count", "slow_s", "settings", "options"),
    [
        (100, 0.5, {}, {}),
        (100, 0.5, {}, {"credit": 1000}),
        (60, 0.1, SHORT, {}),
        (60, 0.1, SHORT, {"credit": 1000}),
        (5, 15, SHORT, {"credit": 5, "batch": 1}),
    ],
)
async def test_each_is_handled_once(
    tmp_path: Path,
    autojump_clock: Any,
    count: int,
    slow_s: float,
    settings: dict[str, str],
    options: dict[str, int],
) -> None:
    async with broker_in_time(tmp_path, **settings) as there:
        await send(there, count)
        handled: Counter[bytes] = Counter()
        async with there.client() as client:
            await handle_all(client, handled, slow_s, **options)
        assert (len(handled), handled.total()) == (count, count)


async def test_each_is_handled_once_by_batches(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, COUNT)
        handled: Counter[bytes] = Counter()
        async with there.client() as client, client.subscribe("t", batch=20) as subscription:
            with trio.move_on_after(120):
                async for batch in subscription.batches():
                    for message in batch:
                        await trio.sleep(1)
                        handled[message.body] += 1
                    await batch.ack()
        assert (len(handled), handled.total()) == (COUNT, COUNT)


async def test_a_shorter_ack_wait_reaches_who_is_subscribed(tmp_path: Path, autojump_clock: Any) -> None:
    """Also in the middle: what is delivered after the change has the shorter leases, and is renewed in time."""
    async with broker_in_time(tmp_path, ack_wait="1m", max_backoff="2m") as there:
        handled: Counter[bytes] = Counter()
        async with there.client() as client, there.client() as other:
            await other.create_topic("t")
            async with client.subscribe("t") as slow, other.subscribe("t", credit=1) as rival:
                assert await rival.receive(timeout=1) is None
                await other.set_topic("t", ack_wait=timedelta(seconds=1), max_backoff=timedelta(seconds=2))
                await send(there, 10)
                assert slow.ack_wait_ms == 1_000
                async with trio.open_nursery() as nursery:
                    for subscription in (slow, rival):

                        async def handle(subscription: Any = subscription) -> None:
                            while (message := await subscription.receive(timeout=20)) is not None:
                                await trio.sleep(7)
                                handled[message.body] += 1
                                await message.ack()

                        nursery.start_soon(handle)
        assert (len(handled), handled.total()) == (10, 10)


async def test_each_is_handled_once_by_tasks_beside_each_other(tmp_path: Path, autojump_clock: Any) -> None:
    handled: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        await trio.sleep(10)
        handled[message.body] += 1
        await message.ack()

    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, COUNT)
        async with (
            there.client() as client,
            client.subscribe("t") as subscription,
            trio.open_nursery() as nursery,
        ):
            while (message := await subscription.receive(timeout=15)) is not None:
                nursery.start_soon(handle, message)
                del message
        assert (len(handled), handled.total()) == (COUNT, COUNT)


@pytest.mark.promise("while-it-is-being-handled")
async def test_several_consumers_of_a_group_share_what_there_is(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, COUNT)
        handled: Counter[bytes] = Counter()
        async with trio.open_nursery() as nursery:
            for slow_s in (0.1, 0.5, 3):

                async def consume(slow_s: float = slow_s) -> None:
                    async with there.client() as client:
                        await handle_all(client, handled, slow_s, credit=10)

                nursery.start_soon(consume)
        assert (len(handled), handled.total()) == (COUNT, COUNT)


async def test_a_connection_that_breaks_costs_nothing(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, ack_wait="10s") as there:
        await send(there, COUNT)
        handled: Counter[bytes] = Counter()
        async with there.client() as client, trio.open_nursery() as nursery:

            async def cut() -> None:
                for _ in range(6):
                    await trio.sleep(9)
                    there.network.cut_one()

            nursery.start_soon(cut)
            await handle_all(client, handled, 1, credit=100)
        assert (len(handled), handled.total()) == (COUNT, COUNT)


@pytest.mark.promise("while-it-is-being-handled")
async def test_what_waits_through_a_long_break_is_confirmed_or_dropped(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one was given it meanwhile: here it is not handled, but for the one message that is in a hand."""
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, COUNT)
        handled: Counter[bytes] = Counter()
        async with (
            there.client() as other,
            there.client() as client,
            client.subscribe("t", credit=COUNT, batch=10) as subscription,
        ):
            message = await subscription.receive()
            while (await other.stats()).leased < COUNT:
                await trio.sleep(0.01)
            listener = there.network._listeners.pop()
            there.network._connections[-1].cut()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(handle_all, other, handled, 0.01, credit=COUNT))
                await trio.sleep(15)
                there.network._listeners.append(listener)
                assert await subscription.receive(timeout=30) is None
                assert message is not None
        assert (len(handled), handled.total()) == (COUNT, COUNT)
        assert "message 1 of 't' (epoch 1) is being handled, but is no longer ours" in caplog.text


async def test_what_waits_through_a_break_that_nobody_used_is_handled_once(
    tmp_path: Path, autojump_clock: Any
) -> None:
    """Their leases ended by the clock here: the broker is asked first, and gives what had ended anew."""
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, COUNT)
        handled: Counter[bytes] = Counter()
        async with there.client() as client, client.subscribe("t", credit=COUNT, batch=10) as subscription:
            message = await subscription.receive()
            assert message is not None
            listener = there.network._listeners.pop()
            there.network._connections[-1].cut()
            await trio.sleep(15)
            there.network._listeners.append(listener)
            while (message := await subscription.receive(timeout=10)) is not None:
                handled[message.body] += 1
                await message.ack(confirm=True)
        assert (len(handled), handled.total()) == (COUNT, COUNT)


@pytest.mark.promise("while-it-is-being-handled")
async def test_max_hold_ends_it_and_the_log_says_so_once(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, 1)
        async with there.client() as client:
            async with client.subscribe("t", max_hold=timedelta(seconds=30)) as subscription:
                message = await subscription.receive()
                began = trio.current_time()
                again = await subscription.receive(timeout=100)
                assert message is not None
                assert again is not None
                assert again.epoch == 2
                assert 30 <= trio.current_time() - began < 35
            assert caplog.text.count("was held for 30 s") == 1
            for bad in (-1, "1h", True, float("nan")):
                with pytest.raises(BadArgument, match="max_hold"):
                    client.subscribe("t", max_hold=bad)  # type: ignore[arg-type]


async def test_without_max_hold_leases_end_as_they_come(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, 1)
        async with there.client() as client, client.subscribe("t", max_hold=0) as subscription:
            message = await subscription.receive()
            began = trio.current_time()
            again = await subscription.receive(timeout=100)
            assert message is not None
            assert again is not None
            assert trio.current_time() - began < 3


@pytest.mark.promise("while-it-is-being-handled")
@pytest.mark.parametrize("credit", [1, 100])
async def test_a_message_that_was_dropped_comes_again(
    tmp_path: Path, autojump_clock: Any, credit: int
) -> None:
    """Its object is gone, while others of its batch are still being handled."""
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, 10)
        came: list[tuple[bytes, float]] = []
        async with there.client() as client, client.subscribe("t", credit=credit) as subscription:
            while (message := await subscription.receive(timeout=8)) is not None:
                came.append((message.body, trio.current_time()))
                if message.body != b"3" or message.epoch > 1:
                    await trio.sleep(1)
                    await message.ack()
                del message
        times = [at for body, at in came if body == b"3"]
        assert len(came) == 11
        assert times[1] - times[0] < 12


async def test_nack_lets_go(tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, 1)
        async with there.client() as client, client.subscribe("t") as subscription:
            message = await subscription.receive()
            assert message is not None
            assert await message.nack(timedelta(seconds=5)) == "nacked"
            again = await subscription.receive(timeout=6)
            assert again is not None
            await trio.sleep(10)
            assert await again.nack() == "nacked"
        assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []


async def test_a_renewal_shortens_no_longer_lease(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, ack_wait="2s", min_backoff="60s", max_backoff="1h") as there:
        await send(there, 2)
        async with there.client() as client, client.subscribe("t", credit=2) as subscription:
            for _ in range(2):
                message = await subscription.receive()
                assert message is not None
                await message.extend(timedelta(seconds=100))
                await trio.sleep(10)
            groups = there.broker.store.tables.groups
            ends = [row["time_ms"] for row in groups[1].deliveries.items[:2]]
            lasts = [int(end) - there.broker.clock.now_ms() for end in ends]
            assert [round(last / 1000) for last in lasts] == [80, 90]


@pytest.mark.promise("while-it-is-being-handled")
async def test_a_loop_that_does_not_turn_loses_its_leases(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What waited meanwhile is not handled here, when somebody else has it."""
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, 10)
        handled: Counter[bytes] = Counter()
        async with (
            there.client() as client,
            there.client() as other,
            client.subscribe("t", credit=10) as subscription,
        ):
            first = await subscription.receive()
            while (await other.stats()).leased < 10:
                await trio.sleep(0.01)
            autojump_clock.jump(60)  # of which nothing hears before it is over
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(handle_all, other, handled, 0.01, credit=COUNT))
                while (message := await subscription.receive(timeout=10)) is not None:
                    handled[message.body] += 1
                    await message.ack()
            assert first is not None
        assert (len(handled), handled.total()) == (10, 10)


async def test_refused_acks_do_not_flood_the_log(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with broker_in_time(tmp_path, **SHORT) as there:
        await send(there, 50)
        async with there.client() as client, client.subscribe("t", credit=50) as subscription:
            held = [await subscription.receive() for _ in range(50)]
            ids = [message.id for message in held if message is not None]
            await client.redeliver(ids=ids)
            for message in held:
                assert message is not None
                await message.ack()
                await trio.sleep(0.01)
            assert caplog.text.count("was refused: stale_receipt") == 1
        assert "49 more acks of 't' in group 'default' were refused" in caplog.text


@pytest.mark.promise("while-it-is-being-handled")
async def test_what_waits_follows_from_how_long_messages_are_handled(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with broker_in_time(tmp_path) as there:
        await send(there, 2_300)
        async with there.client() as client, client.subscribe("t") as subscription:
            slow_s, credits = 0.0, []
            for count, slow_s in ((2_000, 0.0), (40, 0.25), (250, 0.01)):
                for _ in range(count):
                    message = await subscription.receive(timeout=10)
                    assert message is not None
                    await trio.sleep(slow_s)
                    await message.ack()
                credits.append(subscription.credit)
                (held,) = there.broker.delivery._by_holder.values()
                assert held.credit == subscription.credit
        fast, slow, middling = credits
        assert fast > 500
        assert slow <= 6
        assert 50 <= middling <= 150


async def test_what_a_quick_handler_is_done_with_is_forgotten(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there:
        await send(there, 3_000)
        async with there.client() as client, client.subscribe("t", credit=500, batch=100) as subscription:
            for _ in range(3_000):
                message = await subscription.receive(timeout=10)
                assert message is not None
                await message.ack()
            assert subscription.is_fast
            assert await subscription.receive(timeout=1) is None
            alive = [parcel for parcel in subscription.holding._parcels if parcel.is_alive]
            assert len(alive) <= 1, "that of the last message, which is still at hand"


async def test_who_collects_messages_is_given_up_to_a_thousand(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there:
        await send(there, 1_200)
        async with there.client() as client, client.subscribe("t") as subscription:
            held = [await subscription.receive(timeout=10) for _ in range(1_000)]
            assert None not in held
            assert await subscription.receive(timeout=10) is None


async def test_who_collects_messages_slowly_gets_more_whatever_was_stopped_lost_or_acked_twice(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with (
        broker_in_time(tmp_path) as there,
        there.client() as client,
        client.subscribe("t") as subscription,
    ):
        for _ in range(4):
            waiting = await client.send_many("t", [b"x"] * 16)
            await trio.sleep(1)
            await client.cancel(ids=list(waiting.ids()), stop=True)
        await trio.sleep(1)
        await client.send_many("t", [b"x"] * 16)
        for _ in range(16):
            message = await subscription.receive(timeout=10)
            assert message is not None
            await message.ack(confirm=True)
            await message.ack()
        await send(there, 40)
        held = []
        while len(held) < 40:
            held.append(await subscription.receive(timeout=10))
            assert held[-1] is not None, f"{len(held) - 1} are held, and no more come"
            await trio.sleep(0.5)


async def test_what_is_acked_in_transactions_is_not_counted_as_held(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with broker_in_time(tmp_path) as there:
        await send(there, COUNT)
        async with there.client() as client, client.subscribe("t") as subscription:
            for _ in range(COUNT):
                message = await subscription.receive(timeout=10)
                assert message is not None
                async with client.transaction() as transaction:
                    transaction.ack(message)
                await trio.sleep(0.5)
            assert subscription.credit <= 6


async def test_batches_have_a_thousand_and_a_given_credit_stays(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, max_credit=1_000) as there:
        await send(there, 3_000)
        async with there.client() as client:
            async with client.subscribe("t", "batches") as subscription:
                async for batch in subscription.batches():
                    await batch.ack()
                    if len(batch) == 500:
                        break
                (held,) = there.broker.delivery._by_holder.values()
                assert held.credit == 1_000
            async with client.subscribe("t", "given", credit=7) as subscription:
                for _ in range(100):
                    message = await subscription.receive(timeout=10)
                    assert message is not None
                    await message.ack()
                (held,) = there.broker.delivery._by_holder.values()
                assert held.credit == 7


async def test_a_broker_that_allows_less_keeps_its_limit(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, max_credit=20) as there:
        await send(there, 100)
        async with there.client() as client, client.subscribe("t") as subscription:
            for _ in range(100):
                message = await subscription.receive(timeout=10)
                assert message is not None
                await message.ack()
            assert subscription.credit <= 20
            there.network._connections[-1].cut()
            await client.send("t", b"one more")
            assert await subscription.receive(timeout=10) is not None


@pytest.mark.promise("while-it-is-being-handled")
async def test_the_loop_on_the_first_page_handles_each_once_when_it_is_slow(
    tmp_path: Path, autojump_clock: Any
) -> None:
    page = (ROOT / "README.md").read_text()
    source = page.partition("\ntrio.run(main)")[0].rpartition("```python\n")[2]
    for old, new in (
        ('tickwheel.Client("tickwheel://127.0.0.1:7411")', "there.client()"),
        ("print(message.body.decode())", "await handle(message)"),
        ("                break\n", ""),
    ):
        assert old in source
        source = source.replace(old, new)
    handled: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        await trio.sleep(5)
        handled[message.body] += 1

    async with broker_in_time(tmp_path, **SHORT) as there:
        async with there.client() as client:
            await client.send_many("reminders", [b"%d" % number for number in range(20)])
        names: dict[str, Any] = {"there": there, "handle": handle}
        exec(source, names)
        with trio.move_on_after(200):
            await names["main"]()
    assert (len(handled), handled.total()) == (21, 21)


@pytest.mark.promise("while-it-is-being-handled")
def test_each_is_handled_once_on_asyncio_and_by_a_client_that_blocks(tmp_path: Path) -> None:
    """In real time: leases of 1.5 s, and 2.4 s of work that come at once."""
    handled: Counter[bytes] = Counter()

    async def on_asyncio() -> None:
        async with broker.client() as client, client.subscribe("t", "asyncio", credit=6) as subscription:
            while (message := await subscription.receive(timeout=1)) is not None:
                await anyio.sleep(0.4)
                handled[b"asyncio " + message.body] += 1
                await message.ack()

    def blocking() -> None:
        with broker.sync_client() as client, client.subscribe("t", "blocking", credit=6) as subscription:
            while (message := subscription.receive(timeout=1)) is not None:
                time.sleep(0.4)
                handled[b"blocking " + message.body] += 1
                message.ack()

    with tickwheel.embedded(tmp_path / "data", ack_wait="1500ms", max_backoff="3s") as broker:
        with broker.sync_client() as client:
            client.send_many("t", [b"%d" % number for number in range(6)])
        thread = threading.Thread(target=blocking)
        thread.start()
        anyio.run(on_asyncio, backend="asyncio")
        thread.join()
    assert (len(handled), handled.total()) == (12, 12)


@pytest.mark.parametrize("leave", ["stop", "block", "block without a connection"])
async def test_acks_go_over_the_next_connection_when_one_breaks_while_a_subscription_ends(
    tmp_path: Path, autojump_clock: Any, leave: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_in_time(tmp_path) as there:
        await send(there, 2)
        async with there.client() as client, trio.open_nursery() as nursery:

            def cut() -> None:
                there.network._connections[-1].cut()

            async with client.subscribe("t") as subscription:
                messages = [await subscription.receive(timeout=10) for _ in range(2)]
                assert None not in messages
                if leave == "stop":
                    nursery.start_soon(subscription.stop)
                    await trio.testing.wait_all_tasks_blocked()
                    cut()
                    with trio.fail_after(20):
                        for message in messages:
                            assert message is not None
                            await message.ack(confirm=True)
                else:
                    if "without" in leave:
                        cut()
                        await trio.testing.wait_all_tasks_blocked()
                    for message in messages:
                        assert message is not None
                        await message.ack()
                    cut()
            assert (await client.group("t", "default")).acked == 2
    assert "without the broker's confirmation" not in caplog.text


async def test_acks_say_when_the_subscription_could_not_be_renewed(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with broker_in_time(tmp_path, auto_create_groups=False) as there:
        await send(there, 2)
        async with there.client() as client, there.client() as other:
            await client.create_group("t", "g")
            async with client.subscribe("t", "g") as subscription:
                first, second = [await subscription.receive(timeout=10) for _ in range(2)]
                assert first is not None
                assert second is not None
                there.network._connections[0].cut()
                await first.ack()
                await trio.testing.wait_all_tasks_blocked()
                await other.delete_group("t", "g")
                with trio.fail_after(60), pytest.raises(UnknownGroup):
                    await subscription.receive()
                with trio.fail_after(60), pytest.raises(UnknownGroup):
                    await subscription.flush()
                with trio.fail_after(60), pytest.raises(UnknownGroup):
                    await second.ack(confirm=True)
