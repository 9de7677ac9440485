"""One request over real sockets: only to checked addresses, no further than allowed, and never without an end."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpcore2
import pytest
import trio
from httpcore2 import AsyncNetworkStream

from tests.support.clients.certificates import Files
from tickwheel.protocol.receipts import Receipt
from tickwheel_push.http.addresses import Address, Allowed, networks_of
from tickwheel_push.http.answer import Answer, NoAnswer, Result
from tickwheel_push.http.connector import _Connection
from tickwheel_push.http.exchange import MOST_ANSWER_BYTES, Exchange, _Reading
from tickwheel_push.http.request import Due, Request, Style, request_of
from tickwheel_push.http.resolver import MOST_OF_A_NAME, SystemResolver

TIMEOUT_S = 30.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
DUE = Due(
    receipt=Receipt(1, 1, 1),
    topic="t",
    group="push.t",
    body=b"body",
    headers={},
    key=None,
    deliver_at_ms=0,
    created_ms=0,
    attempt=1,
)
LARGE = bytes(70_000)
LOOPBACK = networks_of(["127.0.0.0/8", "::1/128"])

Serve = Callable[[trio.SocketStream | trio.SSLStream[trio.SocketStream], bytes], Awaitable[None]]


class Names:
    """A resolver that answers what it is told to, one answer after the other."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = [[ip_address(text) for text in texts] for texts in answers]
        self.asked = 0

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        self.asked += 1
        return self._answers[min(self.asked, len(self._answers)) - 1]


class Server:
    """Reads requests of any connection, and answers as it is told to."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.seen: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def handle(self, context: ssl.SSLContext | None, plain: trio.SocketStream) -> None:
        self.connections += 1
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = plain
        if context is not None:
            stream = trio.SSLStream(plain, context, server_side=True, https_compatible=True)
        try:
            received = b""
            while True:
                while not received.endswith(b"body"):
                    chunk = await stream.receive_some()
                    if not chunk:
                        return
                    received += chunk
                self.seen.append(received)
                received = b""
                await self.serve(stream, self.seen[-1])
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            pass
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(serve)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_tcp, partial(server.handle, context), 0, host="127.0.0.1")
        )
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


async def answers_ok(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], seen: bytes) -> None:
    await stream.send_all(OK)


def allowed(port: int, *networks: str) -> Allowed:
    found = networks_of(networks) if networks else LOOPBACK
    return Allowed(networks=found, http=True, ports=frozenset({port}))


def to(url: str, rules: Allowed) -> Request:
    return request_of(DUE, Style(), rules.location(url), 0.0)


async def ask(url: str, rules: Allowed, names: Names, timeout_s: float = TIMEOUT_S) -> Result:
    async with Exchange(rules, names, ssl.create_default_context()) as exchange:
        return await exchange.ask(to(url, rules), timeout_s)


class _Network(AsyncNetworkStream):
    """What is written, by calls."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.written: list[bytes] = []
        self._is_broken = is_broken

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return OK

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self.written.append(buffer)
        if self._is_broken:
            raise httpcore2.WriteError


@pytest.mark.parametrize("is_broken", [False, True], ids=["", "that is not read to its end"])
async def test_head_and_body_of_a_request_leave_together(is_broken: bool) -> None:
    network = _Network(is_broken=is_broken)
    with socket.socket() as unused:
        connection = _Connection(network, unused)
        for part in (b"head", b"body", b""):
            await connection.write(part)
        assert network.written == []
        assert [await connection.read(100) for _ in range(2)] == [OK, OK]
        assert network.written == [b"headbody"]


async def test_a_large_body_leaves_behind_its_head() -> None:
    network = _Network()
    with socket.socket() as unused:
        connection = _Connection(network, unused)
        await connection.write(b"head")
        await connection.write(LARGE)
        assert network.written == [b"head", LARGE]


async def test_a_request_and_its_answer_over_one_kept_connection() -> None:
    async with serving(answers_ok) as server:
        rules, names = allowed(server.port), Names(["127.0.0.1"])
        request = to(f"http://hooks.example.com:{server.port}/in?x=1", rules)
        async with Exchange(rules, names, ssl.create_default_context()) as exchange:
            for _ in range(3):
                result = await exchange.ask(request, TIMEOUT_S)
                assert result == Answer(200, {"content-length": "2"}, b"ok")
        assert (server.connections, names.asked) == (1, 1)
        head, _, body = server.seen[0].partition(b"\r\n\r\n")
        assert body == b"body"
        assert head.startswith(b"POST /in?x=1 HTTP/1.1\r\n")
        assert f"host: hooks.example.com:{server.port}".encode() in head.split(b"\r\n")


