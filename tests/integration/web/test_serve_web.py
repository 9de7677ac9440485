"""`tickwheel serve --web`: the HTTP API beside the broker, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from ssl import create_default_context

import pytest

from tests.support.clients.certificates import Files
from tests.support.clients.http_client import get
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, is_refused
from tickwheel_bench.processes import is_gone, wait_until


def with_web(directory: Path, **settings: object) -> Daemon:
    return Daemon(directory, **{"web": True, "web_port": 0, **settings})


def url_of(daemon: Daemon) -> str:
    return str(daemon.wait_for_event("started", exactly=True)["web"])


def test_requests_only_wait_while_it_is_started_anew(tmp_path: Path) -> None:
    with with_web(tmp_path / "data") as daemon:
        url = url_of(daemon)
        for number in range(2):
            assert get(f"{url}/v1/stats").status == 200
            assert len(daemon.child_pids) == number + 1
            os.kill(daemon.child_pids[-1], signal.SIGKILL)
        assert get(f"{url}/v1/stats").status == 200
        ended = [event for event in daemon.events() if event["event"] == "process ended"]
        assert [event["how"] for event in ended] == ["SIGKILL"] * 2
    assert daemon.process.wait() == 0
    assert all(is_gone(pid) for pid in daemon.child_pids)
    assert is_refused(url)


def test_nothing_is_left_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    daemon = with_web(tmp_path / "data").start()
    url = url_of(daemon)
    assert get(f"{url}/v1/stats").status == 200
    (pid,) = daemon.child_pids
    daemon.kill()
    # The next one has the port at once.
    with with_web(tmp_path / "data", web_port=int(url.rpartition(":")[2])):
        assert get(f"{url}/v1/stats").status == 200
    wait_until(lambda: is_gone(pid))
    assert is_refused(url)


def test_it_ends_in_order_with_the_broker(tmp_path: Path) -> None:
    with with_web(tmp_path / "data", unix_socket="") as daemon:
        url = url_of(daemon)
        assert f"{tmp_path}/data/web.sock" in " ".join(daemon.urls)
        connection = HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=PATIENCE_S)
        connection.request("GET", "/v1/stats")
        assert connection.getresponse().status == 200
        assert daemon.stop() == 0
        connection.close()
    assert not [event for event in daemon.events() if event["level"] in ("warning", "error")]
    assert is_gone(daemon.child_pids[0])


def test_with_tls_that_is_renewed_and_tokens(tmp_path: Path) -> None:
    files, shell, data = Files(tmp_path / "tls"), Shell(tmp_path), tmp_path / "data"
    token = shell.json("tokens", "create", "all", "--grant", "all:*", "--data", str(data))["token"]
    tls = {"tls_certificate": files.certificate_path, "tls_key": files.key_path}
    with with_web(data, **tls) as daemon:
        url = url_of(daemon)
        assert url.startswith("https://")

        def connected() -> HTTPSConnection:
            context = create_default_context(cafile=files.ca_path)
            port = int(url.rpartition(":")[2])
            found = HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
            found.connect()
            return found

        def certificate() -> bytes:
            connection = connected()
            found = connection.sock.getpeercert(binary_form=True)
            connection.close()
            assert isinstance(found, bytes)
            return found

        connection = connected()
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
            connection.request("GET", "/v1/stats", headers=headers)
            answer = connection.getresponse()
            assert answer.status == status
            answer.read()
        connection.close()
        before = certificate()
        files.issue()
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: certificate() != before)


@pytest.mark.parametrize(
    ("prelude", "settings", "code"),
    [
        ("sys.modules['uvicorn'] = None", {}, "extra_missing"),
        ("sys.modules['starlette'] = None", {}, "extra_missing"),
        ("", {"web_port": -1}, "address_in_use"),
        ("", {"web_unix_socket": "/proc/web.sock", "web_host": ""}, "cannot_listen"),
    ],
    ids=["uvicorn", "starlette", "port", "socket"],
)
def test_what_it_cannot_begin_with(
    tmp_path: Path, prelude: str, settings: dict[str, object], code: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if settings.get("web_port") == -1:
            settings = {"web_port": taken.getsockname()[1]}
        daemon = with_web(tmp_path / "data", prelude=prelude, **settings)
        daemon.launch()
        assert daemon.wait_exit() != 0
    (event,) = [event for event in daemon.events() if event["event"] == "stopped"]
    assert event["code"] == code
    assert "web" in event["advice"]
    assert not (tmp_path / "data").exists()


def test_the_command_says_where_it_is(tmp_path: Path) -> None:
    process = Shell(tmp_path).popen(
        "serve", "--data", "d", "--listen-port", "0", "--web", "--web-port", "0", "--json"
    )
    assert process.stdout is not None
    (url,) = json.loads(process.stdout.readline())["web"]
    assert get(f"{url}/v1/stats").status == 200
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
