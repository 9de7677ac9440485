"""TLS between real clients and the real daemon: what works, what is refused and how it is said."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

import tickwheel
from tests.support.clients.certificates import Files
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection
from tickwheel.errors import TlsFailed, TlsRequired
from tickwheel.protocol.frames import FrameType, encode_frame


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "certificates")


def tls_daemon(tmp_path: Path, files: Files, **settings: Any) -> Daemon:
    return Daemon(
        tmp_path / "data", tls_certificate=files.certificate_path, tls_key=files.key_path, **settings
    )


def port_of(daemon: Daemon) -> int:
    return int(daemon.tls_url.rsplit(":", 1)[1])


def shown_certificate(daemon: Daemon, files: Files, **context_options: Any) -> bytes:
    """What the daemon shows to a client of OpenSSL that connects now."""
    context = ssl.create_default_context(cafile=files.ca_path)
    for name, value in context_options.items():
        setattr(context, name, value)
    with (
        socket.create_connection(("127.0.0.1", port_of(daemon)), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        certificate = connection.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


async def send_and_receive(url: str, **options: Any) -> bytes:
    async with tickwheel.Client(url, **options) as client:
        await client.send("tea", b"x" * 300_000)
        async with client.subscribe("tea") as sub:
            message = await sub.receive(timeout=PATIENCE_S)
            assert message is not None
            await message.ack(confirm=True)
            return bytes(message.body)


async def refusal(error: type[Exception], url: str, **options: Any) -> Exception:
    with pytest.raises(error) as caught:
        async with tickwheel.Client(url, **options):
            pass
    return caught.value


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_messages_travel_over_tls(tmp_path: Path, files: Files, backend: str) -> None:
    async def main() -> bytes:
        return await send_and_receive(daemon.tls_url, ca_file=files.ca_path)

    with tls_daemon(tmp_path, files) as daemon:
        assert anyio.run(main, backend=backend) == b"x" * 300_000


def test_the_command_line_and_the_blocking_client(tmp_path: Path, files: Files) -> None:
    with tls_daemon(tmp_path, files) as daemon:
        with tickwheel.sync.Client(daemon.tls_url, ca_file=files.ca_path) as client:
            client.send("tea", b"ready")
        shell = Shell(tmp_path, daemon.tls_url)
        assert "ready" in shell.text("receive", "tea", "--count", "1", "--ca", files.ca_path)
        refused = shell.run("stats", code=69)
        assert b"is not trusted" in refused.stderr
        assert b"TICKWHEEL_CA" in refused.stderr


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_refusals_say_what_is_wrong(tmp_path: Path, files: Files, backend: str) -> None:
    async def main() -> None:
        url = daemon.tls_url
        unknown = await refusal(TlsFailed, url)
        assert "not trusted" in str(unknown)
        assert "ca_file=" in str(unknown)
        files.issue(not_after=datetime.now(UTC) - timedelta(days=1))
        reload(daemon)
        assert "has expired" in str(await refusal(TlsFailed, url, ca_file=files.ca_path))
        files.names = ("broker.example",)
        files.issue()
        reload(daemon)
        mismatch = await refusal(TlsFailed, url, ca_file=files.ca_path)
        assert "not valid for '127.0.0.1'" in str(mismatch)
        assert "Connect by an address that the certificate has" in str(mismatch)
        missing = await refusal(tickwheel.errors.BadCertificate, url, ca_file="gone.pem")
        assert "gone.pem cannot be used: No such file" in str(missing)

    with tls_daemon(tmp_path, files) as daemon:
        anyio.run(main, backend=backend)


def reload(daemon: Daemon) -> None:
    before = len(reloads(daemon))
    daemon.process.send_signal(signal.SIGHUP)
    while len(reloads(daemon)) == before:
        daemon.wait_for_event("started")  # fails if the daemon has ended


def reloads(daemon: Daemon) -> list[str]:
    return [e["event"] for e in daemon.events() if "certificate" in e["event"]]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_plain_and_tls_do_not_meet(tmp_path: Path, files: Files, backend: str) -> None:
    async def main() -> None:
        required = await refusal(TlsRequired, daemon.tls_url.replace("tickwheels", "tickwheel"))
        assert "tickwheels://HOST:PORT" in str(required)
        await send_and_receive(daemon.unix_url)  # the Unix socket has no use for it
        with Daemon(tmp_path / "plain", unix_socket="") as plain:
            failed = await refusal(TlsFailed, plain.url.replace("tickwheel:", "tickwheels:"))
            assert "does not speak TLS" in str(failed)

    with tls_daemon(tmp_path, files) as daemon:
        anyio.run(main, backend=backend)


def refusals(daemon: Daemon) -> list[dict[str, Any]]:
    """What was audited of connections whose TLS failed."""
    events = daemon.events()
    return [e for e in events if (e["logger"], e["event"]) == ("tickwheel.broker.audit", "tls")]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_only_clients_with_a_certificate(tmp_path: Path, files: Files, backend: str) -> None:
    good, stranger = files.client("worker"), files.client("stranger", trustme.CA())

    async def main() -> None:
        url, ca = daemon.tls_url, files.ca_path
        await send_and_receive(url, ca_file=ca, certificate=good[0], key=good[1])
        for options in ({}, {"certificate": stranger[0], "key": stranger[1]}):
            failed = await refusal(TlsFailed, url, ca_file=ca, **options)
            assert "does not accept this client's certificate" in str(failed)

    with tls_daemon(tmp_path, files, tls_client_ca=files.client_ca_path) as daemon:
        anyio.run(main, backend=backend)
        while len(audited := refusals(daemon)) < 2:  # the test's time limit bounds it
            time.sleep(0.02)
    assert len(audited) == 2
    assert "the client's certificate is refused" in audited[1]["reason"]


def test_old_versions_are_refused(tmp_path: Path, files: Files) -> None:
    with tls_daemon(tmp_path, files) as daemon:
        context = ssl.create_default_context(cafile=files.ca_path)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="deprecated"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", port_of(daemon)), PATIENCE_S) as plain,
            pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
        ):
            context.wrap_socket(plain, server_hostname="localhost")
        shown_certificate(daemon, files, maximum_version=ssl.TLSVersion.TLSv1_2)
        shown_certificate(daemon, files, minimum_version=ssl.TLSVersion.TLSv1_3)


async def test_a_reload_changes_what_new_connections_see(tmp_path: Path, files: Files) -> None:
    with tls_daemon(tmp_path, files) as daemon:
        async with tickwheel.Client(daemon.tls_url, ca_file=files.ca_path) as old:
            await old.send("tea", b"1")
            first = shown_certificate(daemon, files)
            files.issue()
            assert shown_certificate(daemon, files) == first
            reload(daemon)
            second = shown_certificate(daemon, files)
            assert second != first
            files.spoil_key()
            reload(daemon)
            assert shown_certificate(daemon, files) == second
            await old.send("tea", b"2")
            assert (await old.stats()).messages == 2
        assert daemon.wait_for_event("new certificate is not used")["level"] == "error"
        greeted = [e for e in daemon.events() if e["event"] == "connection greeted"]
        assert len(greeted) == 1  # it never had to connect again


def test_slow_and_garbled_handshakes_hold_nobody_up(tmp_path: Path, files: Files) -> None:
    with tls_daemon(tmp_path, files, handshake_timeout="1s") as daemon:
        address = ("127.0.0.1", port_of(daemon))
        waiting = [socket.create_connection(address, PATIENCE_S) for _ in range(20)]
        for connection in waiting[:10]:
            connection.send(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a handshake, and no more
        garbled = socket.create_connection(address, PATIENCE_S)
        garbled.send(b"\x16\x03\x01\x00\x20" + os.urandom(500))
        with tickwheel.sync.Client(daemon.tls_url, ca_file=files.ca_path) as client:
            client.send("tea", b"1")
            assert garbled.recv(1) == b"\x15"  # an alert, then the end
            while garbled.recv(100):
                pass
            for connection in waiting:
                assert connection.recv(1) == b""
            while client.stats().connections != 1:
                client.ping()
        for connection in (*waiting, garbled):
            connection.close()


def test_a_bad_certificate_keeps_the_daemon_from_starting(tmp_path: Path, files: Files) -> None:
    Path(files.certificate_path).write_text("no certificate")
    daemon = tls_daemon(tmp_path, files)
    daemon.launch()
    assert daemon.wait_exit() == 78
    (event,) = [event for event in daemon.events() if event["level"] == "error"]
    assert event["code"] == "bad_certificate"
    assert not (tmp_path / "data").exists()


def test_a_plain_client_whose_name_looks_like_tls(tmp_path: Path, files: Files) -> None:
    """A frame begins with its length: with a name of three letters that is the first byte of a TLS handshake."""
    with (
        tls_daemon(tmp_path, files) as daemon,
        RawConnection(daemon.tls_url.replace("tickwheels", "tickwheel")) as raw,
    ):
        raw.send(encode_frame(FrameType.HELLO, 1, b"\x82\xa8protocol\x01\xa6client\xa3raw"))
        assert b"tls_required" in raw.receive().payload
        assert raw.is_closed()