async def test_a_name_that_changes_its_answer_after_the_check_leads_nowhere_else() -> None:
    async with serving(answers_ok) as inside, serving(answers_ok) as outside:
        rules = Allowed(LOOPBACK, http=True, ports=frozenset({outside.port, inside.port}))
        # It is asked once for each connection: what it would say the second time is never heard.
        names = Names(["127.0.0.1"], ["10.0.0.1"])
        assert isinstance(await ask(f"http://a.example.com:{outside.port}/", rules, names), Answer)
        assert (names.asked, inside.connections, outside.connections) == (1, 0, 1)


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["1.1.1.1", "127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["169.254.169.254"],
    ],
)
async def test_a_name_with_one_address_inside_is_not_called(answer: list[str]) -> None:
    async with serving(answers_ok) as server:
        rules = allowed(server.port, "192.0.2.0/24")
        result = await ask(f"http://a.example.com:{server.port}/", rules, Names(answer))
        assert isinstance(result, NoAnswer)
        assert result.reason == "refused"
        assert server.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
async def test_this_machine_is_not_called_however_it_is_named(host: str) -> None:
    async with serving(answers_ok) as server:
        rules = allowed(server.port, "192.0.2.0/24")
        async with Exchange(rules, SystemResolver(), ssl.create_default_context()) as exchange:
            result = await exchange.ask(to(f"http://{host}:{server.port}/", rules), TIMEOUT_S)
        assert isinstance(result, NoAnswer)
        assert result.reason == "refused"
        assert server.connections == 0


async def test_the_system_knows_this_machine() -> None:
    async with serving(answers_ok) as server:
        rules = allowed(server.port)
        async with Exchange(rules, SystemResolver(), ssl.create_default_context()) as exchange:
            assert isinstance(
                await exchange.ask(to(f"http://localhost:{server.port}/", rules), TIMEOUT_S), Answer
            )


async def test_a_name_without_address() -> None:
    rules = allowed(80)
    assert await ask("http://a.example.com/", rules, Names([])) == NoAnswer(
        "dns", "a.example.com has no address"
    )
    async with Exchange(rules, SystemResolver(), ssl.create_default_context()) as exchange:
        result = await exchange.ask(to("http://no-such-name.invalid/", rules), TIMEOUT_S)
    assert isinstance(result, NoAnswer)
    assert result.reason == "dns"


async def test_a_name_that_is_looked_up_slowly_keeps_no_other_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, asked = threading.Event(), threading.Semaphore(0)
    own = socket.getaddrinfo

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.example.com":
            asked.release()
            assert free.wait(TIMEOUT_S)
            return []
        return own(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    resolver = SystemResolver()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(resolver.addresses, "slow.example.com", 443)
        for _ in range(MOST_OF_A_NAME):
            await trio.to_thread.run_sync(asked.acquire)
        assert ip_address("127.0.0.1") in await resolver.addresses("localhost", 443)
        assert not asked.acquire(blocking=False)  # no more threads than that wait for the slow one
        free.set()
    assert resolver._threads == {}


async def test_the_next_address_is_tried() -> None:
    async with serving(answers_ok) as server:
        rules = allowed(server.port)
        names = Names(["127.0.0.2", "127.0.0.1"])  # nothing listens on the first one
        assert isinstance(await ask(f"http://a.example.com:{server.port}/", rules, names), Answer)


async def test_nothing_listens() -> None:
    async with serving(answers_ok) as server:
        port = server.port
    result = await ask(f"http://a.example.com:{port}/", allowed(port), Names(["127.0.0.1"]))
    assert isinstance(result, NoAnswer)
    assert result.reason == "connection"


async def test_a_want_of_files_is_our_own() -> None:
    async with serving(answers_ok) as server:
        rules = allowed(server.port)
        async with Exchange(rules, Names(["127.0.0.1"]), ssl.create_default_context()) as exchange:
            request = to(f"http://a.example.com:{server.port}/", rules)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            next_one = os.dup(0)
            os.close(next_one)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, limits[1]))
            try:
                result = await exchange.ask(request, TIMEOUT_S)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert isinstance(result, NoAnswer)
            assert result.is_ours
            assert isinstance(await exchange.ask(request, TIMEOUT_S), Answer)


