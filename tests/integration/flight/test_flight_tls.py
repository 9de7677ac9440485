"""Arrow Flight over TLS: who may read, what is refused and how it is said, and certificates that are renewed."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

import tickwheel.arrow
from tests.support.clients.certificates import Files
from tests.support.flight.calling import Caller, flight_url
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.piped import Piped
from tickwheel import sync
from tickwheel.arrow import network
from tickwheel.arrow.network import Flights
from tickwheel.errors import NotConnected, TlsFailed, TokenNeedsTls
from tickwheel_bench.processes import wait_until

ROWS = [{"topic": "tea", "body": b"1"}]
COLUMNS = ["topic", "body"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "certificates")


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is refused is not asked again and again."""
    monkeypatch.setattr(network, "PATIENCE_S", 0.0)


def tls_daemon(tmp_path: Path, files: Files, **settings: Any) -> Daemon:
    tls = {"tls_certificate": files.certificate_path, "tls_key": files.key_path}
    return Daemon(tmp_path / "data", flight=True, flight_listen="127.0.0.1:0", **tls, **settings)


def send(daemon: Daemon) -> None:
    with sync.Client(daemon.unix_url) as client:
        client.send("tea", b"1")


def rows(daemon: Daemon, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        tickwheel.arrow.messages(daemon.tls_url, columns=COLUMNS, **options).read_all().to_pylist()
    )
    return found


def tls_flight_url(daemon: Daemon, files: Files, certificate: tuple[str, str] | None = None) -> str:
    """Where its Arrow Flight is, once that answers."""
    tls: dict[str, Any] = {"tls_root_certs": Path(files.ca_path).read_bytes()}
    if certificate is not None:
        tls |= {
            "cert_chain": Path(certificate[0]).read_bytes(),
            "private_key": Path(certificate[1]).read_bytes(),
        }
    return flight_url(daemon, **tls)


def shown_certificate(url: str, files: Files) -> bytes | None:
    """What is shown to who connects now; None: nobody listens."""
    context = ssl.create_default_context(cafile=files.ca_path)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            return connection.getpeercert(binary_form=True)
    except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None


@pytest.mark.usefixtures("_impatient")
def test_reading_over_tls_and_what_is_refused(tmp_path: Path, files: Files) -> None:
    with tls_daemon(tmp_path, files) as daemon:
        send(daemon)
        url = tls_flight_url(daemon, files)
        assert url.startswith("grpc+tls://127.0.0.1:")
        with sync.Client(daemon.tls_url, ca_file=files.ca_path) as client:
            assert client.flight_url == url
        assert rows(daemon, ca_file=files.ca_path) == ROWS
        with pytest.raises(TlsFailed):  # by the broker
            rows(daemon)
        # The same by Arrow Flight alone, as Spark's tasks read.
        asked = {"table": "messages", "columns": COLUMNS}
        assert Flights(url, ca_file=files.ca_path).plan(asked).tickets
        stranger = Files(tmp_path / "stranger")
        for options in ({}, {"ca_file": stranger.ca_path}):
            with pytest.raises(NotConnected, match="certificate"):
                Flights(url, **options).plan(asked)
        with pytest.raises(NotConnected):
            Flights(url.replace("grpc+tls", "grpc"), ca_file=files.ca_path).plan(asked)
        with pytest.raises(TokenNeedsTls):
            Flights(url.replace("grpc+tls://127.0.0.1", "grpc://broker.example"), token="twk_x").plan(asked)


@pytest.mark.usefixtures("_impatient")
def test_only_readers_with_a_certificate(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, stranger = files.client("reader"), files.client("stranger", trustme.CA())
    asked = {"table": "messages", "columns": COLUMNS}
    with tls_daemon(tmp_path, files, tls_client_ca=files.client_ca_path) as daemon:
        send(daemon)
        url = tls_flight_url(daemon, files, good)
        with pytest.raises(NotConnected):
            Flights(url, ca_file=files.ca_path).plan(asked)
        for certificate, key in (stranger, good):
            monkeypatch.setenv("TICKWHEEL_CERTIFICATE", certificate)
            monkeypatch.setenv("TICKWHEEL_KEY", key)
            if certificate == stranger[0]:
                with pytest.raises(NotConnected):
                    Flights(url, ca_file=files.ca_path).plan(asked)
        assert rows(daemon, ca_file=files.ca_path) == ROWS


def test_new_certificates_are_seen_by_new_readers(tmp_path: Path, files: Files) -> None:
    with tls_daemon(tmp_path, files) as daemon:
        send(daemon)
        url = tls_flight_url(daemon, files)
        first = shown_certificate(url, files)
        assert first is not None
        files.issue()
        assert shown_certificate(url, files) == first
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: shown_certificate(url, files) not in (None, first))
        assert rows(daemon, ca_file=files.ca_path) == ROWS
        assert len(daemon.child_pids) == 1  # by the same process


