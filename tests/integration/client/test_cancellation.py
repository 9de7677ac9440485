"""Every call of the client, cancelled at each of its steps: nothing stays behind on the broker or in the client,
nothing that was confirmed is forgotten, and the client can be used on."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

import tickwheel
from tests.support.clients.cancelling import Canceller, each_step, run
from tickwheel import Client
from tickwheel._embedded import EmbeddedBroker
from tickwheel.client.admin.prepared import CheckedMessage
from tickwheel.client.admin.transactions import Prepared
from tickwheel.errors import AckRefused, BadJob, TickwheelError, TopicExists
from tickwheel.testing import TestBroker, broker
from timerlog.files.lock import owner_of

HOUR = timedelta(hours=1)
PATIENCE_S = 60.0
_numbers = count()


@pytest.fixture(scope="module")
def shared() -> Iterator[TestBroker]:
    with broker(ack_wait="1h", max_body_bytes="64KiB") as one:
        yield one


class Place:
    """A client, and what the tried call is about."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.topic = f"topic-{next(_numbers)}"
        self.name = self.topic
        self.subscription: Any = None
        self.message: Any = None
        self.prepared: Any = None
        self.transaction: Any = None
        self.got: list[bytes] = []
        self.sent = 0

    async def give(self) -> Any:
        """A message that was just delivered to the subscription."""
        self.sent += 1
        await self.client.send(self.topic, b"%d" % self.sent)
        self.message = await self.subscription.receive(PATIENCE_S)
        return self.message

    async def give_batch(self) -> None:
        await self.give()
        self.message = self.message._batch

    async def prepare(self) -> None:
        self.prepared = await self.client.prepare(self.topic, b"prepared", delay=HOUR)

    async def fill(self) -> None:
        """One message more waits in the topic."""
        self.sent += 1
        await self.client.send(self.topic, b"%d" % self.sent)

    async def begin(self) -> None:
        self.transaction = self.client.transaction()
        self.sent += 1
        self.transaction.send(self.topic, b"%d" % self.sent, key=f"{self.topic}/{self.sent}")

    async def settle(self) -> None:
        """The message is done, whatever became of the call."""
        with suppress(AckRefused):
            await self.message.ack(confirm=True)
        while (again := await self.subscription.receive(0)) is not None:
            with suppress(AckRefused):
                await again.ack(confirm=True)


async def nothing(_: Place) -> None: ...


class Case:
    """A call, what comes before each try, and what must hold after it."""

    def __init__(
        self,
        call: Callable[[Place], Awaitable[object]],
        *,
        before: Callable[[Place], Awaitable[object]] = nothing,
        after: Callable[[Place], Awaitable[object]] = nothing,
        subscribes: bool = False,
    ) -> None:
        self.call = call
        self.before, self.after = before, after
        self.subscribes = subscribes


def tolerant(*errors: type[TickwheelError]) -> Callable[[Callable[[Place], Any]], Callable[[Place], Any]]:
    """For calls that an earlier try may have done already."""

    def wrap(call: Callable[[Place], Any]) -> Callable[[Place], Any]:
        async def tolerate(place: Place) -> None:
            with suppress(*errors):
                await call(place)

        return tolerate

    return wrap


# -- what is tried --


async def enter_and_leave(place: Place) -> None:
    async with place.client.subscribe(place.topic):
        pass


async def fill_mortal(place: Place) -> None:
    """One message more, which is a dead letter after one attempt: a subscription that was cancelled is none."""
    await place.client.create_topic(place.topic, max_attempts=1)
    await place.fill()


async def check_nothing_is_held(place: Place) -> None:
    """The message is free for the next one."""
    async with place.client.subscribe(place.topic) as subscription:
        message = await subscription.receive(PATIENCE_S)
        assert message is not None
        await message.ack(confirm=True)


async def fetch(place: Place) -> None:
    """What a cancelled call was given is free again; what it returned is given back here."""
    fetched = await place.client.fetch(place.topic, wait=timedelta(seconds=PATIENCE_S))
    with anyio.CancelScope(shield=True):
        await fetched.give_back()


def by_receipt(name: str, *arguments: object) -> Callable[[Place], Awaitable[object]]:
    async def settle(place: Place) -> None:
        receipts = [(place.message.id, place.message.epoch)]
        await getattr(place.client, name)(place.message.acks.group_id, receipts, *arguments)

    return settle


async def receive(place: Place) -> None:
    place.got.append((await place.subscription.receive()).body)


async def receive_batch(place: Place) -> None:
    place.got.extend((await place.subscription.receive_batch()).bodies())


async def take_next(place: Place) -> None:
    place.got.append((await anext(place.subscription)).body)