async def test_a_redirect_is_not_followed() -> None:
    async with serving(answers_ok) as inside:

        async def redirects(stream: trio.SocketStream, seen: bytes) -> None:
            there = f"location: http://127.0.0.1:{inside.port}/\r\n".encode()
            await stream.send_all(b"HTTP/1.1 307 See\r\n" + there + b"content-length: 0\r\n\r\n")

        async with serving(redirects) as server:  # type: ignore[arg-type]
            rules = allowed(server.port)
            result = await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]))
        assert isinstance(result, Answer)
        assert (result.status, inside.connections) == (307, 0)


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(answers_ok) as proxy, serving(answers_ok) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        rules = allowed(server.port)
        assert isinstance(
            await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"])), Answer
        )
        assert (proxy.connections, server.connections) == (0, 1)


async def test_an_endless_body_is_not_read() -> None:
    sent = 0
    stopped = trio.Event()

    async def endless(stream: trio.SocketStream, seen: bytes) -> None:
        nonlocal sent
        try:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                await stream.send_all(b"x" * 10_000)
                sent += 10_000
        finally:
            stopped.set()

    async with serving(endless) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        result = await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]))
        assert isinstance(result, Answer)
        assert (result.status, result.excerpt) == (200, b"x" * 1_024)
        await stopped.wait()
    assert MOST_ANSWER_BYTES - 10_000 <= sent < 64 * 1024 * 1024  # what the kernel holds is sent, too


@pytest.mark.parametrize(
    ("begin", "status"),
    [(b"", None), (b"HTTP/1.1 200 OK\r\nx: ", None), (b"HTTP/1.1 201 OK\r\n\r\n", 201)],
)
async def test_a_slow_drip_ends_in_time(begin: bytes, status: int | None) -> None:
    async def drips(stream: trio.SocketStream, seen: bytes) -> None:
        await stream.send_all(begin)
        while True:
            await stream.send_all(b"H" if not begin else b"x")
            await trio.sleep(0.01)

    async with serving(drips) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        result = await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]), 0.3)
    if status is None:
        assert isinstance(result, NoAnswer)
        assert result.reason in {"timeout", "protocol"}
    else:  # the status came in time
        assert isinstance(result, Answer)
        assert result.status == status


async def test_a_server_that_says_nothing() -> None:
    async def hangs(stream: trio.SocketStream, seen: bytes) -> None:
        await trio.sleep_forever()

    async with serving(hangs) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        result = await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]), 0.1)
    assert result == NoAnswer("timeout", "no answer within 0.1 s")


@pytest.mark.parametrize(
    "said", [b"hello\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n"]
)
async def test_what_is_no_http(said: bytes) -> None:
    async def speaks(stream: trio.SocketStream, seen: bytes) -> None:
        await stream.send_all(said)

    async with serving(speaks) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        result = await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]))
    assert isinstance(result, NoAnswer)
    assert result.reason == "protocol"


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure() -> None:
    async def once(stream: trio.SocketStream, seen: bytes) -> None:
        if b"tickwheel-attempt: 1" in seen:
            await stream.send_all(OK)
        else:
            await stream.aclose()

    async with serving(once) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        url = f"http://a.example.com:{server.port}/"
        async with Exchange(rules, Names(["127.0.0.1"]), ssl.create_default_context()) as exchange:
            assert isinstance(await exchange.ask(to(url, rules), TIMEOUT_S), Answer)
            closing = replace(DUE, receipt=Receipt(1, 2, 1), attempt=2)
            result = await exchange.ask(request_of(closing, Style(), rules.location(url), 0.0), TIMEOUT_S)
        # Once over the kept connection, once over a new one, and not a third time.
        assert isinstance(result, NoAnswer)
        assert (server.connections, len(server.seen)) == (2, 3)


