"""`tickwheel web` as a process, over real sockets: what it prints, what it limits, and how it ends."""

from __future__ import annotations

import json
import resource
import select
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import msgspec
import pytest

import tickwheel.sync
from tests.support.clients.certificates import Files
from tests.support.clients.http_client import get
from tests.support.processes.cli_harness import PROGRAM, Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web, started
from tickwheel_web.server import MORE_HANDSHAKES


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The real program."""
    folder = tmp_path_factory.mktemp("web-server")
    with Daemon(folder / "data") as daemon:
        process = Shell(folder, daemon.url).popen(
            "web", "--port", "0", "--json", "--max-request-bytes", "64KiB"
        )
        assert process.stdout is not None
        yield Web(json.loads(process.stdout.readline())["url"], process)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, said) == (0, b"")


def test_a_message_and_two_requests_on_one_connection(web: Web) -> None:
    connection = web.connection()
    connection.request("POST", "/v1/topics/t/messages?delay=1h", b"tea", {"Content-Type": "text/plain"})
    sent = connection.getresponse()
    assert sent.status == 201
    assert "server" not in {name.lower() for name in sent.headers}
    message_id = json.loads(sent.read())["id"]
    connection.request("GET", f"/v1/messages/{message_id}")
    found = json.loads(connection.getresponse().read())
    connection.close()
    assert (found["text"], found["state"]) == ("tea", "scheduled")
    assert json.loads(get(f"{web.url}/openapi.json").text)["openapi"] == "3.1.0"


@pytest.mark.parametrize(
    "said",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET /v1/stats HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    ],
    ids=["zeros", "endless headers"],
)
def test_what_is_no_request(web: Web, said: bytes) -> None:
    line, problem = web.say(said)
    assert line == b"HTTP/1.1 400 Bad Request"
    assert problem["code"] == "bad_http"
    assert get(f"{web.url}/v1/stats").status == 200


@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_is_too_large(web: Web, length: bytes) -> None:
    head = (
        b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        + length
        + b"\r\n\r\n"
    )
    body = b"186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n" if b"chunked" in length else b""
    line, problem = web.say(head + body)
    assert line.startswith(b"HTTP/1.1 413 ")
    assert problem["code"] == "request_too_large"


def test_a_body_that_is_too_large_is_told_so_to_who_writes_all_of_it_first(web: Web) -> None:
    connection = web.connection()
    connection.request("POST", "/v1/topics/t/messages", b"x" * 20_000_000, {"Content-Type": "text/plain"})
    refused = connection.getresponse()
    assert (refused.status, json.loads(refused.read())["code"]) == (413, "request_too_large")
    connection.request("GET", "/v1/stats")
    assert connection.getresponse().status == 200
    connection.close()


def test_who_waits_for_leave_to_write_is_refused_and_hung_up_on(web: Web) -> None:
    head = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n"
    head += b"Content-Length: 100000\r\n\r\n"
    line, problem = web.say(head)
    assert line.startswith(b"HTTP/1.1 413 ")
    assert problem["code"] == "request_too_large"


def test_other_addresses_only_when_it_is_meant(tmp_path: Path) -> None:
    error = Shell(tmp_path).error("web", "--host", "0.0.0.0", code=78)
    assert error["code"] == "bad_config"
    assert "there is no TLS" in error["message"]


def test_a_port_that_is_taken(web: Web, tmp_path: Path) -> None:
    error = Shell(tmp_path).error("web", "--port", str(web.port), code=79)
    assert error["code"] == "address_in_use"
    assert "web_port" in error["advice"]
    assert str(web.port) in error["message"]


def test_a_directory_is_no_broker(tmp_path: Path) -> None:
    assert b"--url, not --data" in Shell(tmp_path).run("--data", "data", "web", code=2).stderr


@pytest.mark.parametrize("package", ["starlette", "httptools", "uvicorn"])
def test_without_the_extra(tmp_path: Path, package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None\n{PROGRAM[-1]}"
    done = subprocess.run(
        [PROGRAM[0], "-c", program, "web", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert b"pip install 'tickwheel[web]'" in done.stderr


# Other ways to listen ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("web-broker") / "data") as daemon:
        yield daemon


@pytest.fixture
def start(broker: Daemon, tmp_path: Path) -> Iterator[Callable[..., Web]]:
    """Starts `tickwheel web` with options; in the end it is told to end, and must do so in order."""
    started_ones: list[Web] = []

    def with_options(*options: str) -> Web:
        started_ones.append(started(Shell(tmp_path, broker.unix_url), *options))
        return started_ones[-1]

    yield with_options
    for one in started_ones:
        one.process.terminate()
        _, said = one.process.communicate(timeout=PATIENCE_S)
        assert (one.process.returncode, b"Traceback" in said) == (0, False)


def certificate_of(web: Web, files: Files) -> bytes:
    context = ssl.create_default_context(cafile=files.ca_path)
    with (
        socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""


def test_tls_and_a_certificate_that_is_renewed(start: Callable[..., Web], tmp_path: Path) -> None:
    files = Files(tmp_path / "tls")
    web = start("--tls-certificate", files.certificate_path, "--tls-key", files.key_path)
    assert web.url.startswith("https://")
    context = ssl.create_default_context(cafile=files.ca_path)
    connection = HTTPSConnection("127.0.0.1", web.port, timeout=PATIENCE_S, context=context)
    connection.request("GET", "/v1/stats")
    assert connection.getresponse().status == 200
    before = certificate_of(web, files)
    files.issue()
    web.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE_S
    while certificate_of(web, files) == before:
        assert time.monotonic() < deadline
    connection.close()


def test_a_connection_counts_before_tls_is_spoken_on_it(start: Callable[..., Web], tmp_path: Path) -> None:
    """Who says nothing has as many connections as others, and for as long as a request may take."""
    files = Files(tmp_path / "tls")
    web = start(
        "--tls-certificate", files.certificate_path, "--tls-key", files.key_path, "--max-connections", "1"
    )
    context = ssl.create_default_context(cafile=files.ca_path)
    with (
        socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"GET /v1/stats HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert tls.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(HTTPException) as refused:
            asked_over_tls(web, context)
        assert refused.value.args == (503, "too_many_connections")
        silent = [socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) for _ in range(30)]
        for one in silent[MORE_HANDSHAKES:]:
            assert is_closed(one)
        for one in silent[:MORE_HANDSHAKES]:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        for one in silent:
            one.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert asked_over_tls(web, context) == 200
            break
        except (HTTPException, OSError):  # what was closed is not yet gone
            assert time.monotonic() < deadline


def test_a_handshake_that_takes_too_long_is_ended(start: Callable[..., Web], tmp_path: Path) -> None:
    files = Files(tmp_path / "tls")
    web = start(
        "--tls-certificate", files.certificate_path, "--tls-key", files.key_path, "--request-timeout", "200ms"
    )
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as other:
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
        assert is_closed(other)
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as gone:
        gone.shutdown(socket.SHUT_WR)
        assert is_closed(gone)
    assert asked_over_tls(web, ssl.create_default_context(cafile=files.ca_path)) == 200


def asked_over_tls(web: Web, context: ssl.SSLContext) -> int:
    """The status of an answer. Raises HTTPException with status and code of a problem."""
    connection = HTTPSConnection("127.0.0.1", web.port, timeout=PATIENCE_S, context=context)
    try:
        connection.request("GET", "/v1/stats")
        answer = connection.getresponse()
        if answer.status >= 400:
            raise HTTPException(answer.status, msgspec.json.decode(answer.read())["code"])
        return answer.status
    finally:
        connection.close()


def is_closed(one: socket.socket) -> bool:
    """When the other side has hung up, perhaps after an alert of TLS. Raises TimeoutError."""
    try:
        while one.recv(1 << 10):
            pass
    except ConnectionError:
        pass
    return True


def test_by_a_unix_socket_behind_a_proxy(start: Callable[..., Web], tmp_path: Path, broker: Daemon) -> None:
    path = tmp_path / "web.sock"
    web = start("--unix-socket", str(path), "--host", "", "--forwarded-from", "unix")
    assert web.url == f"http+unix://{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(PATIENCE_S)
        raw.connect(str(path))
        raw.sendall(b"GET /v1/stats HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n")
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    with tickwheel.sync.Client(broker.unix_url) as client:
        assert "203.0.113.9:0" in {one.peer for one in client.clients()}


def test_limits_are_settings(start: Callable[..., Web]) -> None:
    web = start("--max-header-bytes", "2KiB", "--request-timeout", "200ms", "--max-connections", "1")
    line, problem = web.say(b"GET /v1/stats HTTP/1.1\r\nX: " + b"x" * 3_000)
    assert (line, problem["code"]) == (b"HTTP/1.1 400 Bad Request", "bad_http")
    line, problem = web.say(b"GET /v1")
    assert (line, problem["code"]) == (b"HTTP/1.1 408 Request Timeout", "request_too_slow")
    body = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nabc"
    assert web.say(body)[1]["code"] == "request_too_slow"
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S):
        assert web.say(b"")[1]["code"] == "too_many_connections"


def test_more_connections_than_files(start: Callable[..., Web]) -> None:
    """One more is refused in words, and the broker can be asked for a token that was not seen before."""
    web = start()
    known = web.connection()
    known.request("GET", "/v1/stats")
    assert known.getresponse().read()
    resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    with ExitStack() as opened:
        connections: list[socket.socket] = []
        answered: list[socket.socket] = []
        while not answered:
            assert len(connections) < 100
            connection = socket.create_connection(("127.0.0.1", web.port), PATIENCE_S)
            connections.append(opened.enter_context(connection))
            answered, _, _ = select.select(connections, [], [], 0.05)
        answer = answered[0].recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 503 ")
        known.request("GET", "/v1/stats", headers={"Authorization": "Bearer one-that-is-new"})
        assert known.getresponse().status == 200
    known.close()


def test_who_is_refused_hears_it_also_while_he_writes(start: Callable[..., Web]) -> None:
    web = start("--max-connections", "1")
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S):
        for _ in range(20):
            with closing(web.connection()) as connection:
                connection.request("POST", "/v1/topics/t/messages", [b"x" * 10_000] * 100)
                answer = connection.getresponse()
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                answer.read()


def test_a_socket_that_it_was_given(broker: Daemon, tmp_path: Path) -> None:
    """And it ends when who started it is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number, port = listener.fileno(), listener.getsockname()[1]
        words = "--url", broker.unix_url, "web", "--listen-fd", str(number), "--ends-with-stdin"
        process = subprocess.Popen(
            [*PROGRAM, *words], pass_fds=[number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
        )
    assert get(f"http://127.0.0.1:{port}/v1/stats").status == 200
    assert process.communicate(timeout=PATIENCE_S)[0] == b""
    assert process.returncode == 0


def test_a_number_that_is_no_socket(tmp_path: Path) -> None:
    assert b"--listen-fd 0 is no socket" in Shell(tmp_path).run("web", "--listen-fd", "0", code=2).stderr
