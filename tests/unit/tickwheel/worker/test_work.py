"""Handlers on a real broker whose clock the test moves: on trio, on asyncio, and in threads."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

import tickwheel.testing
from tests.unit.tickwheel.both import on_both
from tickwheel import Client, GiveUp, Handlers, Message, Retry, RetryPolicy
from tickwheel.client.consumer.message import Batch
from tickwheel.errors import BadArgument, TickwheelError
from tickwheel.testing import TestBroker
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.outcomes import Kind
from tickwheel.worker.worker import Worker

SECOND = timedelta(seconds=1)


class Working:
    """A worker beside the test, which stops it at the end of the block."""

    def __init__(self, client: Client, function: Callable[[Any], Any], **options: Any) -> None:
        drain = options.pop("drain", 30 * SECOND)
        self.worker = Worker(
            client, Batch, [Handler("mails", function, Options(group="g", **options))], drain=drain
        )
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Worker:
        await self._group.__aenter__()
        await self._group.start(self.worker.run)
        return self.worker

    async def __aexit__(self, *error: Any) -> None:
        if not self.worker.is_stopping:
            self.worker.stop()
        await self._group.__aexit__(*error)

    def came(self, kind: Kind, count: int = 1) -> Callable[[], bool]:
        return lambda: self.worker.tallies[0].outcomes[kind] >= count


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0.005)


async def moved_until(broker: TestBroker, condition: Callable[[], bool]) -> None:
    """The clock runs on, a second at a time."""
    while not condition():
        broker.clock.advance(SECOND)
        await anyio.sleep(0.01)


async def state(client: Client) -> Any:
    (topic,) = [one for one in await client.topics() if one.name == "mails"]
    return topic.groups[0]


@on_both
async def test_a_handler_that_returns_acks_and_so_many_run_at_once() -> None:
    running, most, seen = 0, 0, []

    async def handle(message: Message) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await until(lambda: most == 5)
        await anyio.sleep(0.001)
        running -= 1
        seen.append(message.body)

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send_many("mails", [b"%d" % number for number in range(40)])
        working = Working(client, handle, concurrency=5)
        async with working:
            await until(working.came(Kind.DONE, 40))
        assert sorted(map(int, seen)) == list(range(40))
        assert most == 5
        assert (await state(client)).acked == 40
        assert working.worker.tallies[0].running == 0


@on_both
async def test_failures_are_retried_with_the_delays_of_the_policy_and_then_given_up() -> None:
    attempts: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        attempts.append((message.attempt, message.epoch))
        raise ValueError("no such address")

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        began_ms = broker.clock.now_ms()
        await client.send("mails", b"x")
        policy = RetryPolicy(attempts=3, delays=[10 * SECOND, 60 * SECOND])
        working = Working(client, handle, retry=policy)
        async with working:
            await until(working.came(Kind.FAILED))
            broker.clock.advance(9 * SECOND)
            await anyio.sleep(0.05)
            assert len(attempts) == 1
            await moved_until(broker, working.came(Kind.GIVEN_UP))
        assert attempts == [(1, 1), (2, 2), (3, 3)]
        assert broker.clock.now_ms() - began_ms >= 70_000
        dead = await client.browse("mails.dead")
        assert [one.body for one in dead] == [b"x"]
        assert "ValueError: no such address" in str(dead[0].headers)


@on_both
async def test_retry_and_give_up_are_raised_or_returned() -> None:
    async def handle(message: Message) -> Retry | None:
        if message.body == b"uncounted" and message.epoch < 4:
            raise Retry(SECOND, counted=False)
        if message.body == b"returned" and message.attempt == 1:
            return Retry(2 * SECOND, "later")
        if message.body == b"hopeless":
            raise GiveUp("unsubscribed")
        seen.append((message.body, message.attempt))
        return None

    seen: list[tuple[bytes, int]] = []
    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send_many("mails", [b"uncounted", b"returned", b"hopeless"])
        working = Working(client, handle, retry=2)
        async with working:
            await moved_until(broker, working.came(Kind.DONE, 2))
        assert sorted(seen) == [(b"returned", 2), (b"uncounted", 1)]
        assert [one.body for one in await client.browse("mails.dead")] == [b"hopeless"]


@on_both
async def test_exceptions_that_another_attempt_would_not_change() -> None:
    async def handle(_: Message) -> None:
        raise KeyError("customer")

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send("mails", b"x")
        working = Working(client, handle, retry=RetryPolicy(give_up_on=(LookupError,)))
        async with working:
            await until(working.came(Kind.GIVEN_UP))
        assert len(await client.browse("mails.dead")) == 1


@on_both
async def test_a_handler_that_takes_too_long_is_cancelled_and_its_attempt_has_failed() -> None:
    cancelled = 0

    async def handle(message: Message) -> None:
        nonlocal cancelled
        if message.attempt == 2:
            raise TimeoutError("of its own")  # is a failure like any other
        if message.attempt == 3:
            return
        try:
            await anyio.sleep_forever()
        finally:
            cancelled += 1

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send("mails", b"x")
        working = Working(client, handle, timeout=timedelta(milliseconds=20))
        async with working:
            await moved_until(broker, working.came(Kind.DONE))
        outcomes = working.worker.tallies[0].outcomes
        assert outcomes == {Kind.TIMED_OUT: 1, Kind.FAILED: 1, Kind.DONE: 1}
        assert cancelled == 1


@pytest.mark.ci
@on_both
async def test_leases_are_renewed_while_a_handler_runs() -> None:
    go = anyio.Event()
    deliveries = []

    async def handle(message: Message) -> None:
        deliveries.append(message.epoch)
        await go.wait()

    async with tickwheel.testing.broker(ack_wait="2s") as broker, broker.client() as client:
        await client.send("mails", b"x")
        working = Working(client, handle)
        async with working:
            await until(lambda: deliveries != [])
            for _ in range(5):
                await anyio.sleep(1.1)  # leases are renewed by the clock of the client
                broker.clock.advance(SECOND)
            go.set()
            await until(working.came(Kind.DONE))
        assert deliveries == [1]
        assert (await state(client)).acked == 1


@on_both
async def test_middlewares_are_called_around_the_handler_the_first_one_outermost() -> None:
    said: list[str] = []

    def named(name: str) -> Callable[[Message, Callable[[Message], Awaitable[Any]]], Awaitable[Any]]:
        async def middleware(message: Message, call_next: Callable[[Message], Awaitable[Any]]) -> Any:
            said.append(f"{name} {message.body.decode()}")
            try:
                return await call_next(message)
            except ValueError:
                said.append(f"{name} saw it")
                raise

        return middleware

    async def handle(message: Message) -> None:
        raise ValueError(message.body)

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send("mails", b"x")
        working = Working(client, handle, middlewares=[named("outer"), named("inner")], retry=1)
        async with working:
            await until(working.came(Kind.GIVEN_UP))
    assert said == ["outer x", "inner x", "inner saw it", "outer saw it"]


@on_both
async def test_stopping_finishes_what_was_begun_and_gives_the_rest_back() -> None:
    go, begun, finished = anyio.Event(), [], []

    async def handle(message: Message) -> None:
        begun.append(message.id)
        await go.wait()
        finished.append(message.id)

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send_many("mails", [b"%d" % number for number in range(20)])
        working = Working(client, handle, concurrency=2, prefetch=10)
        async with working as worker:
            await until(lambda: len(begun) == 2)
            worker.stop()
            await anyio.sleep(0.05)
            assert not finished
            go.set()
        assert len(begun) == 2
        assert sorted(finished) == sorted(begun)
        group = await state(client)
        assert (group.acked, group.leased) == (2, 0)
        again: list[int] = []

        async def count(message: Message) -> None:
            again.append(message.attempt)

        working = Working(client, count)
        async with working:
            await until(working.came(Kind.DONE, 18))
        assert again == [1] * 18, "they were not looked at"


@on_both
async def test_what_is_not_finished_in_time_comes_again_and_was_no_attempt() -> None:
    attempts: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        attempts.append((message.epoch, message.attempt))
        if message.epoch == 1:
            await anyio.sleep_forever()

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send("mails", b"x")
        working = Working(client, handle, drain=timedelta(milliseconds=10))
        async with working:
            await until(lambda: attempts != [])
        assert working.worker.tallies[0].outcomes == {Kind.INTERRUPTED: 1}
        working = Working(client, handle)
        async with working:
            await until(working.came(Kind.DONE))
        assert attempts == [(1, 1), (2, 1)]


@on_both
async def test_stopping_twice_waits_for_nothing_and_gives_back_all_the_same() -> None:
    begun = anyio.Event()

    async def handle(_: Message) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send("mails", b"x")
        async with Working(client, handle) as worker:
            await begun.wait()
            worker.stop()
            worker.stop()
        while (await state(client)).leased:  # it may come once more to who is leaving, and goes back unseen
            await anyio.sleep(0.005)
        assert (await state(client)).backlog == 1
        fetched = await client.fetch("mails", "g")
        assert fetched.attempts == (1,)


@on_both
async def test_a_handler_without_async_runs_in_threads() -> None:
    names: set[int] = set()
    gate = threading.Barrier(3)

    def handle(_: Message) -> None:
        names.add(threading.get_ident())
        gate.wait(20)

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send_many("mails", [b""] * 3)
        working = Working(client, handle, concurrency=3)
        async with working:
            await until(working.came(Kind.DONE, 3))
    assert len(names) == 3
    assert threading.get_ident() not in names


@on_both
async def test_an_error_of_one_subscription_ends_the_worker_after_the_others_are_finished() -> None:
    finished = []

    async def handle(message: Message) -> None:
        await anyio.sleep(0.01)
        finished.append(message.id)

    async with tickwheel.testing.broker(auto_create_topics=False) as broker, broker.client() as client:
        await client.create_topic("mails")
        await client.send("mails", b"x")
        handlers = Handlers()
        handlers.on("mails")(handle)
        handlers.on("unknown")(handle)
        with pytest.raises(TickwheelError) as failed:
            await Worker(client, Batch, handlers).run()
        assert failed.value.code == "unknown_topic"


def test_signals_end_the_one_line_in_order() -> None:
    with tickwheel.testing.broker() as broker:
        done: list[bytes] = []

        async def handle(message: Message) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(0.05)
            done.append(message.body)

        async def main() -> None:
            async with broker.client() as client:
                await client.send("mails", b"x")
                await client.work("mails", handle)
                assert done.pop() == b"x"
                assert (await state(client)).backlog == 0

        for backend in ("trio", "asyncio"):
            anyio.run(main, backend=backend)


def test_the_blocking_twin() -> None:
    seen: list[tuple[bytes, int]] = []
    before = signal.getsignal(signal.SIGTERM)

    def handle(message: tickwheel.sync.Message) -> Retry | None:
        seen.append((message.body, message.attempt))
        if message.attempt == 1:
            return Retry(timedelta(0))
        message.extend(SECOND)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)
        return None

    with tickwheel.testing.broker() as broker, broker.sync_client() as client:
        client.send("mails", b"x")
        client.work("mails", handle, concurrency=2)
        assert seen == [(b"x", 1), (b"x", 2)]
        (topic,) = client.topics()
        assert topic.groups[0].acked == 1
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_blocking_twin_hears_a_signal_that_another_thread_takes() -> None:
    def handle(_: tickwheel.sync.Message) -> None:
        time.sleep(0.2)  # the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with tickwheel.testing.broker() as broker, broker.sync_client() as client:
        client.send("mails", b"x")
        client.work("mails", handle)
        (topic,) = client.topics()
        assert topic.groups[0].acked == 1


@pytest.mark.parametrize("is_waiting", [True, False])
def test_the_blocking_twin_ends_with_its_client(is_waiting: bool) -> None:
    """Whether one of its threads waits for a message then, or its only one has a message in hand, and asks for the next
    one later."""
    raised: list[BaseException] = []
    with tickwheel.testing.broker() as broker, broker.sync_client() as client:
        begun, closed = threading.Event(), threading.Event()

        def handle(_: tickwheel.sync.Message) -> None:
            begun.set()
            assert is_waiting or closed.wait(60)

        def work() -> None:
            try:
                client.work("mails", handle, concurrency=2 if is_waiting else 1, signals=False)
            except BaseException as error:
                raised.append(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        client.send("mails", b"x")
        assert begun.wait(60)
        client.close()
        closed.set()
        worker.join(60)
        assert not worker.is_alive()
    assert not raised


class Nameless(Exception):
    """Its text cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd(BaseException):
    """No Exception."""