async def test_a_body_that_breaks_off_does_not_take_its_status_back() -> None:
    async def breaks(stream: trio.SocketStream, seen: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok")
        await stream.aclose()

    async with serving(breaks) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        result = await ask(f"http://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]))
        assert isinstance(result, Answer)
        assert (result.status, result.excerpt, len(server.seen)) == (200, b"ok", 1)


# TLS ---------------------------------------------------------------------------------------------


def server_context(files: Files) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate_path, files.key_path)
    return context


async def test_tls_is_for_the_name_and_goes_to_the_checked_address(tmp_path: Path) -> None:
    files = Files(tmp_path, "hooks.example.com")
    names_told: list[str | None] = []
    context = server_context(files)
    context.sni_callback = lambda connection, name, _: names_told.append(name)
    async with serving(answers_ok, context) as server:
        rules = allowed(server.port)
        trusted = ssl.create_default_context(cafile=files.ca_path)
        async with Exchange(rules, Names(["127.0.0.1"]), trusted) as exchange:
            good = await exchange.ask(to(f"https://hooks.example.com:{server.port}/", rules), TIMEOUT_S)
            other = await exchange.ask(to(f"https://other.example.com:{server.port}/", rules), TIMEOUT_S)
        assert isinstance(good, Answer)
        assert isinstance(other, NoAnswer)
        assert other.reason == "tls"
        assert names_told == ["hooks.example.com", "other.example.com"]
        assert len(server.seen) == 1


async def test_a_certificate_of_an_unknown_ca_is_not_believed(tmp_path: Path) -> None:
    files = Files(tmp_path, "hooks.example.com")
    async with serving(answers_ok, server_context(files)) as server:
        rules = allowed(server.port)
        url = f"https://hooks.example.com:{server.port}/"
        result = await ask(url, rules, Names(["127.0.0.1"]))
        assert isinstance(result, NoAnswer)
        assert result.reason == "tls"
        assert server.seen == []


@pytest.mark.parametrize(
    "wants_certificate", [True, False], ids=["it wants a certificate", "it breaks the records"]
)
async def test_tls_that_fails_after_its_handshake_is_an_outcome(
    tmp_path: Path, wants_certificate: bool
) -> None:
    async def breaks(stream: trio.SSLStream[trio.SocketStream], seen: bytes) -> None:
        await stream.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + b"z" * 32)

    files = Files(tmp_path, "hooks.example.com")
    context = server_context(files)
    if wants_certificate:  # which TLS 1.3 says when the client believes that all is well
        context.verify_mode = ssl.CERT_REQUIRED
    async with serving(breaks, context) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        trusted = ssl.create_default_context(cafile=files.ca_path)
        async with Exchange(rules, Names(["127.0.0.1"]), trusted) as exchange:
            for _ in range(2):
                result = await exchange.ask(to(f"https://hooks.example.com:{server.port}/", rules), TIMEOUT_S)
                assert isinstance(result, NoAnswer)
                # Or it closes without a word, as trio's does.
                assert result.reason in {"tls", "connection", "protocol"}


async def test_a_server_without_tls_is_no_https() -> None:
    async def never(stream: trio.SocketStream, seen: bytes) -> None:
        raise AssertionError("a request in plain text")

    async with serving(never) as server:  # type: ignore[arg-type]
        rules = allowed(server.port)
        started = time.monotonic()
        result = await ask(f"https://a.example.com:{server.port}/", rules, Names(["127.0.0.1"]), 0.5)
        assert isinstance(result, NoAnswer)
        assert result.reason in {"tls", "timeout"}
        assert time.monotonic() - started < TIMEOUT_S


async def test_an_answer_of_many_small_chunks_lets_others_go_on() -> None:
    """The parser has all of them already, so nothing makes its reader wait."""

    async def chunks(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], seen: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        await stream.send_all(head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")

    class Longest(trio.abc.Instrument):
        """The most chunks that were taken in one step."""

        taken = longest = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.taken = 0

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            self.longest = max(self.longest, self.taken)

    longest = Longest()
    takes = _Reading.takes_no_more

    def counted(reading: _Reading, chunk: bytes) -> bool:
        longest.taken += 1
        return takes(reading, chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Reading, "takes_no_more", counted)
        trio.lowlevel.add_instrument(longest)
        try:
            async with serving(chunks) as server:
                result = await ask(
                    f"http://a.example.com:{server.port}/", allowed(server.port), Names(["127.0.0.1"])
                )
        finally:
            trio.lowlevel.remove_instrument(longest)
    assert isinstance(result, Answer)
    assert result.status == 200
    assert 0 < longest.longest <= 100
