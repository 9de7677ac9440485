"""The official client, which is strict where it matters, against a listener on loopback."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio
import trustme

from tests.unit.gateway.transport.peer import PATIENCE_S, Service
from tickwheel_bench.processes import wait_until
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.listener import Server, open_listeners
from tickwheel_gateway.transport.opening import tls_context

pytestmark = pytest.mark.usefixtures("stack")

_MIB = 1 << 20


class Running:
    """A server in a thread of its own, for clients that block."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.service = Service()
        self.server = Server(methods=self.service.methods, limits=limits, **options)
        self._port: Future[int] = Future()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Running:
        self._end = self._pool.submit(trio.run, self._main)
        self._end.add_done_callback(self._died)
        self.port = self._port.result(PATIENCE_S)
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # a test may have stopped it
            self.in_loop(self.server.stop)
        self._end.result(PATIENCE_S)
        self._pool.shutdown()

    def in_loop(self, call: Callable[[], None]) -> None:
        trio.from_thread.run_sync(call, trio_token=self._token)

    def _died(self, end: Future[None]) -> None:
        if not self._port.done():
            self._port.set_exception(end.exception() or RuntimeError("it did not begin"))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        listeners = await open_listeners("127.0.0.1", 0)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.serve, listeners)
            self._port.set_result(listeners[0].socket.getsockname()[1])


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(Limits(message_bytes=6 * _MIB)) as one:
        yield one


@pytest.fixture
def channel(running: Running) -> Iterator[grpc.Channel]:
    options = [("grpc.max_receive_message_length", 16 * _MIB)]
    with grpc.insecure_channel(f"127.0.0.1:{running.port}", options) as one:
        yield one


def status_of(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code().name, error.details()


def test_unary(running: Running, channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/t/Echo")
    metadata = (("x-mq-client-id", "me"), ("some-bin", b"\0\xff"))
    assert echo(b"hello", metadata=metadata, timeout=PATIENCE_S) == b"hello"
    assert echo(b"", timeout=PATIENCE_S) == b""
    assert running.service.seen[0].metadata["x-mq-client-id"] == "me"
    assert 0 < running.service.seen[0].deadline < float("inf")


def test_a_stream_of_answers(channel: grpc.Channel) -> None:
    assert list(channel.unary_stream("/t/Times")(b"\x20abc", timeout=PATIENCE_S)) == [b"\x20abc"] * 32


def test_streams_both_ways(channel: grpc.Channel) -> None:
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    answers = channel.stream_stream("/t/Chat")(iter(messages.get, None), timeout=PATIENCE_S)
    for number in range(20):
        messages.put(b"%d" % number)
        assert next(answers) == b"%d" % number
    messages.put(None)
    assert list(answers) == []
    assert answers.code() == grpc.StatusCode.OK


def test_deadline(running: Running, channel: grpc.Channel) -> None:
    assert status_of(lambda: channel.unary_unary("/t/Wait")(b"x", timeout=0.2))[0] == "DEADLINE_EXCEEDED"
    wait_until(lambda: running.service.cancelled)


def test_cancel(running: Running, channel: grpc.Channel) -> None:
    call = channel.unary_unary("/t/Wait").future(b"x", timeout=PATIENCE_S)
    wait_until(lambda: running.service.seen)
    call.cancel()
    wait_until(lambda: running.service.cancelled)
    answers = channel.stream_stream("/t/Chat")(iter([b"x"]), timeout=PATIENCE_S)
    assert next(answers) == b"x"
    answers.cancel()
    wait_until(lambda: running.server.tally.calls == 0)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
def test_gzip(channel: grpc.Channel, compression: grpc.Compression) -> None:
    echo = channel.unary_unary("/t/Echo")
    assert echo(b"a" * 100_000, compression=compression, timeout=PATIENCE_S) == b"a" * 100_000


def test_deflate_is_not_known(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/t/Echo")
    code, text = status_of(
        lambda: call(b"a" * 9_000, compression=grpc.Compression.Deflate, timeout=PATIENCE_S)
    )
    assert code == "UNIMPLEMENTED"
    assert "deflate" in text


def test_large_messages(channel: grpc.Channel) -> None:
    body = bytes(range(256)) * 4 * 4 * 1024
    echo = channel.unary_unary("/t/Echo")
    calls = [echo.future(body, timeout=PATIENCE_S) for _ in range(6)]
    assert all(call.result() == body for call in calls)


def test_a_message_that_is_too_large(channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/t/Echo")
    assert status_of(lambda: echo(bytes(7 * _MIB), timeout=PATIENCE_S))[0] == "RESOURCE_EXHAUSTED"
    assert echo(b"others go on", timeout=PATIENCE_S) == b"others go on"


def test_failures(channel: grpc.Channel) -> None:
    assert status_of(lambda: channel.unary_unary("/t/None")(b"x"))[0] == "UNIMPLEMENTED"
    assert status_of(lambda: channel.unary_unary("/t/Fail")(b"x")) == (
        "INVALID_ARGUMENT",
        "no: 100 % wrong, ä",
    )
    assert status_of(lambda: channel.unary_unary("/t/Break")(b"x")) == ("INTERNAL", "internal error")
    big = (("big", "x" * 20_000),)
    assert status_of(lambda: channel.unary_unary("/t/Echo")(b"x", metadata=big))[0] == "RESOURCE_EXHAUSTED"


def test_two_hundred_at_once(running: Running, channel: grpc.Channel) -> None:
    gate = channel.unary_unary("/t/Gate")
    calls = [gate.future(b"%d" % number, timeout=PATIENCE_S) for number in range(200)]
    wait_until(lambda: len(running.service.seen) == 200)
    running.in_loop(running.service.go.set)
    assert [call.result() for call in calls] == [b"%d" % number for number in range(200)]
    assert running.server.tally.accepted == 1


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    path = tmp_path / "both.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(path)
    context = tls_context(str(path))
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with (
        Running(tls=lambda: context) as running,
        grpc.secure_channel(f"127.0.0.1:{running.port}", credentials) as channel,
    ):
        echo = channel.unary_unary("/t/Echo")
        assert echo(bytes(2 * _MIB), timeout=PATIENCE_S) == bytes(2 * _MIB)
        assert running.service.seen[0].ends.is_tls


def test_stop_while_calls_run(running: Running, channel: grpc.Channel) -> None:
    gate = channel.unary_unary("/t/Gate")
    calls = [gate.future(b"x", timeout=PATIENCE_S) for _ in range(5)]
    wait_until(lambda: len(running.service.seen) == 5)
    running.in_loop(running.server.stop)
    running.in_loop(running.service.go.set)
    assert [call.result() for call in calls] == [b"x"] * 5