def _generator() -> Any:
    yield 1


async def _asynchronous_generator() -> Any:
    yield 1


async def _never_run() -> None: ...


RAISED = [
    (Nameless(), "Nameless"),
    (SystemExit(3), "SystemExit: 3"),
    (Odd("x"), "Odd: x"),
    (BaseExceptionGroup("several", [Odd("x")]), "BaseExceptionGroup: several"),
    (ValueError("no file \udcff"), "ValueError: no file \\udcff"),
    (asyncio.CancelledError("other"), "CancelledError: other"),
]
RETURNED = [
    (_generator, "generator"),
    (_asynchronous_generator, "async_generator"),
    (_never_run, "coroutine"),
    (lambda: Retry, None),
    (lambda: GiveUp, None),
]


def fails(error: BaseException, *, is_async: bool) -> Callable[[Any], Any]:
    def call(_: Any) -> Any:
        raise error

    async def call_later(_: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        raise error

    return call_later if is_async else call


@on_both
async def test_whatever_is_raised_is_one_attempt_of_one_message() -> None:
    await _is_one_attempt(is_async=True)


@on_both
async def test_and_so_in_a_thread() -> None:
    await _is_one_attempt(is_async=False)


async def _is_one_attempt(*, is_async: bool) -> None:
    """And other messages are handled afterwards."""
    with _no_log():
        async with tickwheel.testing.broker() as broker, broker.client() as client:
            for error, reason in RAISED:
                handled = fails(error, is_async=is_async)
                first = True

                def handle(message: Any, handled: Callable[[Any], Any] = handled) -> Any:
                    nonlocal first
                    was_first, first = first, False
                    return handled(message) if was_first else _done(is_async=is_async)

                async def handle_later(message: Any, handle: Callable[[Any], Any] = handle) -> Any:
                    return await handle(message)

                await client.send_many("mails", [b"first", b"second"])
                working = Working(client, handle_later if is_async else handle, retry=1, concurrency=1)
                async with working:
                    await until(working.came(Kind.GIVEN_UP))
                    await until(working.came(Kind.DONE))
                dead = (await client.browse("mails.dead"))[-1]
                assert dead.headers["tickwheel-dead"]["error"].startswith(reason)
            assert (await state(client)).backlog == 0


@contextmanager
def _no_log() -> Iterator[None]:
    """What pytest has heard of it goes to another process as UTF-8, and half a surrogate has none."""
    logger = logging.getLogger("tickwheel.worker")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def _done(*, is_async: bool) -> Any:
    return _never_run() if is_async else None


@on_both
async def test_a_cancellation_of_something_else_is_one_attempt_and_the_workers_own_is_none() -> None:
    async def handle(message: Message) -> None:
        if message.body == b"other" and sniffio.current_async_library() == "asyncio":
            task = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task
        elif message.body == b"self" and sniffio.current_async_library() == "asyncio":
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            await anyio.sleep(60)
        elif message.body == b"long":
            await anyio.sleep(60)
        else:
            raise ValueError

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send_many("mails", [b"other", b"self"])
        working = Working(client, handle, retry=1, drain=timedelta(0))
        async with working:
            await until(working.came(Kind.GIVEN_UP, 2))
            await client.send("mails", b"long")
            await until(lambda: working.worker.tallies[0].running == 1)
        assert working.worker.tallies[0].outcomes[Kind.INTERRUPTED] == 1


@on_both
async def test_what_would_still_have_to_be_run_was_not_handled() -> None:
    async with tickwheel.testing.broker() as broker, broker.client() as client:
        for returned, kind in RETURNED:
            await client.send("mails", b"x")
            working = Working(client, lambda _, returned=returned: returned(), retry=1)
            async with working:
                await until(working.came(Kind.GIVEN_UP))
            dead = (await client.browse("mails.dead"))[-1]
            assert (
                kind is None
                or f"returned a {kind}, and has not run it" in dead.headers["tickwheel-dead"]["error"]
            )
    for function in (lambda _: (yield), functools.partial(_asynchronous_generator)):
        with pytest.raises(BadArgument, match="a generator"):
            Handler("mails", function, Options())


def test_the_blocking_twin_goes_on_whatever_is_raised() -> None:
    with tickwheel.testing.broker() as broker, broker.sync_client() as client:
        errors = [error for error, _ in RAISED]
        seen: list[bytes] = []

        def handle(message: tickwheel.sync.Message) -> None:
            seen.append(message.body)
            if errors:
                raise errors.pop()
            os.kill(os.getpid(), signal.SIGTERM)

        client.send_many("mails", [b"%d" % number for number in range(len(errors) + 1)])
        with _no_log():
            client.work("mails", handle, concurrency=1, retry=1)
        assert len(seen) == len(RAISED) + 1
        assert len(client.browse("mails.dead")) == len(RAISED)


async def _coroutine(_: Message) -> None: ...


def _function(_: Message) -> None: ...


async def _around(message: Message, call_next: Any) -> Any:
    return await call_next(message)


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        ("no function", {}, "cannot be called"),
        (_coroutine, {"concurrency": 0}, "concurrency"),
        (_coroutine, {"retry": 0}, "retry"),
        (_coroutine, {"retry": RetryPolicy, "": ""}, "retry"),
        (_function, {"timeout": SECOND}, "cannot be interrupted"),
        (_function, {"middlewares": [_around]}, "without async"),
        (_coroutine, {"middlewares": [_function]}, "coroutine function"),
        (_coroutine, {"prefetch": -1}, "prefetch"),
        (_coroutine, {"start": "yesterday"}, "start"),
        (_coroutine, {"max_hold": -1}, "max_hold"),
    ],
)
def test_what_cannot_work_is_refused_before_it_begins(
    function: Any, options: dict[str, Any], says: str
) -> None:
    options.pop("", None)
    with pytest.raises(BadArgument, match=says):
        Handler("mails", function, Options(**options))


