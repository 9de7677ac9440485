"""What happens to a data directory while, or before, a broker uses it: each ends it with words and an exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.integration.daemon.test_daemon_lifecycle import ends_with
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import TickwheelError
from tickwheel_broker.exit_codes import ExitCode

NO_SOCKET = {"unix_socket": ""}


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_is_no_data_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    event = ends_with(
        Daemon(tmp_path / "data", data_dir=str(tmp_path / path), **NO_SOCKET), ExitCode.BAD_CONFIG
    )
    assert (event["code"], "is a file" in event["reason"]) == ("bad_directory", True)


@pytest.mark.parametrize("name", ["loop", "x" * 300, f"{'x' * 200}/" * 19 + "x" * 190])
def test_a_path_that_leads_nowhere_is_no_data_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    event = ends_with(
        Daemon(tmp_path / "data", data_dir=str(tmp_path / name), **NO_SOCKET), ExitCode.BAD_CONFIG
    )
    assert event["code"] == "bad_directory", event
    assert tmp_path.name in event["reason"]


def test_a_file_of_tokens_that_is_a_loop_is_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tokens.json").symlink_to("tokens.json")
    event = ends_with(Daemon(tmp_path / "data", **NO_SOCKET), ExitCode.BAD_CONFIG)
    assert event["code"] == "bad_tokens_file"


def test_too_little_address_space(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))"
    event = ends_with(Daemon(tmp_path / "data", prelude=limit, **NO_SOCKET), ExitCode.BAD_CONFIG)
    assert event["code"] == "no_address_space"
    assert "ulimit -v" in event["advice"]


@pytest.mark.promise("what-survives-a-restart-and-how-fast-it-comes-back")
def test_a_lock_file_that_is_deleted_lets_nobody_in(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as first:
        (tmp_path / "data" / "LOCK").unlink()
        second = Daemon(tmp_path / "data", **NO_SOCKET)
        second._log_path = tmp_path / "second.log.jsonl"
        assert ends_with(second, ExitCode.LOCKED)["code"] == "locked"
        assert first.stop() == 0


def replaced(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.mkdir()


GOING: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "renamed": lambda path: path.rename(path.with_name("elsewhere")),
    "replaced": replaced,
    "emptied": lambda path: [shutil.rmtree(path / "commitlog"), (path / "checkpoint").unlink()],
}


async def send_on(client: tickwheel.Client) -> None:
    while True:
        await client.send("t", b"into the void")
        await trio.sleep(0.05)


@pytest.mark.promise("what-survives-a-restart-and-how-fast-it-comes-back")
@pytest.mark.parametrize("how", GOING)
async def test_a_directory_that_goes_ends_it(tmp_path: Path, how: str) -> None:
    with Daemon(tmp_path / "data") as daemon:
        async with tickwheel.Client(daemon.url, timeout=1, connect_timeout=1) as client:
            await client.send("t", b"before")
            GOING[how](tmp_path / "data")
            with trio.fail_after(20), pytest.raises(TickwheelError):
                await send_on(client)
        assert await trio.to_thread.run_sync(daemon.wait_exit) == ExitCode.IO_ERROR
        (event,) = [event for event in daemon.events() if event["event"] == "stopped"]
        assert event["code"] == "directory_gone", event


@pytest.mark.promise("a-full-disk")
async def test_a_page_that_cannot_be_read_ends_it_with_words(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        async with tickwheel.Client(daemon.url, timeout=1, connect_timeout=1) as client:
            await client.send("t", b"before")
            os.truncate(tmp_path / "data" / "messages.table", 4096)
            with trio.fail_after(20), pytest.raises(TickwheelError):
                await client.send("t", b"its row has no page")
        assert await trio.to_thread.run_sync(daemon.wait_exit) == ExitCode.DISK_FULL
        last = daemon.events()[-1]
        assert (last["code"], "SIGBUS" in last["reason"]) == ("page_failed", True)
        assert last["advice"]


def test_it_may_be_told_to_stop_again_and_again(tmp_path: Path) -> None:
    """The second one while it stops, the others until it has ended. A thousand a second: trio's handler of signals
    calls itself when the next one comes before it has returned.
    """
    with Daemon(tmp_path / "data") as daemon:
        daemon.process.send_signal(signal.SIGTERM)
        while daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGTERM)
            daemon.process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert daemon.process.returncode == 0
        *_, last = [event["event"] for event in daemon.events() if event["event"] != "stopping already"]
        assert last == "stopped"


@pytest.mark.parametrize("number", [1, 2])
def test_without_standard_streams(tmp_path: Path, number: int) -> None:
    """What is closed is not given to a file of the store, into which words would be written."""
    notes = tmp_path / "notes"
    prelude = (
        f"os.close({number}); sys.stderr = None if {number} == 2 else sys.stderr\n"
        "import tickwheel_broker.daemon as d, functools\n"
        f"def ready(running): open({str(notes)!r}, 'w').write(os.readlink('/proc/self/fd/{number}')); running.stop()\n"
        "run = functools.partial(run, ready=ready)"
    )
    daemon = Daemon(tmp_path / "data", prelude=prelude)
    daemon.launch()
    assert daemon.wait_exit() == 0
    assert json.dumps(notes.read_text()) == '"/dev/null"'