async def iterate_batches(place: Place) -> None:
    async for batch in place.subscription.batches():
        place.got.extend(batch.bodies())
        return


async def check_nothing_is_lost(place: Place) -> None:
    """What a cancelled call did not hand out comes with the next one."""
    while len(place.got) < place.sent:
        message = await place.subscription.receive(PATIENCE_S)
        assert message is not None, f"{place.got[-3:]} came of {place.sent}"
        place.got.append(message.body)
    assert place.got == [b"%d" % number for number in range(1, place.sent + 1)]


async def flush(place: Place) -> None:
    await place.message.ack()
    await place.subscription.flush()


async def stop(place: Place) -> None:
    async with place.client.subscribe(place.topic) as subscription:
        await subscription.stop()
        async for message in subscription:
            await message.ack()


async def stop_alone(place: Place) -> None:
    """As ``stop``; the subscription ends, also when it was cancelled."""
    await place.subscription.stop()


async def in_transaction(place: Place) -> None:
    async with place.client.transaction() as transaction:
        place.sent += 1
        place.transaction = transaction
        transaction.send(place.topic, b"1", key=f"{place.topic}/{place.sent}")
        transaction.send(place.topic, b"2", key=f"{place.topic}/{place.sent}/second")


async def check_transaction(place: Place) -> None:
    """What is told is true: with a result all of it is there, and without one it can be asked for."""
    if place.transaction is None:
        return
    transaction, place.transaction = place.transaction, None
    was_known = transaction.result
    if was_known is None and transaction._is_committing:
        await transaction.commit()
    await with_topic(place)
    found = {one.key for one in await place.client.browse(place.topic, limit=10_000)}
    assert (f"{place.topic}/{place.sent}" in found) == (transaction.result is not None)


async def send(place: Place) -> None:
    await place.client.send(place.topic, b"x" * 100, delay=HOUR)


async def send_many(place: Place) -> None:
    """So many bytes that it goes in several frames."""
    await place.client.send_many(place.topic, [b"x" * 60_000] * 20, delay=HOUR)


async def check_prepared(place: Place) -> None:
    result, _ = (await place.client.commit_prepared([place.prepared.id]))[0]
    assert result in ("committed", "already_committed", "already_rolled_back")


async def open_and_close(place: Place) -> None:
    async with Client(place.client.url, token="") as other:
        await other.ping()


async def open_and_subscribe(place: Place) -> None:
    async with Client(place.client.url, token="") as other, other.subscribe(place.topic) as subscription:
        await subscription.receive()


async def connect(place: Place) -> None:
    other = await tickwheel.connect(place.client.url, token="")
    await other.close()


async def schedule(place: Place) -> None:
    await place.client.create_schedule(place.name, place.topic, every=HOUR, body=b"x")


async def with_schedule(place: Place) -> None:
    place.name = f"schedule-{next(_numbers)}"
    await schedule(place)


async def without_schedule(place: Place) -> None:
    with suppress(TickwheelError):
        await place.client.delete_schedule(place.name)


async def with_topic(place: Place) -> None:
    with suppress(TopicExists):
        await place.client.create_topic(place.topic)


async def with_group(place: Place) -> None:
    await with_topic(place)
    await place.client.create_group(place.topic, "g")


async def with_message(place: Place) -> None:
    place.message = await place.client.send(place.topic, b"x", key="k", delay=HOUR)


LATER = {"delay": 2 * HOUR}


async def endpoint(place: Place) -> None:
    await place.client.set_endpoint(place.name, topic=place.topic, url="https://a.example")


async def with_endpoint(place: Place) -> None:
    place.name = f"endpoint-{next(_numbers)}"
    await endpoint(place)


async def with_tasks(place: Place) -> None:
    place.name = f"endpoint-{next(_numbers)}"
    await place.client.set_endpoint(place.name, topic=place.topic, allow_urls=["https://a.example/*"])


async def without_endpoint(place: Place) -> None:
    with suppress(TickwheelError):
        await place.client.delete_endpoint(place.name)


FILTER: dict[str, Any] = {"states": ["scheduled"]}
DONE = {"after": Place.settle, "subscribes": True}

