"""/livez and /readyz of the real daemon, and everything that can be wrong with its HTTP listener."""

from __future__ import annotations

import json
import socket
import ssl
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.clients.certificates import Files
from tests.support.clients.http_client import Answer, get, scrape
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection
from tests.support.stores.small_disk import small_tmpfs
from tickwheel import sync
from tickwheel.errors import DiskFull, TickwheelError
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_broker.monitoring.web import READ_TIMEOUT_S

HTTP = {"http_listen": True, "http_port": 0}
ROUND_S = 0.2
# Looks more often than the real one, so that the test takes a second and not a quarter of a minute.
HANGING = f"""
import tickwheel_broker.services, tickwheel_broker.monitoring.vitals as vitals, trio
vitals.STALL_S, vitals.LOOK_S = 2.0, {ROUND_S}
async def hang(self, *arguments):
    async for batch in self.ready:
        await trio.sleep_forever()
tickwheel_broker.services.Services._dequeue_put_message = hang
"""
FULL = f"""
import tickwheel_broker.monitoring.vitals as vitals
vitals.FULL_S, vitals.LOOK_S = 1.0, {ROUND_S}
"""
NO_SERVER_EXTRA = "sys.modules['hypercorn'] = None"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Daemon(tmp_path_factory.mktemp("http") / "data", **HTTP) as daemon:
        yield http_url(daemon)


def http_url(daemon: Daemon) -> str:
    return str(daemon.wait_for_event("started")["http"])


def wait_for(url: str, is_it: Callable[[Answer], bool]) -> Answer:
    """Ask until the answer is the one that is waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = get(url)
        if is_it(answer):
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{url} went on to say {answer}")


def reasons(answer: Answer) -> list[str]:
    return [reason["code"] for reason in json.loads(answer.text)["reasons"]]


def test_a_healthy_broker(url: str) -> None:
    assert (get(f"{url}/livez").status, get(f"{url}/livez").text) == (200, "ok\n")
    ready = get(f"{url}/readyz")
    assert (ready.status, json.loads(ready.text)) == (200, {"ready": True, "reasons": []})
    assert scrape(url).value("ready") == 1


def test_other_pages_and_methods(url: str) -> None:
    assert get(f"{url}/").status == 404
    assert get(f"{url}/metrics", method="POST").status == 405
    head = get(f"{url}/livez", method="HEAD")
    assert (head.status, head.text) == (200, "")
    assert "server" not in {name.lower() for name in head.headers}


@pytest.mark.parametrize(
    "said",
    [
        b"\x00" * 100,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense",
    ],
    ids=["zeros", "endless headers", "another protocol"],
)
def test_nonsense_ends_only_its_connection(url: str, said: bytes) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as raw:
        try:
            raw.sendall(said)
            with suppress(OSError):  # it may have been closed for what was said
                raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass
        except ConnectionError:
            pass  # it hung up before everything was said
    assert get(f"{url}/livez").status == 200


def test_probes_are_answered_among_silent_connections(url: str) -> None:
    """The oldest that ask nothing are closed for those that do."""
    assert min(took_s_among_silent_connections(url) for _ in range(3)) < READ_TIMEOUT_S, (
        "it waits for them to be closed"
    )


def took_s_among_silent_connections(url: str) -> float:
    host, port = url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(300)]
    try:
        began_s = time.monotonic()
        for _ in range(5):
            assert get(f"{url}/livez").status == 200
        took_s = time.monotonic() - began_s
        assert silent[0].recv(1) == b""
        return took_s
    finally:
        for one in silent:
            one.close()


# -- not well ----------------------------------------------------------------------------------------------------


def test_a_part_that_hangs(tmp_path: Path) -> None:
    """The loop turns, clients are answered, and nothing reaches a topic: that is not alive."""
    with Daemon(tmp_path / "data", prelude=HANGING, **HTTP) as daemon:
        url = http_url(daemon)
        with sync.Client(daemon.url) as client:
            client.send_many("t", [b"x"] * 100)  # few would go another way
            assert wait_for(f"{url}/livez", lambda answer: answer.status == 503).text == "not alive\n"
            assert client.ping() > 0
        ready = get(f"{url}/readyz")
        assert (ready.status, reasons(ready)) == (503, ["hanging"])
        assert "DequeuePutMessage" in ready.text
        found = scrape(url)
        assert (found.value("ready"), found.value("hanging_parts")) == (0, 1)
        assert found.value("due_backlog") == 100
        assert found.value("oldest_overdue_seconds") > 1
        assert found.value("queue_messages", queue="ready") == 100


def test_a_full_disk(tmp_path: Path) -> None:
    with (
        small_tmpfs(tmp_path / "small", 48 << 20) as small,
        Daemon(small / "data", prelude=FULL, segment_bytes="32MiB", **HTTP) as daemon,
        sync.Client(daemon.url) as client,
    ):
        url = http_url(daemon)
        fill(client)
        full = wait_for(f"{url}/readyz", lambda answer: answer.status == 503)
        assert "disk_full" in reasons(full)
        assert get(f"{url}/livez").status == 200
        found = scrape(url)
        assert found.refusals("disk_full") >= 1
        assert found.value("ready") == 0


def fill(client: sync.Client) -> None:
    """Send until the disk is full."""
    for _ in range(1_000):
        try:
            client.send("t", bytes(1 << 20))
        except DiskFull:
            return
    raise AssertionError("the disk did not become full")


def test_a_broker_that_stops(tmp_path: Path) -> None:
    """Not ready while clients finish; alive to the end."""
    with Daemon(tmp_path / "data", drain_timeout="30s", **HTTP) as daemon:
        url = http_url(daemon)
        with RawConnection(daemon.url) as client:
            client.greet()
            daemon.process.terminate()
            assert reasons(wait_for(f"{url}/readyz", lambda answer: answer.status == 503)) == ["draining"]
            assert get(f"{url}/livez").status == 200
            assert scrape(url).value("ready") == 0
        assert daemon.wait_exit() == ExitCode.OK
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            get(f"{url}/livez")


def test_a_broken_disk_ends_the_process_also_with_http(tmp_path: Path) -> None:
    broken = tmp_path / "data.broken"
    prelude = f"""