def test_what_the_blocking_client_refuses() -> None:
    with (
        tickwheel.testing.broker() as broker,
        broker.sync_client() as client,
        pytest.raises(BadArgument, match="no event loop"),
    ):
        client.work("mails", _coroutine)


def test_two_handlers_of_a_topic_want_two_groups() -> None:
    handlers = Handlers(middlewares=[_around])
    assert handlers.on("mails")(_coroutine) is _coroutine
    handlers.on("mails", group="copies", concurrency=3)(_coroutine)
    with pytest.raises(BadArgument, match="two handlers"):
        handlers.on("mails")(_coroutine)
    assert [one.concurrency for one in handlers] == [10, 3]
    assert [one.concurrency for one in handlers.by_default(50)] == [50, 3]


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"delays": "1s"}, {"delays": [1.5]}, {"give_up_on": [ValueError]}]
)
def test_a_policy_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(TickwheelError):
        RetryPolicy(**wrong)


@on_both
async def test_the_log_says_which_message_failed_and_why() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("tickwheel.worker").addHandler(handler)

    async def handle(_: Message) -> None:
        raise ValueError("on purpose")

    try:
        async with tickwheel.testing.broker() as broker, broker.client() as client:
            sent = await client.send("mails", b"x")
            working = Working(client, handle, retry=1)
            async with working:
                await until(working.came(Kind.GIVEN_UP))
    finally:
        logging.getLogger("tickwheel.worker").removeHandler(handler)
    (failed,) = [one for one in records if one.exc_info]
    assert f"message {sent.id} of 'mails'" in failed.getMessage()


@on_both
async def test_cancelled_it_gives_back_what_was_not_finished() -> None:
    begun = anyio.Event()

    async def handle(_: Message) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send_many("mails", [b"x", b"y"])
        async with anyio.create_task_group() as group:

            async def work() -> None:
                await client.work("mails", handle, group="g", concurrency=1, signals=False)

            group.start_soon(work)
            await begun.wait()
            group.cancel_scope.cancel()
        while (await state(client)).leased:
            await anyio.sleep(0.005)
        fetched = await client.fetch("mails", "g", count=2)
        assert fetched.attempts == (1, 1), "what was interrupted was no attempt"
