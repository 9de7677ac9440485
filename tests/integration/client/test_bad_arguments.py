"""Arguments that are not what was asked for, in every public call: a typed error with advice, and nothing is sent.

The blocking client says the same as the asynchronous one, word for word.
"""

from __future__ import annotations

import inspect
import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.run.profile import examples
from tickwheel import Client, sync, testing
from tickwheel.errors import BadArgument, BadTime, NaiveDatetime, TickwheelError, TransactionRefused

NOW = datetime(2031, 5, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
SECOND = timedelta(seconds=1)
HALF = "half \ud800 of a pair"


class Odd:
    """Nothing that anybody asked for."""

    def __repr__(self) -> str:
        raise RuntimeError("no picture of me")


ANYTHING: list[Any] = [
    *(1.5, float("nan"), float("inf"), Decimal("1.5"), 1j, True, -1, 1 << 63, 1 << 64, -(1 << 63) - 1, 10**5_000),
    *("", "soon", HALF, b"", b"soon", date(2031, 5, 1), datetime(2031, 5, 1), NOW, SECOND, -SECOND),
    *(timedelta.max, timedelta.min, datetime.max, [], [Odd()], [HALF], {}, {"a": 1}, {1, 2}, Odd(), Odd, len),
    *(np.datetime64("2031-05-01"), np.datetime64("2031-05-01T00:00:00.000000001"), np.datetime64("NaT", "s")),
    *(np.timedelta64(5, "s"), np.timedelta64("NaT", "s"), np.float64(1), np.bool_(True), np.zeros(2), np.zeros((2, 2))),
    *(np.array(["2031"], "datetime64[D]"), np.array([b"x"]), array("d", [1.5]), memoryview(b"ab"), iter([1.5])),
]  # fmt: skip
MOMENTS: list[Any] = [
    *(1.5, float("nan"), Decimal(1), date(2031, 5, 1), datetime(2031, 5, 1), timedelta.max, True, -1, 1 << 63),
    10**5_000,
    *("2031-05-01", b"2031", Odd(), {}, np.datetime64("2031-05-01"), np.datetime64("NaT", "s"), np.timedelta64(5, "s")),
    *(np.float64(1), np.bool_(True), 253_402_300_800_000, datetime(1969, 12, 31, tzinfo=UTC)),
]  # fmt: skip
DURATIONS: list[Any] = [
    *(5, 1.5, float("nan"), Decimal(1), date(2031, 5, 1), NOW, timedelta.max, timedelta.min, -SECOND, True, -1),
    1 << 63,
    *("5s", b"5s", Odd(), {}, np.datetime64("2031-05-01"), np.datetime64("NaT", "s"), np.timedelta64(5, "s")),
    *(np.timedelta64("NaT", "s"), np.int64(5), np.float64(1)),
]  # fmt: skip
MILLISECONDS: list[Any] = [
    1.5,
    float("nan"),
    Decimal(1),
    SECOND,
    NOW,
    True,
    -1,
    1 << 63,
    "5",
    b"5",
    Odd(),
    {},
]
IDS: list[Any] = [
    True,
    1.5,
    "1",
    b"1",
    -1,
    1 << 63,
    1 << 64,
    10**5_000,
    Odd(),
    [1],
    np.float64(1),
    np.bool_(True),
    NOW,
]
KEYS: list[Any] = [HALF, b"k", 5, "", "k" * 256, "\u20ac" * 86, ["k"], Odd(), True, np.str_(HALF)]
NAMES: list[Any] = [HALF, b"t", 5, "", "a b", "t" * 129, None, ["t"], Odd(), True]

Operation = Callable[[Any, Any], Any]


def of_one(option: str) -> Operation:
    return lambda c, v: c.send("t", b"x", **{option: v})


def of_many(option: str) -> Operation:
    return lambda c, v: c.send_many("t", [b"x"] * 2, **{option: v})


RUNS: list[Any] = [5, [5], [(1,)], [(1, 0)], [("1", 1)], [(1 << 63, 1)]]
OPERATIONS: dict[str, tuple[list[Any], Operation]] = {
    "send at": (MOMENTS, of_one("deliver_at")),
    "send in": (DURATIONS, of_one("delay")),
    "send in ms": (MILLISECONDS, of_one("delay_ms")),
    "send level": ([0, 19, 1.5, True, "1"], of_one("delay_level")),
    "send priority": ([-1, 256, 1.5, True, "1", Odd()], of_one("priority")),
    "send key": (KEYS, of_one("key")),
    "send order key": (KEYS, of_one("order_key")),
    "send topic": (NAMES, lambda c, v: c.send(v, b"x")),
    "send body": (["x", 5, None, [b"x"], Odd()], lambda c, v: c.send("t", v)),
    "send headers": (
        [5, "a", [1], {1: 2}, {"a": Odd()}, {"a": HALF}, {HALF: 1}],
        of_one("headers"),
    ),
    "many at": (MOMENTS, of_many("deliver_at")),
    "many in": (DURATIONS, of_many("delay")),
    "many in ms": (MILLISECONDS, of_many("delay_ms")),
    "many keys": (
        [*KEYS, [None, HALF], ["a", 5], ["a", ""], {"a", "b"}],
        of_many("keys"),
    ),
    "many order keys": (
        [HALF, 5, ["a", 5], [HALF, None], Odd()],
        of_many("order_keys"),
    ),
    "many priorities": (
        [1.5, [1, 256], [1, 1.5], ["a", 1], True, Odd()],
        of_many("priority"),
    ),
    "many headers": (
        [5, [1, 2], [{}, {1: 2}], [{}, {"a": Odd()}], Odd()],
        of_many("headers"),
    ),
    "many bodies": ([b"x", "x", 5, None, ["x"], [b"x", None], {b"x"}], lambda c, v: c.send_many("t", v)),
    "prepare at": (MOMENTS, lambda c, v: c.prepare("t", b"x", deliver_at=v)),
    "prepare in": (DURATIONS, lambda c, v: c.prepare("t", b"x", delay=v)),
    "prepare check after": (DURATIONS, lambda c, v: c.prepare("t", b"x", check_after=v)),
    "prepare key": (KEYS, lambda c, v: c.prepare("t", b"x", key=v)),
    "commit prepared": ([5, None, *([one] for one in IDS)], lambda c, v: c.commit_prepared(v)),
    "rollback prepared": ([5, None, *([one] for one in IDS)], lambda c, v: c.rollback_prepared(v)),
    "cancel id": (IDS, lambda c, v: c.cancel(id=v)),
    "cancel ids": ([5, "12", *([17, one] for one in IDS)], lambda c, v: c.cancel(ids=v)),
    "cancel key": (KEYS, lambda c, v: c.cancel("t", key=v)),
    "cancel keys": (["ab", *(["a", one] for one in KEYS)], lambda c, v: c.cancel("t", keys=v)),
    "cancel topic": (NAMES, lambda c, v: c.cancel(v, key="k")),
    "cancel flag": ([5, "yes", Odd()], lambda c, v: c.cancel(id=1, stop=v)),
    "reschedule at": (MOMENTS, lambda c, v: c.reschedule(id=1, deliver_at=v)),
    "reschedule in": (DURATIONS, lambda c, v: c.reschedule(id=1, delay=v)),
    "redeliver at": (MOMENTS, lambda c, v: c.redeliver(id=1, deliver_at=v)),
    "redeliver ids": (IDS, lambda c, v: c.redeliver(ids=[v])),
    "cancel where due": (MOMENTS, lambda c, v: c.cancel_where("t", due_until=v)),
    "cancel where state": ([5, "gone", ["gone"], [5], Odd()], lambda c, v: c.cancel_where("t", states=v)),
    "cancel where priority": ([1.5, -1, 256, "1"], lambda c, v: c.cancel_where("t", priority_min=v)),
    "cancel where limit": ([0, 1.5, -1, "1"], lambda c, v: c.cancel_where("t", limit=v)),
    "reschedule where": (MOMENTS, lambda c, v: c.reschedule_where("t", created_from=v, delay=SECOND)),
    "redeliver where": (DURATIONS, lambda c, v: c.redeliver_where("t", delay=v)),
    "schedule every": (DURATIONS, lambda c, v: c.create_schedule("s", "t", every=v)),
    "schedule start": (MOMENTS, lambda c, v: c.create_schedule("s", "t", every=SECOND, start=v)),
    "schedule body": ([5, "x", Odd()], lambda c, v: c.create_schedule("s", "t", every=SECOND, body=v)),
    "schedule headers": ([5, {"a": HALF}], lambda c, v: c.create_schedule("s", "t", every=SECOND, headers=v)),
    "schedule cron": ([5, HALF, b"* * * * *"], lambda c, v: c.create_schedule("s", "t", cron=v)),
    "schedule window": (DURATIONS, lambda c, v: c.set_schedule("s", window=v)),
    "endpoint topic": (NAMES, lambda c, v: c.set_endpoint("e", topic=v, url="https://a.example")),
    "endpoint url": ([5, HALF, "a", "ftp://a"], lambda c, v: c.set_endpoint("e", topic="t", url=v)),
    "endpoint secrets": ([5, "x", ["x"], [5]], lambda c, v: c.set_endpoint("e", topic="t", secrets=v)),
    "endpoint headers": ([5, {"a": 5}, {"a": HALF}], lambda c, v: c.set_endpoint("e", topic="t", headers=v)),
    "endpoint timeout": (DURATIONS, lambda c, v: c.set_endpoint("e", topic="t", timeout=v)),
    "endpoint rate": (
        [0, -1, "x", True, 10**400, math.nan],
        lambda c, v: c.set_endpoint("e", topic="t", rate=v),
    ),
    "endpoint delays": ([5, [5], ["x"]], lambda c, v: c.set_endpoint("e", topic="t", retry_delays=v)),
    "endpoint statuses": ([5, [200], ["x"]], lambda c, v: c.set_endpoint("e", topic="t", give_up_on=v)),
    "endpoint name": (NAMES, lambda c, v: c.delete_endpoint(v)),
    "tested endpoint": (NAMES, lambda c, v: c.test_endpoint(v)),
    "attempts before": (
        [5, "latest", (1,), (1, -1), (1, "2")],
        lambda c, v: c.endpoint_attempts("e", before=v),
    ),
    "attempts limit": ([0, 1_001, "5"], lambda c, v: c.endpoint_attempts("e", limit=v)),
    "schedule name": (NAMES, lambda c, v: c.trigger_schedule(v)),
    "preview cron": ([5, HALF, b"* * * * *"], lambda c, v: c.preview_schedule(cron=v)),
    "preview after": (MOMENTS, lambda c, v: c.preview_schedule(every=timedelta(hours=1), after=v)),
    "schedule after": (MOMENTS, lambda c, v: c.schedule("s", after=v)),
    "schedule token": ([5, "", "t" * 65, HALF], lambda c, v: c.trigger_schedule("s", token=v)),
    "transaction id": ([5, "", "t" * 256, HALF], lambda c, v: c.transaction(id=v)),
    "topic setting": (DURATIONS, lambda c, v: c.create_topic("t", ack_wait=v)),
    "topic rate": ([float("nan"), "5", Odd(), True, 10**5_000], lambda c, v: c.create_topic("t", rate=v)),
    "topic comment": ([5, b"vitess_message", HALF], lambda c, v: c.create_topic("t", vitess=v)),
    "subscribe start": ([*MOMENTS, "now"], lambda c, v: c.subscribe("t", start=v)),
    "subscribe credit": ([0, -1, 1.5, True, "5", Odd(), 10**9], lambda c, v: c.subscribe("t", credit=v)),
    "subscribe shard": ([5, HALF, Odd()], lambda c, v: c.subscribe("t", shard=v)),
    "subscribe group": (NAMES, lambda c, v: c.subscribe("t", v)),
    "check prepared": (NAMES, lambda c, v: c.check_prepared(v)),
    "query timeout": (
        [0, -1, float("nan"), "5", 10**9, Odd(), 10**5_000],
        lambda c, v: c.query("select 1", timeout=v),
    ),
    "query sql": ([5, None, "", b"select 1", HALF], lambda c, v: c.query(v)),
    "query limit": ([0, 1.5, "5", 10**9], lambda c, v: c.query("select 1", limit=v)),
    "browse after": (IDS, lambda c, v: c.browse("t", after_id=v)),
    "replay dead": ([5, *([one] for one in IDS)], lambda c, v: c.replay_dead("t", ids=v)),
    "drop at": (MOMENTS, lambda c, v: c.drop("0" * 16, [(1, 1)], done_before=v)),
    "drop runs": (
        [5, [5], [(1,)], [(1, 0)], [("1", 1)], [(1 << 63, 1)]],
        lambda c, v: c.drop("0" * 16, v, done_before=NOW),
    ),
    "wheel horizons": ([5, [5], [], *([one] for one in DURATIONS)], lambda c, v: c.wheel(horizons=v)),
    "history id": (IDS, lambda c, v: c.history(id=v)),
    "history key": (KEYS, lambda c, v: c.history("t", key=v)),
    "history limit": ([0, 10_001, 1.5, "5"], lambda c, v: c.history(id=1, limit=v)),
    "history timeout": ([0, -1, float("nan"), "5", 10**9, Odd()], lambda c, v: c.history(id=1, timeout=v)),
    "events start": (
        ["soon", 5, (1,), (1, 2, 3), ("1", 2), (-1, 0), (0, 1.5), Odd()],
        lambda c, v: c.events(v),
    ),
    "events limit": ([0, 10_001, 1.5, "5"], lambda c, v: c.events(limit=v)),
    "history of what": ([None], lambda c, v: c.history("t")),
    "disconnect": (IDS, lambda c, v: c.disconnect(v)),
    "audit after": (IDS, lambda c, v: c.audit(after=v)),
    "browse moment": (MOMENTS, lambda c, v: c.browse("t", done_from=v)),
    "reserve ids": ([0, -1, 1.5, "5"], lambda c, v: c.reserve_ids(v)),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(start=datetime(2030, 1, 1, tzinfo=UTC)) as running:
        yield running


async def asked(client: Any, operation: Operation, value: Any) -> BaseException | None:
    """What a call raises."""
    try:
        answer = operation(client, value)
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:
        return error
    return None


def all_refusals(broker: testing.TestBroker, backend: str) -> dict[tuple[str, int], BaseException | None]:
    async def main() -> dict[tuple[str, int], BaseException | None]:
        async with broker.client(tracing=False) as client:
            return {
                (name, index): await asked(client, operation, value)
                for name, (values, operation) in OPERATIONS.items()
                for index, value in enumerate(values)
            }

    return anyio.run(main, backend=backend)


def test_each_bad_argument_is_refused_alike_and_sends_nothing(broker: testing.TestBroker) -> None:
    with broker.sync_client() as client:
        blocking = {
            (name, index): anyio.run(asked, client, operation, value)
            for name, (values, operation) in OPERATIONS.items()
            for index, value in enumerate(values)
        }
        found = {backend: all_refusals(broker, backend) for backend in ("trio", "asyncio")}
        for (name, index), error in blocking.items():
            what = f"{name}: {type(OPERATIONS[name][0][index]).__name__}, value {index}: {error!r}"
            assert isinstance(error, TickwheelError), what
            assert error.advice, what
            for refusals in found.values():
                same = refusals[name, index]
                assert type(same) is type(error), what
                assert str(same) == str(error), what
        assert client.stats().messages == 0


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_parts_of_a_transaction_and_receipts(broker: testing.TestBroker, backend: str) -> None:
    operations: dict[str, tuple[list[Any], Operation]] = {
        "send at": (MOMENTS, lambda c, v: c.send("u", b"x", deliver_at=v)),
        "send key": (KEYS, lambda c, v: c.send("u", b"x", key=v)),
        "many at": ([[NOW, one] for one in MOMENTS], lambda c, v: c.send_many("u", [b"x"] * 2, deliver_at=v)),
        "reschedule at": (MOMENTS, lambda c, v: c.reschedule(id=1, deliver_at=v)),
        "reschedule in": (DURATIONS, lambda c, v: c.reschedule(id=1, delay=v)),
        "reschedule priority": ([-1, 256, 1.5, True, "1"], lambda c, v: c.reschedule(id=1, priority=v)),
        "cancel id": (IDS, lambda c, v: c.cancel(id=v)),
        "cancel key": (KEYS, lambda c, v: c.cancel("u", key=v)),
        "cancel what": ([1], lambda c, v: c.cancel(idd=v)),
        "ack": ([1, None, Odd(), [1]], lambda c, v: c.ack(v)),
        "ack receipts": ([1, None, [1], [(1, -1)]], lambda c, v: c.ack_receipts(1, v)),
        "ack in": ([-1, None, "g"], lambda c, v: c.ack_receipts(v, [(1, 1)])),
    }
    receipts: dict[str, tuple[list[Any], Operation]] = {
        "nack in": (DURATIONS, lambda m, v: m.nack(v)),
        "nack in ms": (MILLISECONDS, lambda m, v: m.nack(delay_ms=v)),
        "nack error": ([5, HALF, b"x", Odd()], lambda m, v: m.nack(error=v)),
        "extend": (DURATIONS, lambda m, v: m.extend(v)),
    }
    waits: list[Any] = [-1, float("nan"), "5", Odd(), True, NOW]

    async def main() -> None:
        async with broker.client() as client:
            await client.send("u", b"one")
            async with client.transaction() as transaction:
                for name, (values, operation) in operations.items():
                    for value in values:
                        error = await asked(transaction, operation, value)
                        assert isinstance(error, TickwheelError), (name, type(value), error)
            assert transaction.result is None, "something of it was kept"
            async with client.subscribe("u") as subscription:
                for value in waits:
                    for wait in (subscription.receive, subscription.receive_batch):
                        error = await asked(wait, lambda function, one: function(one), value)
                        assert isinstance(error, BadArgument), (type(value), error)
                message = await subscription.receive()
                assert message is not None
                for name, (values, operation) in receipts.items():
                    for value in values:
                        error = await asked(message, operation, value)
                        assert isinstance(error, TickwheelError), (name, type(value), error)
                await message.ack(confirm=True)

    anyio.run(main, backend=backend)
    with broker.sync_client() as client:
        client.send("u", b"two")
        with client.subscribe("u") as subscription:
            for value in waits:
                with pytest.raises(BadArgument):
                    subscription.receive(value)
            message = subscription.receive()
            assert message is not None
            for name, (values, operation) in receipts.items():
                for value in values:
                    error = anyio.run(asked, message, operation, value)
                    assert isinstance(error, TickwheelError), (name, type(value), error)
            message.ack(confirm=True)


def test_of_many_what_is_no_time_refuses_the_call_and_what_is_out_of_range_its_own_message(
    broker: testing.TestBroker,
) -> None:
    with broker.sync_client() as client:
        before = client.stats().messages
        for bad in (
            1.5,
            float("nan"),
            Decimal(1),
            "x",
            None,
            True,
            datetime(2031, 5, 1),
            np.datetime64("NaT", "s"),
        ):
            with pytest.raises(BadTime):
                client.send_many("v", [b"x"] * 2, deliver_at=[NOW, bad])
        for bad_array in (
            np.array(["2031", "NaT"], "datetime64[ms]"),
            np.zeros(2),
            b"ab",
            array("d", [1, 2]),
        ):
            with pytest.raises(BadTime):
                client.send_many("v", [b"x"] * 2, deliver_at=bad_array)
        assert client.stats().messages == before

        for early in (-1, 1 << 62, 999, NOW_MS // 1_000, 1 << 70, 253_402_300_800_000):
            for column in ([NOW, early, NOW], iter([NOW, early, NOW])):
                results = client.send_many("v", [b"x"] * 3, deliver_at=column)
                assert list(results.errors) == [1]
                assert isinstance(results.errors[1], BadTime)
        unsigned = np.array([NOW_MS, 1 << 63, NOW_MS], np.uint64)
        assert list(client.send_many("v", [b"x"] * 3, deliver_at=unsigned).errors) == [1]
        assert list(client.send_many("v", [b"x"] * 3, delay=[SECOND, -SECOND, SECOND]).errors) == [1]
        assert list(client.send_many("v", [b"x"] * 2, delay=[SECOND, timedelta.max]).errors) == [1]
        assert list(client.send_many("v", [b"x", b"x" * (5 << 20)], deliver_at=[-1, NOW]).errors) == [0, 1]
        assert not client.send_many(
            "v", [b"x"] * 2, deliver_at=np.array([NOW_MS, NOW_MS]), priority=np.array([3, 4])
        ).errors
        assert not client.cancel(ids=np.array([], np.uint64))


VALID: dict[str, Any] = {
    "value": {"a": 1},
    "topic": "w", "body": b"x", "bodies": [b"x"], "name": "w", "sql": "select 1", "ids": [1], "id": 1, "key": "k",
    "keys": ["k"], "group": "g", "topics": ["w"], "count": 1, "job": "0" * 32, "log_id": "0" * 16, "runs": [(1, 1)],
    "done_before": NOW, "to": "latest", "group_id": 1, "receipts": [(1, 1)], "duration": timedelta(seconds=1),
    "revision": 0, "url": "https://a.example/x", "ignore_ordering_keys": True,
}  # fmt: skip
WAITS_OR_HARMS = {
    "transaction",
    "subscribe_as",
    "work",
    "fetch_as",
    "manners",
    "converse",
    "forget",
    "close",
    "query",
    "query_arrow",
    "disconnect",
}


def public_calls(of: type) -> Iterator[tuple[str, inspect.Signature]]:
    for name, function in inspect.getmembers(of, callable):
        if not name.startswith("_") and name not in WAITS_OR_HARMS and not isinstance(function, type):
            yield name, inspect.signature(inspect.unwrap(function))


def test_anything_at_any_parameter_of_any_public_call(broker: testing.TestBroker) -> None:
    async def main() -> None:
        async with broker.client(timeout=5.0) as client:
            for name, signature in public_calls(Client):
                parameters = [one for one in signature.parameters.values() if one.name != "self"]
                required = {
                    one.name: VALID[one.name]
                    for one in parameters
                    if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
                }
                if name in ("cancel", "reschedule", "redeliver"):
                    required["id"] = 1
                for parameter in parameters:
                    for value in ANYTHING:
                        given = {
                            **required,
                            ("odd" if parameter.kind is parameter.VAR_KEYWORD else parameter.name): value,
                        }
                        first = [given.pop(one.name) for one in parameters if one.kind is one.POSITIONAL_ONLY]
                        call = lambda c, _, first=first, given=given: getattr(c, name)(*first, **given)  # noqa: E731, B023
                        error = BaseException("it did not come back")
                        with anyio.move_on_after(20):
                            error = await asked(client, call, None)
                        what = f"{name}({parameter.name}: {type(value).__name__}): {type(error).__name__} {error}"
                        assert error is None or isinstance(error, TickwheelError), what
            assert client.is_connected

    anyio.run(main, backend="trio")


anything = st.one_of(
    st.sampled_from(ANYTHING),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.dates()
        | st.datetimes() | st.timedeltas() | st.complex_numbers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=4,
    ),
)  # fmt: skip


@given(value=anything)
@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_arbitrary_objects_as_times_ids_and_keys(broker: testing.TestBroker, value: Any) -> None:
    client = shared_client(broker)
    for call in (
        lambda: client.send("h", b"x", deliver_at=value),
        lambda: client.send("h", b"x", delay=value),
        lambda: client.send("h", b"x", key=value),
        lambda: client.send_many("h", [b"x"] * 2, deliver_at=value),
        lambda: client.send_many("h", [b"x"] * 2, delay=[SECOND, value]),
        lambda: client.send_many("h", [b"x"] * 2, keys=value, headers=value),
        lambda: client.prepare("h", b"x", deliver_at=value),
        lambda: client.cancel(id=value),
        lambda: client.cancel(ids=value),
        lambda: client.cancel("h", keys=[value]),
        lambda: client.reschedule(id=1, delay_ms=value),
        lambda: client.redeliver(id=1, deliver_at=value),
        lambda: client.commit_prepared([value]),
        lambda: client.cancel_where("h", due_from=value, states=value),
    ):
        with suppress(TickwheelError):
            call()


_clients: list[sync.Client] = []


def shared_client(broker: testing.TestBroker) -> sync.Client:
    if not _clients:
        _clients.append(broker.sync_client().__enter__())
    return _clients[0]


@pytest.fixture(scope="module", autouse=True)
def _closed(broker: testing.TestBroker) -> Iterator[None]:
    yield
    for client in _clients:
        client.close()


def test_a_client_of_nonsense(tmp_path: Path) -> None:
    for options in (
        {"timeout": "5"},
        {"timeout": float("nan")},
        {"timeout": -1},
        {"connect_timeout": Odd()},
        {"keepalive": True},
        {"max_pending_bytes": 0},
        {"max_pending_bytes": 1.5},
        {"name": HALF},
        {"name": 5},
        {"token": 5},
        {"token": HALF},
        {"token_file": 5},
        {"ca_file": 5},
        {"certificate": Odd()},
        {"url": 5},
        {"url": b"tickwheel://a"},
        {"url": Odd()},
    ):
        for make in (Client, sync.Client):
            with pytest.raises(TickwheelError):
                make(**options)  # type: ignore[arg-type]
    for start in (datetime(2031, 5, 1), 5, "now"):
        with pytest.raises(TickwheelError):
            testing.broker(start=start)  # type: ignore[arg-type]
    for directory in (5, None, Odd(), HALF + "\0"):
        with pytest.raises(TickwheelError):
            tickwheel.embedded(directory).start()  # type: ignore[arg-type]


def test_a_clock_of_nonsense(broker: testing.TestBroker) -> None:
    for by in (*DURATIONS, None):
        with pytest.raises(TickwheelError):
            broker.clock.advance(by)
    for moment in (*MOMENTS, None, 5):
        with pytest.raises(TickwheelError):
            broker.clock.set(moment)
    with pytest.raises(NaiveDatetime):
        broker.clock.set(datetime(2031, 5, 1))


def test_the_command_line_ends_with_the_code_of_usage(broker: testing.TestBroker, tmp_path: Path) -> None:
    shell = Shell(tmp_path, broker.url)
    for arguments in (
        ("cancel", str(1 << 63)),
        ("cancel", "-1"),
        ("reschedule", str(10**30), "--in", "1h"),
        ("send", "t", "x", "--at", "2031-05-01T09:00"),
        ("send", "t", "x", "--in", "1e400s"),
        ("send", "t", "x", "--priority", "256"),
        ("send", "a b", "x"),
        ("wheel", "--within", "soon"),
        ("query", "select 1", "--timeout", "0s"),
    ):
        failed = shell.run("--json", *arguments, code=2)
        assert b"Traceback" not in failed.stderr, arguments
        assert b'"message"' in failed.stderr, arguments


def test_what_cannot_be_committed_is_not_prepared_and_each_decision_has_its_own_answer(
    broker: testing.TestBroker,
) -> None:
    with broker.sync_client() as client:
        for late in (timedelta(days=365 * 7_980), timedelta(milliseconds=253_402_300_799_999)):
            with pytest.raises(BadTime):
                client.prepare("late", b"x", delay=late)
        gone, rolled, good = (client.prepare(name, b"x") for name in ("gone", "good", "good"))
        client.delete_topic("gone")
        rolled.rollback()
        answers = client.commit_prepared([gone.id, rolled.id, 1 << 40, good.id, good.id])
        assert [result for result, _ in answers] == [
            "refused",
            "already_rolled_back",
            "not_found",
            "committed",
            "already_committed",
        ]
        for prepared in (gone, rolled):
            with pytest.raises(TransactionRefused):
                prepared.commit()
        assert good.commit() == answers[3][1]