CASES: dict[str, Case] = {
    "Client.__aenter__": Case(open_and_close),
    "Client.__aexit__": Case(open_and_subscribe, before=Place.fill, after=check_nothing_is_held),
    "Client.close": Case(connect),
    "Client.send": Case(send),
    "Client.send_many": Case(send_many),
    "Client.cancel": Case(lambda one: one.client.cancel(one.topic, key="k"), before=with_message),
    "Client.reschedule": Case(
        lambda one: one.client.reschedule(one.topic, key="k", **LATER), before=with_message
    ),
    "Client.redeliver": Case(lambda one: one.client.redeliver(id=one.message.id), before=with_message),
    "Client.cancel_where": Case(lambda one: one.client.cancel_where(one.topic), before=with_message),
    "Client.reschedule_where": Case(
        lambda one: one.client.reschedule_where(one.topic, **LATER), before=with_message
    ),
    "Client.redeliver_where": Case(lambda one: one.client.redeliver_where(one.topic), before=with_message),
    "Client.create_topic": Case(lambda one: one.client.create_topic(one.topic)),
    "Client.set_topic": Case(lambda one: one.client.set_topic(one.topic, rate=5), before=with_topic),
    "Client.pause_topic": Case(lambda one: one.client.pause_topic(one.topic), before=with_topic),
    "Client.resume_topic": Case(lambda one: one.client.resume_topic(one.topic), before=with_topic),
    "Client.topic": Case(lambda one: one.client.topic(one.topic), before=with_topic),
    "Client.delete_topic": Case(lambda one: one.client.delete_topic(one.topic), before=with_topic),
    "Client.browse": Case(lambda one: one.client.browse(one.topic), before=with_message),
    "Client.replay_dead": Case(
        lambda one: one.client.replay_dead(one.topic),
        before=lambda one: one.client.create_topic(one.topic + ".dead"),
    ),
    "Client.figures": Case(lambda one: one.client.figures()),
    "Client.history": Case(lambda one: one.client.history(id=one.message.id), before=with_message),
    "Client.events": Case(lambda one: one.client.events("earliest")),
    "Client.clients": Case(lambda one: one.client.clients()),
    "Client.audit": Case(lambda one: one.client.audit()),
    "Client.disconnect": Case(lambda one: one.client.disconnect(1 << 40)),
    "Client.purge": Case(lambda one: one.client.purge()),
    "Client.plan_job": Case(lambda one: one.client.plan_job([one.topic])),
    "Client.reserve_ids": Case(lambda one: one.client.reserve_ids(1)),
    "Client.adopt_job": Case(tolerant(BadJob)(lambda one: one.client.adopt_job("0" * 32))),
    "Client.log_place": Case(lambda one: one.client.log_place()),
    "Client.drop": Case(
        lambda one: one.client.drop(
            one.message.log_id, [(1, 1)], done_before=datetime(2031, 5, 1, tzinfo=UTC)
        ),
        before=lambda one: _place(one),
    ),
    "Client.commit_prepared": Case(
        lambda one: one.client.commit_prepared([one.prepared.id]), before=Place.prepare, after=check_prepared
    ),
    "Client.rollback_prepared": Case(
        lambda one: one.client.rollback_prepared([one.prepared.id]),
        before=Place.prepare,
        after=check_prepared,
    ),
    "Client.create_schedule": Case(schedule, before=without_schedule),
    "Client.set_schedule": Case(
        lambda one: one.client.set_schedule(one.name, body=b"y"), before=with_schedule, after=without_schedule
    ),
    "Client.pause_schedule": Case(
        lambda one: one.client.pause_schedule(one.name), before=with_schedule, after=without_schedule
    ),
    "Client.resume_schedule": Case(
        lambda one: one.client.resume_schedule(one.name), before=with_schedule, after=without_schedule
    ),
    "Client.schedules": Case(lambda one: one.client.schedules()),
    "Client.preview_schedule": Case(lambda one: one.client.preview_schedule(every=HOUR)),
    "Client.schedule": Case(
        lambda one: one.client.schedule(one.name), before=with_schedule, after=without_schedule
    ),
    "Client.delete_schedule": Case(
        lambda one: one.client.delete_schedule(one.name), before=with_schedule, after=without_schedule
    ),
    "Client.send_http_task": Case(
        lambda one: one.client.send_http_task("https://a.example/x", topic=one.topic),
        before=with_tasks,
        after=without_endpoint,
    ),
    "Client.set_endpoint": Case(endpoint, before=without_endpoint, after=without_endpoint),
    "Client.endpoint": Case(
        lambda one: one.client.endpoint(one.name), before=with_endpoint, after=without_endpoint
    ),
    "Client.endpoints": Case(lambda one: one.client.endpoints()),
    "Client.endpoints_since": Case(lambda one: one.client.endpoints_since(0)),
    "Client.enable_endpoint": Case(
        lambda one: one.client.enable_endpoint(one.name), before=with_endpoint, after=without_endpoint
    ),
    "Client.disable_endpoint": Case(
        lambda one: one.client.disable_endpoint(one.name), before=with_endpoint, after=without_endpoint
    ),
    "Client.test_endpoint": Case(
        lambda one: one.client.test_endpoint(one.name), before=with_endpoint, after=without_endpoint
    ),
    "Client.endpoint_attempts": Case(
        lambda one: one.client.endpoint_attempts(one.name), before=with_endpoint, after=without_endpoint
    ),
    "Client.delete_endpoint": Case(
        lambda one: one.client.delete_endpoint(one.name), before=with_endpoint, after=without_endpoint
    ),
    "Client.trigger_schedule": Case(
        lambda one: one.client.trigger_schedule(one.name), before=with_schedule, after=without_schedule
    ),
    "Client.groups": Case(lambda one: one.client.groups()),
    "Client.group": Case(lambda one: one.client.group(one.topic, "g"), before=with_group),
    "Client.create_group": Case(lambda one: one.client.create_group(one.topic, "g"), before=with_topic),
    "Client.delete_group": Case(lambda one: one.client.delete_group(one.topic, "g"), before=with_group),
    "Client.seek_group": Case(
        lambda one: one.client.seek_group(one.topic, "g", to="latest"), before=with_group
    ),
    "Client.set_group": Case(
        lambda one: one.client.set_group(one.topic, "g", ignore_ordering_keys=True), before=with_group
    ),
    "Client.message": Case(lambda one: one.client.message(one.topic, key="k"), before=with_message),
    "Client.messages": Case(lambda one: one.client.messages(one.topic, keys=["k"]), before=with_message),
    "Client.stats": Case(lambda one: one.client.stats()),
    "Client.topics": Case(lambda one: one.client.topics()),
    "Client.wheel": Case(lambda one: one.client.wheel()),
    "Client.ping": Case(lambda one: one.client.ping()),
    "Client.prepare": Case(lambda one: one.client.prepare(one.topic, b"x", delay=HOUR)),
    "Subscription.__aenter__": Case(enter_and_leave, before=fill_mortal, after=check_nothing_is_held),
    "Subscription.__aexit__": Case(enter_and_leave, before=fill_mortal, after=check_nothing_is_held),
    "Subscription.__anext__": Case(
        take_next, before=Place.fill, after=check_nothing_is_lost, subscribes=True
    ),
    "Subscription.receive": Case(receive, before=Place.fill, after=check_nothing_is_lost, subscribes=True),
    "Subscription.receive_batch": Case(
        receive_batch, before=Place.fill, after=check_nothing_is_lost, subscribes=True
    ),
    "_Batches.__anext__": Case(
        iterate_batches, before=Place.fill, after=check_nothing_is_lost, subscribes=True
    ),
    "Subscription.flush": Case(flush, before=Place.give, after=Place.settle, subscribes=True),
    "Subscription.stop": Case(stop, before=Place.fill),
    "Message.ack": Case(lambda one: one.message.ack(confirm=True), before=Place.give, **DONE),
    "Message.nack": Case(lambda one: one.message.nack(timedelta(0)), before=Place.give, **DONE),
    "Message.extend": Case(lambda one: one.message.extend(HOUR), before=Place.give, **DONE),
    "Client.fetch": Case(fetch, before=Place.fill, after=check_nothing_is_held),
    "Client.ack": Case(by_receipt("ack"), before=Place.give, **DONE),
    "Client.nack": Case(by_receipt("nack", timedelta(0)), before=Place.give, **DONE),
    "Client.extend": Case(by_receipt("extend", HOUR), before=Place.give, **DONE),
    "Client.give_back": Case(by_receipt("give_back"), before=Place.give, **DONE),
    "Batch.ack": Case(lambda one: one.message.ack(confirm=True), before=Place.give_batch, **DONE),
    "Batch.nack": Case(lambda one: one.message.nack(timedelta(0)), before=Place.give_batch, **DONE),
    "Batch.extend": Case(lambda one: one.message.extend(HOUR), before=Place.give_batch, **DONE),
    "Transaction.__aenter__": Case(in_transaction, after=check_transaction),
    "Transaction.__aexit__": Case(in_transaction, after=check_transaction),
    "Transaction.commit": Case(
        lambda one: one.transaction.commit(), before=Place.begin, after=check_transaction
    ),
    "Prepared.commit": Case(lambda one: one.prepared.commit(), before=Place.prepare, after=check_prepared),
    "Prepared.rollback": Case(
        lambda one: one.prepared.rollback(), before=Place.prepare, after=check_prepared
    ),
}


