"""What systemd hears from the real daemon, over the socket that it would give it."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import sync
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_broker.monitoring.systemd import ServiceManager

pytestmark = pytest.mark.alone

WATCHDOG_S = 1.0
# A pid that is our own in the daemon, whose environment is set before it exists.
OWN_PID = "os.environ['WATCHDOG_PID'] = str(os.getpid())"
HANGING = """
import tickwheel_broker.services, tickwheel_broker.monitoring.vitals as vitals, trio
vitals.STALL_S, vitals.LOOK_S = 1.0, 0.1
async def hang(self):
    await trio.sleep_forever()
tickwheel_broker.services.Services._enqueue_get = hang
"""
BLOCKED = """
import time
from tickwheel_broker.requests.figures import FigureRequests
def stats(self, *request):
    time.sleep(3600)
FigureRequests.stats = stats
"""


class Manager:
    """The receiving end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(PATIENCE_S)
        self.heard: list[dict[str, str]] = []

    def next(self) -> dict[str, str]:
        """The next message."""
        said = self._socket.recv(1 << 16).decode()
        fields = dict(line.split("=", 1) for line in said.splitlines())
        self.heard.append(fields)
        return fields

    def wait_for(self, name: str) -> dict[str, str]:
        """The next message with this field."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if name in (fields := self.next()):
                return fields
        raise AssertionError(f"{name} was not said: {self.heard}")

    def is_silent(self, name: str, for_s: float) -> bool:
        """Whether no message with this field comes for so long."""
        deadline = time.monotonic() + for_s
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left_s)[0] and name in self.next():
                return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    name = (
        f"@tickwheel-test-{os.getpid()}-{tmp_path.name}"
        if request.param == "abstract"
        else str(tmp_path / "n")
    )
    manager = Manager("\0" + name[1:] if name[0] == "@" else name)
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG_S * 1e6)))
    yield manager
    manager.close()


def test_from_ready_to_stopping(tmp_path: Path, manager: Manager) -> None:
    with Daemon(tmp_path / "data", prelude=OWN_PID) as daemon:
        assert manager.wait_for("READY") == {"READY": "1"}
        assert "connections" in manager.wait_for("STATUS")["STATUS"]
        for _ in range(3):
            assert manager.wait_for("WATCHDOG") == {"WATCHDOG": "1"}
        before_us = time.monotonic_ns() // 1_000
        daemon.process.send_signal(signal.SIGHUP)
        reloading = manager.wait_for("RELOADING")
        assert before_us <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1_000
        assert manager.wait_for("READY") == {"READY": "1"}
        daemon.process.terminate()
        assert manager.wait_for("STOPPING") == {"STOPPING": "1"}
        assert daemon.wait_exit() == ExitCode.OK


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_daemon_that_cannot_start_is_never_ready(tmp_path: Path, manager: Manager) -> None:
    (tmp_path / "data").write_text("not a directory")
    daemon = Daemon(tmp_path / "data", prelude=OWN_PID)
    daemon.launch()
    assert daemon.wait_exit() != ExitCode.OK
    assert manager.is_silent("READY", 0.2)


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_part_of_the_engine_that_hangs_starves_the_watchdog(tmp_path: Path, manager: Manager) -> None:
    """The loop turns and answers all the while."""
    with Daemon(tmp_path / "data", prelude=OWN_PID + HANGING) as daemon, sync.Client(daemon.url) as client:
        manager.wait_for("WATCHDOG")
        client.send("t", b"x")
        deadline = time.monotonic() + PATIENCE_S
        while not manager.is_silent("WATCHDOG", 2 * WATCHDOG_S):
            assert time.monotonic() < deadline, "the watchdog is fed on"
        assert client.ping() > 0


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_loop_that_does_not_turn_starves_the_watchdog(tmp_path: Path, manager: Manager) -> None:
    with Daemon(tmp_path / "data", prelude=OWN_PID + BLOCKED) as daemon:
        manager.wait_for("WATCHDOG")
        with sync.Client(daemon.url, timeout=0.5) as client, pytest.raises(TimeoutError):
            client.stats()
        deadline = time.monotonic() + PATIENCE_S
        while not manager.is_silent("WATCHDOG", 2 * WATCHDOG_S):  # what it said before is there still
            assert time.monotonic() < deadline, "the watchdog is fed on"
        daemon.kill()


def test_a_watchdog_that_is_meant_for_another_process() -> None:
    there = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "5000000"}
    assert ServiceManager(there).watchdog_s == 5.0
    assert ServiceManager(there | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 5.0
    assert ServiceManager(there | {"WATCHDOG_PID": "1"}).watchdog_s is None
    assert ServiceManager(there | {"WATCHDOG_USEC": "soon"}).watchdog_s is None
    assert ServiceManager(there | {"WATCHDOG_USEC": "0"}).watchdog_s is None


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "vsock:2:1", "relative"])
def test_nobody_listens(address: str) -> None:
    """Then nothing is sent, and nothing fails."""
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    manager.tell(READY=1)
    manager.reloading()
    assert manager.is_there == (address == "/nowhere/at/all")
