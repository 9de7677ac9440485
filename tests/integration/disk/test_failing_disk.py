"""A disk that fails under the real daemon, by fault injection into its system calls: it says so and ends with its
documented code; nothing is acknowledged from then on, and a restart finds all that was acknowledged."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.run.warned import filters_of_a_process
from tickwheel.errors import DiskFull
from tickwheel_broker.exit_codes import ExitCode

SETTINGS = {"segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}


class Injected:
    """strace, attached to a running daemon, which makes its system calls fail from a moment on."""

    def __init__(self, daemon: Daemon, tampering: str, log: Path) -> None:
        calls = tampering.partition(":")[0]
        self._log = log
        command = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={calls}", "-e", f"inject={tampering}"]
        self._process = subprocess.Popen(
            [*command, "-p", str(daemon.process.pid)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def __enter__(self) -> Injected:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=PATIENCE_S)

    @property
    def count(self) -> int:
        """How many calls were made to fail so far."""
        return self._log.read_text().count("(INJECTED)") if self._log.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def _can_inject(tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    log = tmp_path_factory.mktemp("strace") / "log"
    command = ["strace", "-o", str(log), "-e", "inject=fdatasync:error=EIO", sys.executable, "-c", "pass"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")


async def send_until_refused(client: tickwheel.Client, acknowledged: dict[str, int]) -> None:
    """Sends, one batch after the other, until the broker does not answer any more."""
    serial = 0
    while True:
        keys = [f"k{serial + index}" for index in range(20)]
        serial += 20
        results = await client.send_many("t", [bytes(2_000)] * 20, keys=keys, delay_ms=3_600_000)
        results.raise_for_errors()
        acknowledged.update(zip(keys, results.ids(), strict=True))


async def break_while_sending(
    daemon: Daemon, tampering: str, log: Path, expected: ExitCode = ExitCode.IO_ERROR
) -> dict[str, int]:
    """Everything that was acknowledged until the daemon gave up."""
    acknowledged: dict[str, int] = {}
    async with tickwheel.Client(daemon.url, timeout=PATIENCE_S) as client, trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                await send_until_refused(client, acknowledged)
            except tickwheel.TickwheelError:
                return  # it ends, and knows nothing more

        nursery.start_soon(send)
        with trio.fail_after(PATIENCE_S):
            while len(acknowledged) < 200:
                await trio.sleep(0.01)
        with Injected(daemon, tampering, log) as injected:
            code = await trio.to_thread.run_sync(daemon.wait_exit)
            assert injected.count >= 1
        nursery.cancel_scope.cancel()
    assert code == expected
    return acknowledged


async def check_nothing_is_lost(daemon: Daemon, acknowledged: dict[str, int]) -> None:
    """By sending all of it again: each key is known, with the number that was confirmed."""
    async with tickwheel.Client(daemon.url) as client:
        keys = list(acknowledged)
        for start in range(0, len(keys), 100):
            some = keys[start : start + 100]
            again = await client.send_many("t", [b"again"] * len(some), keys=some, delay_ms=3_600_000)
            assert [(one.id, one.duplicate) for one in again if not isinstance(one, Exception)] == [
                (acknowledged[key], True) for key in some
            ]


@pytest.mark.promise("when-is-a-message-safe")
@pytest.mark.parametrize(
    "tampering",
    [
        pytest.param("fdatasync:error=EIO:when=1", id="the first sync"),
        pytest.param("fdatasync:error=EIO:when=7", id="a later sync"),
        pytest.param("fdatasync:error=ENOSPC:when=3", id="no space at a sync"),
        pytest.param("pwrite64:error=EIO:when=5+", id="writing"),
    ],
)
async def test_a_failing_disk_ends_the_daemon(tmp_path: Path, tampering: str) -> None:
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        acknowledged = await break_while_sending(daemon, tampering, tmp_path / "strace")
        events = daemon.events()
        told = [event for event in events if event.get("code") == "log_failed"]
        assert told, events[-5:]
        assert "disk" in told[0]["advice"]
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        await check_nothing_is_lost(daemon, acknowledged)
        assert daemon.stop() == 0


@pytest.mark.promise("a-full-disk")
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EROFS"])
async def test_no_space_at_writing_is_a_full_disk(tmp_path: Path, error: str) -> None:
    """Some file systems say only when it is written that what was allocated has no room."""
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        tampering = f"pwrite64:error={error}:when=5+"
        acknowledged = await break_while_sending(daemon, tampering, tmp_path / "strace", ExitCode.DISK_FULL)
        (told,) = (event for event in daemon.events() if event.get("code") == "disk_full")
        assert os.strerror(getattr(errno, error)) in told["reason"]
        assert "Make room" in told["advice"]
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        await check_nothing_is_lost(daemon, acknowledged)
        assert daemon.stop() == 0


async def send_until_full(client: tickwheel.Client) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            (await client.send_many("t", [bytes(60_000)] * 4, delay_ms=3_600_000)).raise_for_errors()


@pytest.mark.promise("a-full-disk")
async def test_no_space_at_allocating_refuses_sends_and_goes_on(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        async with (
            tickwheel.Client(daemon.url, timeout=PATIENCE_S) as client,
            client.subscribe("t") as subscription,
        ):
            sent = await client.send("t", b"first", delay_ms=300)
            with Injected(daemon, "fallocate:error=ENOSPC", tmp_path / "strace") as injected:
                with pytest.raises(DiskFull):
                    await send_until_full(client)
                assert injected.count >= 1
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                assert message.id == sent.id
                await message.ack(confirm=True)
            assert (await client.send("t", b"there is room again")).id > sent.id
        assert daemon.stop() == 0


def test_a_disk_that_cannot_be_read_at_a_start(tmp_path: Path) -> None:
    """The checkpoint cannot be read: the start is refused or does without, and a later one finds everything."""
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        assert daemon.stop() == 0
    log = tmp_path / "strace"
    arguments = ["serve", "--data", str(tmp_path / "data"), "--listen-port", "0"]
    main = [sys.executable, "-c", "from tickwheel_cli.main import main; main()", *arguments]
    path = str(tmp_path / "data" / "checkpoint")
    command = ["strace", "-f", "-qq", "-o", str(log), "-P", path, "-e", "trace=read"]
    started = subprocess.run(
        [*command, "-e", "inject=read:error=EIO", *main],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": filters_of_a_process()},
    )
    assert "(INJECTED)" in log.read_text()
    assert started.returncode == ExitCode.IO_ERROR, started.stderr
    assert "Traceback" not in started.stderr
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        assert daemon.stop() == 0