async def _place(place: Place) -> None:
    place.message = await place.client.log_place()


ELSEWHERE = {
    "Client.query": "test_a_query_that_is_cancelled: each try leaves the broker a query to end",
    "Client.query_arrow": "as Client.query",
    "Client.send_json": "as Client.send",
    "Client.fetch_as": "as Client.fetch, for the blocking client",
    "Client.work": "tests/unit/tickwheel/worker/test_work.py: what was not finished goes back",
    "CheckedMessage.commit": "the request of Prepared.commit, on the same session",
    "CheckedMessage.rollback": "the request of Prepared.rollback, on the same session",
    "EmbeddedBroker.__aenter__": "test_opening_an_embedded_broker",
    "EmbeddedBroker.__aexit__": "test_opening_an_embedded_broker",
}
CLASSES = (
    Client,
    tickwheel.Subscription,
    tickwheel.Message,
    tickwheel.Batch,
    tickwheel.Transaction,
    Prepared,
    CheckedMessage,
    EmbeddedBroker,
)


def awaited(cls: type) -> Iterator[str]:
    """The names of what a class has that is awaited."""
    for name in dir(cls):
        found = inspect.getattr_static(cls, name)
        is_public = not name.startswith("_") or name in ("__aenter__", "__aexit__", "__anext__")
        if is_public and inspect.iscoroutinefunction(found):
            yield f"{cls.__name__}.{name}"


