"""Backups of a real daemon under load, restored after it was killed; and the commands that make them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio

import tickwheel
from tests.integration.daemon.test_daemon_lifecycle import ends_with
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import TickwheelError
from tickwheel.sync import Client
from tickwheel_broker.exit_codes import ExitCode
from timerlog.layout import MessageState
from timerlog.store import Store, StoreSettings

SETTINGS = {"ack_wait": "1s", "segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}


async def send_on(client: tickwheel.Client, acknowledged: list[int], stop: trio.Event) -> None:
    while not stop.is_set():
        results = await client.send_many("t", [bytes(5_000)] * 40, delay_ms=3_600_000, auto_key=True)
        acknowledged.extend(results.ids())


async def consume_on(client: tickwheel.Client, acked: list[int]) -> None:
    async with client.subscribe("now", group="g", credit=10) as subscription:
        async for message in subscription:
            with suppress(TickwheelError):  # the machine is busy, and the lease ended meanwhile
                await message.ack(confirm=True)
                acked.append(message.id)


async def test_a_backup_under_load_holds_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    acknowledged: list[int] = []
    acked: list[int] = []
    with Daemon(tmp_path / "data", **SETTINGS) as daemon:
        async with tickwheel.Client(daemon.url) as client, trio.open_nursery() as nursery:
            stop = trio.Event()
            await client.send_many("now", [b"now"] * 200)
            await client.create_schedule("weekly", "t", cron="0 9 * * MON")
            nursery.start_soon(send_on, client, acknowledged, stop)
            nursery.start_soon(consume_on, client, acked)
            with trio.fail_after(PATIENCE_S):
                while len(acknowledged) < 4_000 or len(acked) < 100:
                    await trio.sleep(0.01)
            before, acked_before = set(acknowledged), set(acked)
            made = await trio.to_thread.run_sync(shell.json, "backup", "data", "copy")
            with trio.fail_after(PATIENCE_S):
                while len(acknowledged) == len(before):
                    await trio.sleep(0.01)
            stop.set()
            nursery.cancel_scope.cancel()
        daemon.kill()
    assert made["messages"] >= len(before) + 200
    assert len(made["segments"]) > 1

    assert "Restored: new" in shell.text("restore", "copy", "new")
    with Daemon(tmp_path / "new", **SETTINGS) as daemon:
        async with tickwheel.Client(daemon.url) as client:
            schedules = await client.schedules()
            assert [schedule.name for schedule in schedules] == ["weekly"]
            # What was acked when the copy was made stays acked; the rest comes again.
            again: set[int] = set()
            async with client.subscribe("now", group="g", credit=10) as subscription:
                with trio.fail_after(PATIENCE_S):  # leases that were given then have to end first
                    while (await client.stats()).acked < 200:
                        message = await subscription.receive(timeout=0.2)
                        if message is not None:
                            again.add(message.id)
                            with suppress(TickwheelError):
                                await message.ack(confirm=True)
            assert not again & acked_before
        assert daemon.stop() == 0
    assert shell.json("inspect", "new")["ok"]
    store = Store.open(tmp_path / "new", StoreSettings(max_frame_bytes=256 * 1024), 0)
    states = store.tables.messages.take(np.array(sorted(before), np.uint64), "state")
    assert set(states.tolist()) == {MessageState.SCHEDULED}
    store.close()


def test_the_commands(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.run("--data", "d", "send", "tea", "ready", "--in", "50ms")
    assert "Backed up and verified: copy" in shell.text("backup", "d", "copy", "--rate", "0")
    assert "The backup is whole: copy" in shell.text("restore", "--verify", "copy")
    assert shell.error("backup", "d", "copy", code=1)["code"] == "not_empty"
    assert shell.error("restore", "copy", "d", code=1)["code"] == "not_empty"
    assert shell.run("restore", "copy", code=2).stdout == b""
    shell.run("restore", "copy", "new")
    assert shell.text("receive", "tea", "--count", "1", "--data", "new").endswith("  1  ready\n")

    segment = next((tmp_path / "copy" / "commitlog").iterdir())
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    segment.write_bytes(content)
    error = shell.error("restore", "copy", "newer", code=65)
    assert error["code"] == "bad_backup"
    assert not (tmp_path / "newer").exists()


def test_a_restored_broker_says_that_it_is_open(tmp_path: Path) -> None:
    """Tokens are in no backup: what was closed is open to every process of the machine, until they are put back."""
    shell, data = Shell(tmp_path), tmp_path / "data"
    shell.run("tokens", "create", "ada", "--grant", "all:*", "--data", str(data))
    with Daemon(data) as daemon:
        assert "access" not in daemon.wait_for_event("started")
    shell.run("backup", "data", "copy")
    shell.run("restore", "copy", "new")
    with Daemon(tmp_path / "new") as daemon:
        assert daemon.wait_for_event("started")["access"] == "without tokens"
        warning = daemon.wait_for_event("whoever can connect may do everything")
        assert warning["level"] == "warning"
        assert "tokens.json" in warning["advice"]
    shutil.copy(data / "tokens.json", tmp_path / "new")
    with Daemon(tmp_path / "new") as daemon:
        started = daemon.events()
        assert "access" not in daemon.wait_for_event("started")
        last = max(place for place, event in enumerate(started) if event["event"] == "started")
        assert "whoever" not in str(started[last - 3 :])
    with Daemon(tmp_path / "fresh") as daemon:
        assert daemon.wait_for_event("started")["access"] == "without tokens"
        assert not [event for event in daemon.events() if "whoever" in event["event"]], "it is as it was made"


def test_a_restore_says_with_which_limits_a_broker_starts(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with Daemon(tmp_path / "data", **SETTINGS) as daemon, Client(daemon.url) as client:
        client.send("t", b"kept")
    shell.run("backup", "data", "copy")
    told = shell.run("restore", "copy", "new").stderr.decode()
    options = told.partition("with: ")[2].split()
    assert options == ["--max-frame-bytes", "4607KiB", "--max-body-bytes", "4096KiB"]
    chosen = {options[0][2:].replace("-", "_"): options[1], options[2][2:].replace("-", "_"): options[3]}
    refused = Daemon(tmp_path / "new")
    assert ends_with(refused, ExitCode.BAD_CONFIG)["code"] == "bad_config"
    with Daemon(tmp_path / "new", **chosen) as daemon, Client(daemon.url) as client:
        message = client.message(id=1)
        assert message is not None
        assert message.body == b"kept"
    with Daemon(tmp_path / "usual") as daemon, Client(daemon.url) as client:
        client.send("t", b"kept")
    shell.run("backup", "usual", "other")
    told = shell.run("restore", "other", "third").stderr.decode()
    assert told.startswith("Tokens are in no backup: put tokens.json back")
    assert "max_frame_bytes" not in told


@pytest.mark.parametrize("arguments", [("backup", "typo", "copy"), ("restore", "typo", "new")])
def test_a_misspelt_directory(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    Shell(tmp_path).run(*arguments, code=2)
    assert not list(tmp_path.iterdir())
