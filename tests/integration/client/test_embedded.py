"""The broker inside the user's process, and the one for tests with its own clock."""

from __future__ import annotations

import doctest
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import tickwheel
import tickwheel.testing
from tests.support.clients.http_client import get
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import BadArgument, ConfigError, DirectoryLocked, NotConnected, TickwheelError
from tickwheel.testing import ManualClock

pytest_plugins = ["tickwheel.testing.fixtures"]


def test_blocking(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        sent = client.send("t", b"hello")
        with client.subscribe("t") as subscription:
            message = next(iter(subscription))
            assert (message.id, message.body) == (sent.id, b"hello")
            message.ack(confirm=True)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async_on_both_loops(tmp_path: Path, backend: str) -> None:
    async def work() -> None:
        async with tickwheel.embedded(tmp_path / "data") as broker, broker.client() as client:
            await client.send("t", b"hello")
            async with client.subscribe("t") as subscription:
                with anyio.fail_after(PATIENCE_S):
                    message = await anext(aiter(subscription))
                assert message.body == b"hello"
                await message.ack(confirm=True)

    anyio.run(work, backend=backend)


def test_processes_beside_it(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker:
        assert broker.web_urls == []
    with tickwheel.embedded(tmp_path / "data", web=True, web_port=0) as broker:
        (url,) = broker.web_urls
        assert get(f"{url}/v1/stats").status == 200


def test_one_directory_one_owner(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data"), pytest.raises(DirectoryLocked, match=str(os.getpid())):
        tickwheel.embedded(tmp_path / "data").start()
    with Daemon(tmp_path / "data") as daemon, pytest.raises(DirectoryLocked, match=str(daemon.process.pid)):
        tickwheel.embedded(tmp_path / "data").start()


def test_the_daemon_can_serve_the_same_directory_later(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        sent = client.send("t", b"1", key="k", delay=timedelta(days=1))
    with Daemon(tmp_path / "data") as daemon, tickwheel.sync.Client(daemon.url) as client:
        assert client.send("t", b"2", key="k").id == sent.id
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        assert client.cancel("t", key="k") == "cancelled"


def test_errors_of_the_start_are_raised_in_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean ack_wait"):
        tickwheel.embedded(tmp_path / "data", ack_wiat="1s").start()
    in_a_cluster: Any = {"cluster": "kafka://127.0.0.1:9092/name", "node": 1}
    with pytest.raises(ConfigError, match="no node of a cluster"):
        tickwheel.embedded(tmp_path / "data", **in_a_cluster).start()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(TickwheelError):
        tickwheel.embedded(tmp_path / "file").start()
    broker = tickwheel.embedded(tmp_path / "data")
    with pytest.raises(NotConnected):
        broker.client()
    with broker, pytest.raises(BadArgument, match="started already"):
        broker.start()
    broker.close()


def test_the_socket_is_private_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())  # other tests may have left theirs
    long = tmp_path / ("x" * 120)
    long.mkdir()
    for directory in (str(tmp_path), str(long)):
        monkeypatch.setattr("tempfile.tempdir", directory)
        with tickwheel.embedded(tmp_path / "data") as broker:
            path = Path(broker.url.removeprefix("tickwheel+unix://"))
            assert path.parent.stat().st_mode & 0o077 == 0
        assert not path.parent.exists()
    assert not [
        thread for thread in set(threading.enumerate()) - before if thread.name.startswith("tickwheel")
    ]


def test_a_failing_disk_is_told_at_the_latest_on_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> int:
        raise OSError(5, "Input/output error")

    broker = tickwheel.embedded(tmp_path / "data")
    broker.start()
    with broker.sync_client(timeout=2) as client:
        client.send("t", b"safe")
        monkeypatch.setattr("tickwheel_native.sync_thread.ended", broken)
        with pytest.raises(TickwheelError):
            client.send("t", b"unsafe")
    with pytest.raises(TickwheelError, match="Input/output error") as caught:
        broker.close()
    assert caught.value.code == "log_failed"


def test_what_its_documentation_shows_works() -> None:
    assert doctest.testmod(tickwheel.testing).failed == 0


def test_years_pass_in_no_time(tickwheel_broker: tickwheel.testing.TestBroker) -> None:
    clock = tickwheel_broker.clock
    with tickwheel_broker.sync_client() as client, client.subscribe("t") as subscription:
        for years in (10, 1, 1000):
            client.send("t", b"%d" % years, delay=timedelta(days=365 * years))
        messages = iter(subscription)
        for years, step in ((1, 1), (10, 9), (1000, 990)):
            clock.advance(timedelta(days=365 * step))
            message = next(messages)
            assert message.body == b"%d" % years
            assert message.deliver_at <= clock.now()
            message.ack(confirm=True)


@pytest.mark.promise("R33")
async def test_nothing_is_delivered_before_its_millisecond() -> None:
    start = datetime(2031, 5, 1, 9, tzinfo=UTC)
    async with (
        tickwheel.testing.broker(start=start) as broker,
        broker.client() as client,
        client.subscribe("t") as subscription,
    ):
        await client.send("t", b"x", deliver_at=start + timedelta(seconds=1))
        broker.clock.advance(timedelta(milliseconds=999))
        with trio.move_on_after(0.3) as early:
            await anext(aiter(subscription))
        assert early.cancelled_caught
        broker.clock.advance(timedelta(milliseconds=1))
        with trio.fail_after(PATIENCE_S):
            assert (await anext(aiter(subscription))).body == b"x"


async def test_a_lease_ends_on_the_same_clock() -> None:
    async with tickwheel.testing.broker(ack_wait="1h", max_backoff="2h") as broker, broker.client() as client:
        await client.send("t", b"x")
        async with client.subscribe("t") as subscription:
            messages = aiter(subscription)
            with trio.fail_after(PATIENCE_S):
                assert (await anext(messages)).epoch == 1
                broker.clock.advance(timedelta(hours=1, milliseconds=1))
                assert (await anext(messages)).epoch == 2


@pytest.mark.promise("when-the-clock-jumps")
async def test_a_clock_set_back_neither_loses_nor_repeats() -> None:
    clock_start = datetime(2031, 5, 1, tzinfo=UTC)
    async with (
        tickwheel.testing.broker(start=clock_start) as broker,
        broker.client() as client,
        client.subscribe("t") as subscription,
    ):
        messages = aiter(subscription)
        await client.send("t", b"now")
        await client.send("t", b"later", delay=timedelta(hours=1))
        with trio.fail_after(PATIENCE_S):
            message = await anext(messages)
            assert message.body == b"now"
            await message.ack(confirm=True)
        broker.clock.set(clock_start - timedelta(days=1))
        with trio.move_on_after(1.5) as nothing:
            await anext(messages)
        assert nothing.cancelled_caught
        broker.clock.set(clock_start + timedelta(hours=1))
        with trio.fail_after(PATIENCE_S):
            assert (await anext(aiter(subscription))).body == b"later"


def test_the_testing_directory_is_removed() -> None:
    with tickwheel.testing.broker() as broker:
        directory = Path(broker.directory)
        assert directory.is_dir()
        assert isinstance(broker.clock, ManualClock)
    assert not directory.exists()
