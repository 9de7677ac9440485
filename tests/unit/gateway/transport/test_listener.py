"""Real sockets: TLS and plain text on one port, too many connections, shared ports."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from tests.unit.gateway.transport.peer import PATIENCE_S, Peer, Service
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.listener import Server, open_listeners
from tickwheel_gateway.transport.opening import tls_context


@contextlib.asynccontextmanager
async def listening(
    limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Server, int, Service]]:
    service = Service()
    server = Server(methods=service.methods, limits=limits, **options)
    listeners = await open_listeners("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        yield server, listeners[0].socket.getsockname()[1], service
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA, tmp_path: Path) -> ssl.SSLContext:
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    path = tmp_path / "both.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(path)
    return tls_context(str(path))


async def tls_to(port: int, authority: trustme.CA, *protocols: str) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(protocols)
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def test_tls_and_plain_text_on_one_port(secure: ssl.SSLContext, authority: trustme.CA) -> None:
    async with listening(tls=lambda: secure) as (_, port, service):
        stream = await tls_to(port, authority, "h2", "http/1.1")
        async with stream, await trio.open_tcp_stream("127.0.0.1", port) as plain:
            assert stream.selected_alpn_protocol() == "h2"
            for each in (stream, plain):
                assert (await Peer(each).call(bytes(100_000)[:60_000])).messages == [bytes(60_000)]
        assert [call.ends.is_tls for call in service.seen] == [True, False]
        assert all(call.ends.local == ("127.0.0.1", port) for call in service.seen)
        assert all(call.ends.peer.startswith("127.0.0.1:") for call in service.seen)


async def test_what_is_not_allowed(secure: ssl.SSLContext, authority: trustme.CA) -> None:
    async with listening(tls=lambda: secure, is_plain_allowed=False) as (server, port, _):
        async with await trio.open_tcp_stream("127.0.0.1", port) as plain:
            peer = Peer(plain)
            await peer.until_end()
            assert not peer.has_settings
        assert server.tally.failed_handshakes == 1
    async with listening() as (server, port, _):
        with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await tls_to(port, authority)
        with trio.fail_after(PATIENCE_S):
            while not server.tally.failed_handshakes:
                await trio.sleep(0.01)


async def test_a_broken_handshake(secure: ssl.SSLContext) -> None:
    async with listening(tls=lambda: secure) as (server, port, _):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"\x16nonsense" * 100)
            with trio.fail_after(PATIENCE_S), contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some(10_000):
                    pass
        with trio.fail_after(PATIENCE_S):
            while not server.tally.failed_handshakes:
                await trio.sleep(0.01)


async def test_too_many_connections() -> None:
    async with listening(Limits(connections=1)) as (server, port, _):
        async with await trio.open_tcp_stream("127.0.0.1", port) as one:
            assert (await Peer(one).call(b"x")).status == 0
            async with await trio.open_tcp_stream("127.0.0.1", port) as other:
                await Peer(other).until_end()
            assert server.tally.refused_connections == 1
            assert (await Peer(one).stream.wait_send_all_might_not_block()) is None
        with trio.fail_after(PATIENCE_S):
            while server.tally.connections:
                await trio.sleep(0.01)


async def test_stop_ends_everything() -> None:
    server = Server(methods=Service().methods)
    listeners = await open_listeners("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                peer = Peer(stream)
                await peer.call(b"x")
                server.stop()
                await peer.until_end()
                assert [code for code, _ in peer.goaways] == [0, 0]
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_a_port_for_several_processes() -> None:
    first = await open_listeners("127.0.0.1", 0, is_shared=True)
    port = first[0].socket.getsockname()[1]
    second = await open_listeners("127.0.0.1", port, is_shared=True)
    for listener in (*first, *second):
        await listener.aclose()
