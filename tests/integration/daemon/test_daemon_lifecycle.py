"""Starting, stopping, and everything that keeps the daemon from starting: each with its exit code and advice."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import tickwheel
import tickwheel.sync
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection, without_privileges
from tickwheel.errors import NotConnected
from tickwheel.protocol.bodies.requests import (
    OpenTopic,
    Subscribe,
    SubscribeOk,
    Unsubscribe,
    UnsubscribeOk,
)
from tickwheel.protocol.frames import Frame, FrameType, encode_frame
from tickwheel.protocol.messages import Delivery, decode_deliver
from tickwheel_broker.exit_codes import ExitCode

BROKEN_SYNC = """
import tickwheel_native.sync_thread
real_ended = tickwheel_native.sync_thread.ended
def ended(thread):
    if os.path.exists(json.loads(sys.argv[1])["data_dir"] + ".broken"):
        raise OSError(5, "Input/output error")
    return real_ended(thread)
tickwheel_native.sync_thread.ended = ended
"""


def ends_with(daemon: Daemon, code: ExitCode) -> dict[str, Any]:
    """The daemon ends with this exit code, after one line that says why and what to do."""
    daemon.launch()
    assert daemon.wait_exit() == code
    (event,) = [event for event in daemon.events() if event["level"] == "error"]
    assert event["reason"]
    assert event["advice"]
    assert "exception" not in event
    return event


# -- not starting ------------------------------------------------------------------------------------------------


@pytest.mark.promise("what-survives-a-restart-and-how-fast-it-comes-back")
def test_a_locked_directory_names_its_owner(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as first:
        second = Daemon(tmp_path / "data", unix_socket="")
        second_log = tmp_path / "second.log.jsonl"
        second._log_path = second_log
        event = ends_with(second, ExitCode.LOCKED)
        assert str(first.process.pid) in event["reason"]
        assert event["code"] == "locked"


def test_a_read_only_directory(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    os.chmod(directory, 0o555)
    daemon = Daemon(directory, prelude=without_privileges(), unix_socket="")
    assert ends_with(daemon, ExitCode.READ_ONLY)["code"] == "read_only"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        daemon = Daemon(tmp_path / "data", listen_port=other.getsockname()[1])
        assert ends_with(daemon, ExitCode.ADDRESS_IN_USE)["code"] == "address_in_use"


def test_a_unix_socket_in_use(tmp_path: Path) -> None:
    with Daemon(tmp_path / "one", unix_socket=str(tmp_path / "s")):
        daemon = Daemon(tmp_path / "two", unix_socket=str(tmp_path / "s"))
        assert ends_with(daemon, ExitCode.ADDRESS_IN_USE)["code"] == "address_in_use"


def test_a_file_where_the_socket_should_be_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    ends_with(Daemon(tmp_path / "data", unix_socket=str(path)), ExitCode.ADDRESS_IN_USE)
    assert path.read_text() == "data"


def test_a_log_damaged_in_the_middle(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon, RawConnection(daemon.url) as raw:
        raw.greet()
        for number in range(50):
            raw.request(FrameType.OPEN_TOPIC, OpenTopic(f"topic-{number}", True))
    segment = min((tmp_path / "data" / "commitlog").iterdir())
    with open(segment, "r+b") as file:
        file.seek(500)
        file.write(b"\xff" * 50)
    for path in (tmp_path / "data").iterdir():
        if path.is_file() and path.name != "LOCK":
            path.unlink()
    event = ends_with(Daemon(tmp_path / "data"), ExitCode.DAMAGED)
    assert event["code"] == "damaged"


# -- stopping ----------------------------------------------------------------------------------------------------


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    await check_that_nothing_is_lost(tmp_path, stop=lambda daemon: daemon.stop())


@pytest.mark.promise("R11", "S13", "what-survives-a-restart-and-how-fast-it-comes-back")
async def test_a_kill_keeps_everything_that_was_confirmed(tmp_path: Path) -> None:
    await check_that_nothing_is_lost(tmp_path, stop=lambda daemon: daemon.kill())


async def check_that_nothing_is_lost(tmp_path: Path, stop: Callable[[Daemon], object]) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    with Daemon(tmp_path / "data", ack_wait="1s") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.send_many("t", [b"now-%d" % n for n in range(100)])
            await client.send("t", b"soon", deliver_at=due)
            far = await client.send("t", b"far", delay=timedelta(days=3_000), key="k")
            async with client.subscribe("t", batch=60) as subscription:  # some are left for after the stop
                batch = await anext(aiter(subscription.batches()))
                acked = [message.body for message in batch]
                await batch.ack(confirm=True)
        stop(daemon)
    with Daemon(tmp_path / "data", ack_wait="1s") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            bodies = []
            async with client.subscribe("t") as subscription:
                with trio.fail_after(PATIENCE_S):
                    async for message in subscription:
                        bodies.append(message.body)
                        await message.ack()
                        if message.body == b"soon":
                            assert datetime.now(UTC) >= due
                        if len(acked) + len(bodies) == 101:
                            break
            assert sorted(acked + bodies) == sorted([*(b"now-%d" % n for n in range(100)), b"soon"])
            again = await client.send("t", b"again", key="k")
            assert (again.id, again.duplicate) == (far.id, True)
            assert await client.cancel(id=far.id) == "cancelled"


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
def test_shutdown_says_goodbye_and_leaves_leases_with_their_holders(tmp_path: Path) -> None:
    """Unless they leave in order meanwhile."""
    settings = {"ack_wait": "1h", "max_backoff": "2h", "drain_timeout": "300ms"}
    with (
        Daemon(tmp_path / "data", **settings) as daemon,
        RawConnection(daemon.url) as staying,
        RawConnection(daemon.url) as leaving,
    ):
        groups = {}
        for raw, group in ((staying, "stays"), (leaving, "leaves")):
            raw.greet()
            topic_id = raw.open_topic()
            answer = raw.request(FrameType.SUBSCRIBE, Subscribe("t", group, 10, 10))
            groups[group] = msgspec.msgpack.decode(answer.payload, type=SubscribeOk)
        staying.send(one_send(topic_id, b"precious"))
        frames = [staying.receive(), staying.receive()]
        assert {frame.type for frame in frames} == {FrameType.SEND_OK, FrameType.DELIVER}
        (receipt,) = [(one.ids[0], one.epochs[0]) for one in map(delivery_of, frames) if one is not None]
        assert leaving.receive().type == FrameType.DELIVER
        daemon.process.terminate()
        assert staying.receive().type == leaving.receive().type == FrameType.GOAWAY
        staying.send(one_send(topic_id, b"too late"))
        refused = staying.receive()
        assert refused.type == FrameType.ERROR
        assert b"shutting_down" in refused.payload
        left = leaving.request(FrameType.UNSUBSCRIBE, Unsubscribe(groups["leaves"].subscription))
        assert msgspec.msgpack.decode(left.payload, type=UnsubscribeOk).released == 1
        assert staying.is_closed()
        assert leaving.is_closed()
        assert daemon.wait_exit() == ExitCode.OK
        assert daemon.wait_for_event("drained")["connections_left"] == 2
    with Daemon(tmp_path / "data", **settings) as daemon, tickwheel.sync.Client(daemon.url) as client:
        (again,) = client.fetch("t", "leaves", wait=timedelta(seconds=PATIENCE_S))
        assert (again.body, again.epoch) == (b"precious", 2)
        assert list(client.fetch("t", "stays")) == []
        assert client.ack(groups["stays"].group_id, [receipt]) == ["acked"]


def delivery_of(frame: Frame) -> Delivery | None:
    return decode_deliver(frame.payload) if frame.type == FrameType.DELIVER else None


def one_send(topic_id: int, body: bytes) -> bytes:
    head = [topic_id, 1, 0, 50]
    payload = b"".join(value.to_bytes(4, "little") for value in head) + bytes(8)
    return encode_frame(FrameType.SEND, 1, payload + len(body).to_bytes(4, "little") + body)


def test_a_stopped_daemon_leaves_no_socket_and_a_killed_one_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Daemon(tmp_path / "data", unix_socket=str(path)) as daemon:
        assert path.stat().st_mode & 0o077 == 0
        daemon.kill()
        assert path.exists()
    with Daemon(tmp_path / "data", unix_socket=str(path)) as daemon, RawConnection(daemon.unix_url) as raw:
        raw.greet()
    assert not path.exists()


@pytest.mark.promise("R47", "when-is-a-message-safe")
async def test_a_disk_that_does_not_sync_ends_the_daemon(tmp_path: Path) -> None:
    directory, broken = tmp_path / "data", tmp_path / "data.broken"
    daemon = Daemon(directory, prelude=BROKEN_SYNC)
    with daemon:
        async with tickwheel.Client(daemon.url, timeout=3) as client:
            await client.send("t", b"safe")
            broken.write_text("")
            with pytest.raises(tickwheel.TickwheelError):
                await client.send("t", b"unsafe", key="k")
        assert daemon.wait_exit() == ExitCode.IO_ERROR
        event = daemon.wait_for_event("stopped")
        assert event["code"] == "log_failed"
        assert "Input/output error" in event["reason"]
    broken.unlink()
    with Daemon(directory) as daemon:
        async with tickwheel.Client(daemon.url) as client, client.subscribe("t") as subscription:
            with trio.fail_after(PATIENCE_S):
                assert (await anext(aiter(subscription))).body == b"safe"


def test_a_signal_the_moment_it_has_started(tmp_path: Path) -> None:
    for number in range(5):
        daemon = Daemon(tmp_path / f"data-{number}").start()
        assert daemon.stop() == ExitCode.OK


async def test_a_stopped_daemon_is_not_connected(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        url = daemon.url
        assert daemon.stop() == ExitCode.OK
    with pytest.raises(NotConnected):
        async with tickwheel.Client(url, connect_timeout=0.2):
            pytest.fail("connected to nobody")