@pytest.mark.promise("when-a-call-is-cancelled")
def test_everything_that_is_awaited_is_in_the_table() -> None:
    names = {name for cls in CLASSES for name in awaited(cls)}
    assert names - set(CASES) - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) <= names


async def check_clean(place: Place) -> None:
    """The client is as it was, and so is the broker."""
    session, topics = place.client._session, [place.topic]
    expected = [] if place.subscription is None else [place.subscription]
    with anyio.fail_after(PATIENCE_S):
        while session._live or session._leaving or session._outbox:
            await place.client.ping()
        assert (session._budget.taken, session._flights) == (0, {})
        assert session.link is not None
        assert list(session.subscriptions) == list(session.link.subscriptions.values()) == expected
        while True:
            await place.client.ping()
            groups = [
                group for one in await place.client.topics() if one.name in topics for group in one.groups
            ]
            if sum(group.subscribers for group in groups) == len(expected) and not any(
                group.leased for group in groups if not expected
            ):
                return
            await anyio.sleep(0.005)


@pytest.mark.promise("when-a-call-is-cancelled")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_cancelled_at_each_step(shared: TestBroker, backend: str, name: str) -> None:
    case = CASES[name]

    async def main(canceller: Canceller) -> None:
        with anyio.fail_after(120):
            async with shared.client() as client:
                place = Place(client)
                if case.subscribes:
                    async with client.subscribe(place.topic) as place.subscription:
                        await tried(canceller, place)
                    place.subscription = None
                else:
                    await tried(canceller, place)
                await check_clean(place)

    async def tried(canceller: Canceller, place: Place) -> None:
        async def after() -> None:
            await case.after(place)
            await check_clean(place)

        tries = await each_step(
            canceller, lambda: case.call(place), before=lambda: case.before(place), after=after
        )
        assert tries

    run(backend, main)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_query_that_is_cancelled(shared: TestBroker, backend: str) -> None:
    async def main(canceller: Canceller) -> None:
        async with shared.client() as client:
            place = Place(client)
            assert await canceller.attempt(lambda: client.query("select 1 as one"), 3)
            assert (await client.query("select 1 as one", timeout=240)).rows == [[1]]
            await check_clean(place)

    run(backend, main)


@pytest.mark.promise("when-a-call-is-cancelled")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_opening_an_embedded_broker(tmp_path: Path, backend: str) -> None:
    """Whenever it is cancelled, the directory is free again, and what was confirmed is there."""
    directory = tmp_path / "data"
    before = [one for one in threading.enumerate() if one.name == "tickwheel-broker"]
    confirmed = 0

    async def work() -> None:
        nonlocal confirmed
        async with tickwheel.embedded(directory) as one, one.client() as client:
            await client.send("tea", b"x", delay=HOUR)
            confirmed += 1

    async def after() -> None:
        with anyio.fail_after(PATIENCE_S):
            while owner_of(directory) is not None:
                await anyio.sleep(0.01)

    async def main(canceller: Canceller) -> None:
        for n in (1, 2, 3, 4, 5, 7, 10, 15, 25):
            await canceller.attempt(work, n)
            await after()

    run(backend, main)
    with tickwheel.embedded(directory) as one, one.sync_client() as client:
        client.create_topic("tea")
        assert len(client.browse("tea")) >= confirmed
    assert [one for one in threading.enumerate() if one.name == "tickwheel-broker"] == before