import tickwheel_native.sync_thread
real_ended = tickwheel_native.sync_thread.ended
def ended(thread):
    if os.path.exists({str(broken)!r}):
        raise OSError(5, "Input/output error")
    return real_ended(thread)
tickwheel_native.sync_thread.ended = ended
"""
    with Daemon(tmp_path / "data", prelude=prelude, **HTTP) as daemon:
        url = http_url(daemon)
        with sync.Client(daemon.url, timeout=3) as client:
            client.send("t", b"safe")
            assert get(f"{url}/readyz").status == 200
            broken.write_text("")
            with pytest.raises(TickwheelError):
                client.send("t", b"unsafe", key="k")
        assert daemon.wait_exit() == ExitCode.IO_ERROR
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            get(f"{url}/livez")


# -- not starting ------------------------------------------------------------------------------------------------


def refused(daemon: Daemon, code: str) -> dict[str, str]:
    """It ends after one line with this code."""
    daemon.launch()
    assert daemon.wait_exit() != 0
    (event,) = [event for event in daemon.events() if event["level"] == "error"]
    assert event["code"] == code
    assert not daemon.directory.exists(), "a directory is made only by a broker that can start"
    return event


def test_without_the_extra(tmp_path: Path) -> None:
    event = refused(Daemon(tmp_path / "data", prelude=NO_SERVER_EXTRA, **HTTP), "extra_missing")
    assert "tickwheel[server]" in event["advice"]


def test_a_broker_without_http_needs_no_extra(tmp_path: Path) -> None:
    prelude = "for name in ('hypercorn', 'starlette', 'prometheus_client'): sys.modules[name] = None"
    with Daemon(tmp_path / "data", prelude=prelude) as daemon:
        assert "http" not in daemon.wait_for_event("started")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        event = refused(Daemon(tmp_path / "data", http_listen=True, http_port=taken), "address_in_use")
    assert "http_port" in event["advice"]


# -- TLS ---------------------------------------------------------------------------------------------------------


def test_https_with_the_certificate_of_the_broker(tmp_path: Path) -> None:
    files = Files(tmp_path / "certificates")
    tls = {"tls_certificate": files.certificate_path, "tls_key": files.key_path}
    with Daemon(tmp_path / "data", **tls, **HTTP) as daemon:
        url = http_url(daemon)
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=files.ca_path)
        assert get(f"{url}/readyz", context).status == 200
        with pytest.raises(OSError, match=r"(?i)reset|closed|disconnected|aborted|refused"):
            get(f"{url}/readyz".replace("https", "http"))
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(f"{url}/livez", ssl.create_default_context())
        assert get(f"{url}/livez", context).status == 200


def test_a_client_certificate_is_asked_for_over_https_too(tmp_path: Path) -> None:
    files = Files(tmp_path / "certificates")
    tls = {
        "tls_certificate": files.certificate_path,
        "tls_key": files.key_path,
        "tls_client_ca": files.client_ca_path,
    }
    with Daemon(tmp_path / "data", **tls, **HTTP) as daemon:
        url = http_url(daemon)
        context = ssl.create_default_context(cafile=files.ca_path)
        with pytest.raises(OSError, match=r"(?i)certificate.required|reset|eof|closed"):
            get(f"{url}/metrics", context)
        context.load_cert_chain(*files.client("prometheus"))
        assert get(f"{url}/metrics", context).status == 200


# -- tokens ------------------------------------------------------------------------------------------------------


def test_a_token_is_needed_for_metrics_once_there_is_one(tmp_path: Path) -> None:
    """Without one: whether it lives, whether it is ready, and nothing else."""
    data, shell = tmp_path / "data", Shell(tmp_path)

    def token(name: str, grant: str) -> str:
        done = shell.run("tokens", "create", name, "--grant", grant, "--json", "--data", str(data))
        return str(json.loads(done.stdout)["token"])

    watcher, admin, producer = (
        token("watcher", "query:*"),
        token("admin", "admin:*"),
        token("shop", "publish:*"),
    )
    with Daemon(data, **HTTP) as daemon:
        url = http_url(daemon)
        assert get(f"{url}/livez").text == "ok\n"
        assert json.loads(get(f"{url}/readyz").text) == {"ready": True}
        refused = get(f"{url}/metrics")
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert "tickwheel_" not in refused.text
        for wrong in ("twk_nonsense", f"{watcher}x", producer):
            assert get(f"{url}/metrics", Authorization=f"Bearer {wrong}").status == 401
        assert get(f"{url}/metrics", Authorization=f"Basic {watcher}").status == 401
        for right in (watcher, admin):
            bearer = {"Authorization": f"Bearer {right}"}
            assert scrape(url, **bearer).value("ready") == 1
            assert json.loads(get(f"{url}/readyz", **bearer).text) == {"ready": True, "reasons": []}