def test_a_key_that_cannot_be_used_changes_nothing(tmp_path: Path, files: Files) -> None:
    """As for the broker itself: what was there is used until there is something better."""
    with tls_daemon(tmp_path, files) as daemon:
        send(daemon)
        url = tls_flight_url(daemon, files)
        first, key = shown_certificate(url, files), Path(files.key_path).read_bytes()
        files.spoil_key()
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_event("new certificate is not used")
        wait_until(lambda: [one for one in daemon.events() if "flight" in one["logger"]])
        assert shown_certificate(url, files) == first
        assert rows(daemon, ca_file=files.ca_path) == ROWS
        assert len(daemon.child_pids) == 1
        Path(files.key_path).write_bytes(key)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Daemon]:
    """A broker without tokens, beside which tests start `tickwheel flight`."""
    with Daemon(tmp_path / "data") as daemon:
        yield daemon


def words(plain: Daemon, files: Files, listen: str = "127.0.0.1:0") -> tuple[str, ...]:
    """`tickwheel flight` with TLS on its directory."""
    tls = ("--tls-certificate", files.certificate_path, "--tls-key", files.key_path)
    return "--json", "flight", "--data", str(plain.directory), "--listen", listen, *tls


@contextmanager
def command(tmp_path: Path, plain: Daemon, files: Files) -> Iterator[tuple[str, Piped]]:
    """Where `tickwheel flight` listens, and its process. It does not wait for readers that stand still."""
    process = Piped(
        "import tickwheel_flight.process as process; process.DRAIN_S = 0.2; "
        "from tickwheel_cli.main import main; main()",
        *words(plain, files),
        modules=("tickwheel_cli.main", "tickwheel.client", "tickwheel_broker.config.load", "numpy"),
        folder=tmp_path,
        environment=Shell(tmp_path, plain.unix_url).environment,
    )
    try:
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.communicate()
    assert process.returncode == 0


def test_the_command_keeps_its_port_when_it_loads_certificates(
    tmp_path: Path, plain: Daemon, files: Files
) -> None:
    with command(tmp_path, plain, files) as (url, process):
        first = shown_certificate(url, files)
        assert first is not None
        files.issue()
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: shown_certificate(url, files) not in (None, first), patience_s=20)
        assert process.poll() is None


def test_a_reader_that_stands_still_keeps_no_certificate_from_others(
    tmp_path: Path, plain: Daemon, files: Files
) -> None:
    with sync.Client(plain.unix_url) as client:
        client.send_many("large", [bytes(1_000_000)] * 70)  # more than two batches, which end at 32 MiB
    with command(tmp_path, plain, files) as (url, process):
        first = shown_certificate(url, files)
        standing = Caller(url, tls_root_certs=Path(files.ca_path).read_bytes())
        (ticket,) = standing.tickets(columns=["body"])
        stream = standing.begin(ticket)
        assert stream.read_chunk().data.num_rows
        files.issue()
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: process.poll() is not None or shown_certificate(url, files) not in (None, first))
        assert process.poll() is None
        standing.close()


def test_files_that_the_command_cannot_use(tmp_path: Path, plain: Daemon, files: Files) -> None:
    shell, garbled = Shell(tmp_path, plain.unix_url), tmp_path / "garbled.pem"
    garbled.write_text("no certificate")
    files.spoil_key()
    done = shell.run_forked(words(plain, files))
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "bad_certificate"
    files.issue()
    for path in (garbled, tmp_path / "none.pem"):
        done = shell.run_forked((*words(plain, files), "--tls-client-ca", str(path)))
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["code"] == "bad_certificate"
        assert path.name in error["message"]
        assert done.returncode > 0


def test_other_machines_only_with_tls_and_tokens(tmp_path: Path, plain: Daemon, files: Files) -> None:
    shell, exposed = Shell(tmp_path, plain.unix_url), words(plain, files, "0.0.0.0:0")
    for options, code in ((exposed[:6], "bad_config"), (exposed, "insecure_listener")):
        done = shell.run_forked(options)
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["code"] == code
        assert "0.0.0.0" in error["message"]
        assert "insecure = true" in error["message"] + error["advice"]
        assert done.returncode > 0
