"""Nodes as processes have them: listeners, brokers, pages, and a shared log that is simulated."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import tickwheel
from tests.support.clients.http_client import Answer, get
from tests.support.processes.daemon_harness import RawConnection
from tests.support.stores.damage import flip
from tickwheel.errors import NotConnected, TickwheelError
from tickwheel.protocol.bodies.requests import encode_body, hello
from tickwheel.protocol.frames import FrameType
from tickwheel_broker.background.disk_room import Room
from tickwheel_broker.clock.clock import SystemClock
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.daemon import Running, serve, store_settings
from tickwheel_broker.exit_codes import exit_code_for
from tickwheel_broker.monitoring import web
from tickwheel_broker.monitoring.systemd import _status
from tickwheel_broker.node import disk_watch
from tickwheel_broker.node import process as node_process
from tickwheel_broker.node.process import Connected, serve_node
from tickwheel_broker.sharedlog import healing
from tickwheel_broker.sharedlog import node as node_module
from tickwheel_broker.sharedlog.beginning import begin
from tickwheel_broker.sharedlog.log_loss import LogLost
from tickwheel_broker.sharedlog.own_number import NodeNumberTaken
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.errors import DiskFull, ReplicaDirectory
from timerlog.files import replica_mark
from timerlog.files.disk import FileSegment
from timerlog.files.mapped_file import Region
from timerlog.maintenance.backup import restore
from timerlog.maintenance.repair import repair

PATIENCE_S = 30.0
URL = "kafka://127.0.0.1:9092/test"


class WrongClock(SystemClock):
    """The machine's clock, set ahead or back."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class OneNode:
    """A node that runs in a task."""

    def __init__(self, number: int, directory: Path, log: Partition, nursery: trio.Nursery) -> None:
        self.directory, self._nursery = directory, nursery
        self.line, self.assigner = Line(log, nursery), Assigner()
        self.assigner.others = self._has_others
        self.settings, self.clock = settings(directory, number), WrongClock()
        self.others: list[OneNode] = []
        self.dangers: list[str] = []
        self.twins = 0
        self.running: Running | None = None
        self.ended = trio.Event()
        self.error: TickwheelError | None = None

    def _connect(self, _: Settings, is_healthy: Callable[[], bool]) -> AbstractAsyncContextManager[Connected]:
        @asynccontextmanager
        async def connected() -> AsyncIterator[Connected]:
            assert is_healthy()
            yield Connected(self.line, self.assigner, self._find_dangers, self._count_twins)

        return connected()

    def twin(self, directory: Path) -> OneNode:
        """Another process with the same number."""
        return OneNode(self.settings.node, directory, self.line.partition, self._nursery)

    async def _find_dangers(self) -> list[str]:
        return self.dangers

    async def _count_twins(self) -> int:
        return self.twins

    def _has_others(self) -> bool:
        return any(one.assigner.has_joined for one in self.others)

    async def start(self) -> OneNode:
        up = trio.Event()

        def ready(running: Running) -> None:
            self.running = running
            up.set()

        async def run() -> None:
            try:
                await self.serve(ready)
            except LogLost as error:
                self.error = error
            finally:
                self.ended.set()

        self._nursery.start_soon(run)
        await up.wait()
        return self

    async def serve(self, ready: Callable[[Running], None] | None = None) -> None:
        await serve_node(self.settings, clock=self.clock, ready=ready, connect=self._connect)

    @property
    def url(self) -> str:
        assert self.running is not None
        return next(url for url in self.running.urls if "+unix" not in url)

    async def stop(self) -> None:
        assert self.running is not None
        self.running.stop()
        await self.ended.wait()

    async def get(self, path: str, method: str = "GET") -> Answer:
        assert self.running is not None
        assert self.running.watching is not None
        url = self.running.watching.urls[0] + path
        return await trio.to_thread.run_sync(lambda: get(url, method=method))

    async def wait_role(self, role: str) -> dict[str, Any]:
        while True:
            answer = await self.get("/readyz")
            found: dict[str, Any] = json.loads(answer.text)
            if found["role"] == role and found["ready"] == (role == "owner"):
                assert answer.status == (200 if role == "owner" else 503)
                return found
            await trio.sleep(0.02)


def settings(directory: Path, number: int, **more: Any) -> Settings:
    return from_arguments(
        **{
            "data_dir": str(directory),
            "listen_port": 0,
            "http_listen": True,
            "http_port": 0,
            "cluster": URL,
            "node": number,
            "cluster_timeout": "1s",
            "drain_timeout": "0s",
            **more,
        }
    )


def run(
    tmp_path: Path, scenario: Callable[[list[OneNode], Partition], Awaitable[None]], nodes: int = 2
) -> None:
    """A scenario of some nodes that are up; then all are stopped in order."""

    async def main() -> None:
        with trio.fail_after(PATIENCE_S * 2):
            async with trio.open_nursery() as nursery:
                log = Partition(random.Random(1))
                await begin(Line(log, nursery), "test", store_settings(Settings()), 0)
                found = [
                    OneNode(number, tmp_path / f"{number}", log, nursery) for number in range(1, nodes + 1)
                ]
                for node in found:
                    node.others = [one for one in found if one is not node]
                    await node.start()
                await scenario(found, log)
                for node in found:
                    if not node.ended.is_set():
                        await node.stop()
                nursery.cancel_scope.cancel()

    trio.run(main)


def greet(url: str) -> dict[str, Any]:
    """The error with which a node answers HELLO."""
    with RawConnection(url) as connection:
        answer = connection.ask(FrameType.HELLO, encode_body(hello("raw")))
        assert answer.type == FrameType.ERROR
        found: dict[str, Any] = msgspec.msgpack.decode(answer.payload)
        return found


def test_the_owner_serves_and_a_follower_refers_to_it(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        owner, follower = await one.wait_role("owner"), await two.wait_role("follower")
        assert (owner["term"], owner["node"], owner["cluster"]) == (1, 1, "test")
        assert follower["has_joined"] is True
        assert [reason["code"] for reason in follower["reasons"]] == ["not_owner"]
        assert (await two.get("/livez")).status == 200
        async with tickwheel.Client(one.url) as client:
            await client.send("t", b"hello", key="k")
        refusal = await trio.to_thread.run_sync(greet, two.url)
        assert (refusal["code"], refusal["details"]["url"]) == ("not_owner", one.url)

    run(tmp_path, scenario)


def test_a_planned_change_loses_nothing(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        for turn, (owner, other) in enumerate([(one, two), (two, one), (one, two)]):
            other.assigner.choose(False)
            owner.assigner.choose(True)
            await owner.wait_role("owner")
            await other.wait_role("follower")
            async with tickwheel.Client(owner.url) as client:
                await client.send_many("t", [b"x"] * 10, keys=[f"{turn}-{n}" for n in range(10)])
                topic = next(topic for topic in await client.topics() if topic.name == "t")
                found = [
                    await client.message("t", key=f"{past}-{n}")
                    for past in range(turn + 1)
                    for n in range(10)
                ]
                assert topic.name == "t"
                assert all(message is not None for message in found)

    run(tmp_path, scenario)


def test_one_that_stops_hands_over_and_can_start_again(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        async with tickwheel.Client(one.url) as client:
            await client.send("t", b"x", key="k")
            await one.stop()
        assert not one.assigner.has_joined
        two.assigner.choose(True)
        await two.wait_role("owner")
        async with tickwheel.Client(two.url) as client:
            assert await client.message("t", key="k") is not None
        one.assigner.choose(False)
        one.ended = trio.Event()
        await one.start()
        assert (await one.wait_role("follower"))["term"] >= 2

    run(tmp_path, scenario)


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
@pytest.mark.parametrize("is_stopped", [True, False])
def test_leases_stay_with_their_holders_when_the_log_is_handed_over(tmp_path: Path, is_stopped: bool) -> None:
    """By an owner that is stopped, and by one that is not to own it any more."""

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        urls = [node.url for node in nodes]
        async with (
            tickwheel.Client(urls) as client,
            client.subscribe("t", credit=1) as subscription,
            tickwheel.Client(urls) as another,
            another.subscribe("t", credit=1) as other,
        ):
            sent = await client.send_many("t", [b"1", b"2"])
            messages = [await one_of_them.receive(PATIENCE_S) for one_of_them in (subscription, other)]
            assert sorted(message.id for message in messages if message is not None) == sorted(sent.ids())
            one.assigner.choose(False)
            if is_stopped:
                await one.stop()
            two.assigner.choose(True)
            await two.wait_role("owner")
            (third,) = (await client.send_many("t", [b"3"])).ids()
            for message in messages:
                assert message is not None
                await message.ack(confirm=True)
            found: list[tuple[int, int]] = []
            while not found:  # what came again would come first
                again = [await one_of_them.receive(0.05) for one_of_them in (subscription, other)]
                found += [(message.id, message.epoch) for message in again if message is not None]
            assert found == [(third, 1)]

    run(tmp_path, scenario)


def test_drained_by_http(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        for bad in ("0", "nan", "x", "1e9"):
            assert (await one.get(f"/drain?seconds={bad}", "POST")).status == 400
        assert (await one.get("/drain")).status == 405
        answer = await one.get("/drain?seconds=1", "POST")
        found = json.loads(answer.text)
        assert (answer.status, found["is_drained"]) == (200, True)
        assert found["role"] in ("starting", "follower")  # by how fast it follows
        assert not one.assigner.has_joined
        found = await one.wait_role("owner")  # it stands again
        assert (found["term"], found["is_drained"]) == (2, False)

    run(tmp_path, scenario, nodes=1)


def test_a_drain_that_the_cluster_does_not_confirm_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "DRAIN_ANSWER_S", 0.3)

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        one.line.is_cut = True
        while (await one.get("/readyz")).status != 503:
            await trio.sleep(0.02)
        answer = await one.get("/drain?seconds=60", "POST")
        assert (answer.status, "Kafka does not confirm" in answer.text) == (503, True), answer.text
        assert json.loads((await one.get("/readyz")).text)["is_drained"], "it goes on to hand over"
        one.line.is_cut = False
        await one.wait_role("follower")

    run(tmp_path, scenario, nodes=1)


async def connect_until_refused(url: str) -> None:
    while True:
        async with tickwheel.Client(url, connect_timeout=0.5):
            await trio.sleep(0.05)


def test_an_owner_that_is_cut_off_sends_its_clients_away(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        async with tickwheel.Client(one.url) as client:
            await client.send("t", b"x")
        one.line.is_cut = True
        with pytest.raises(NotConnected, match="does not know whether it still serves"):
            await connect_until_refused(one.url)
        one.line.is_cut = False
        while True:
            try:
                async with tickwheel.Client(one.url, connect_timeout=0.5) as client:
                    await client.send("t", b"y")
                    break
            except TickwheelError:
                await trio.sleep(0.05)

    run(tmp_path, scenario, nodes=1)


def test_an_owner_that_is_cut_off_is_not_ready(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        one.line.is_cut = True
        while (answer := await one.get("/readyz")).status == 200:
            await trio.sleep(0.02)
        found = json.loads(answer.text)
        assert (found["ready"], found["role"]) == (False, "owner")
        assert [reason["code"] for reason in found["reasons"]] == ["unconfirmed"]
        assert "tickwheel_ready 0.0" in (await one.get("/metrics")).text
        assert (await one.get("/livez")).status == 200
        assert one.running is not None
        assert "not confirmed" in _status(one.running.sight)
        one.line.is_cut = False
        await one.wait_role("owner")
        assert "tickwheel_ready 1.0" in (await one.get("/metrics")).text

    run(tmp_path, scenario, nodes=1)


def test_an_owner_that_is_not_confirmed_lets_another_node_be_chosen(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        await two.wait_role("follower")
        one.line.refuses_appends = True
        while one.assigner.has_joined:
            await trio.sleep(0.02)
        one.assigner.choose(False)
        two.assigner.choose(True)
        await two.wait_role("owner")
        found = await one.wait_role("follower")
        assert (found["is_held_off"], found["has_joined"], found["is_drained"]) == (True, False, False)
        assert "tickwheel_cluster_held_off 1.0" in (await one.get("/metrics")).text
        async with tickwheel.Client(f"{one.url},{two.url}") as client:
            await client.send("t", b"x")

    run(tmp_path, scenario)


def test_metrics_say_how_a_node_stands(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        await one.wait_role("follower")
        following = (await one.get("/metrics")).text
        assert 'tickwheel_cluster_role{cluster="test",node="1",role="follower"} 1.0' in following
        assert "tickwheel_cluster_records_behind 0.0" in following
        assert "tickwheel_ready" not in following
        one.assigner.choose(True)
        await one.wait_role("owner")
        owning = (await one.get("/metrics")).text
        assert 'tickwheel_cluster_role{cluster="test",node="1",role="owner"} 1.0' in owning
        assert "tickwheel_cluster_term 1.0" in owning
        assert "tickwheel_cluster_fences_total 1.0" in owning
        assert "tickwheel_cluster_unconfirmed_seconds" in owning
        assert "tickwheel_ready 1.0" in owning

    run(tmp_path, scenario, nodes=1)


def test_what_is_healed_is_counted_in_every_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "SCRUB_EVERY_S", 0.05)

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes

        async def damage(healed: int) -> None:
            flip(one.directory, 100, one.settings.segment_bytes)
            while (
                f"tickwheel_cluster_records_healed_total {healed}.0" not in (await one.get("/metrics")).text
            ):
                await trio.sleep(0.02)

        one.assigner.choose(True)
        await one.wait_role("owner")
        async with tickwheel.Client(one.url) as client:
            await client.send("t", b"x" * 100)
        await damage(1)
        one.assigner.choose(False)
        await one.wait_role("follower")
        await damage(2)
        assert "tickwheel_cluster_records_lost_total 0.0" in (await one.get("/metrics")).text

    run(tmp_path, scenario, nodes=1)


def test_a_node_whose_clock_is_wrong_is_not_chosen(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")

        async def wait_off_time(is_off: bool) -> dict[str, Any]:
            while True:
                found = await two.wait_role("follower")
                if found.get("is_off_time") is is_off:
                    return found
                await trio.sleep(0.02)

        assert (await wait_off_time(False))["has_joined"] is True
        for ahead_ms in (-3_000, 3_000):
            two.clock.ahead_ms = ahead_ms
            found = await wait_off_time(True)
            assert abs(found["clock_skew_ms"] - ahead_ms) < 2_700
            assert not found["has_joined"]
            assert not two.assigner.has_joined
            assert found["is_drained"] is False
            assert "tickwheel_cluster_clock_skew_seconds" in (await two.get("/metrics")).text
            two.clock.ahead_ms = 0
            assert (await wait_off_time(False))["has_joined"] is True
        assert "clock_skew_ms" not in await one.wait_role("owner")

    run(tmp_path, scenario)


@pytest.mark.promise("in-a-cluster")
def test_a_broker_of_its_own_is_refused(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        await one.stop()
        with pytest.raises(ReplicaDirectory, match="belongs to a node of cluster test"):
            restore(tmp_path / "any", one.directory, 1)
        with pytest.raises(ReplicaDirectory, match="belongs to a node of cluster test"):
            repair(one.directory, 0, apply=True)
        plain = from_arguments(data_dir=str(one.directory), listen_port=0)
        with pytest.raises(TickwheelError, match="belongs to a node of cluster test") as raised:
            await serve(plain, ready=lambda running: running.stop())
        assert raised.value.code == "bad_directory"
        assert "--cluster" in raised.value.advice

    run(tmp_path, scenario, nodes=1)


def test_a_node_whose_settings_differ_from_the_clusters_does_not_start(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        await one.wait_role("follower")
        await one.stop()
        one.settings = settings(one.directory, 1, ack_wait="1234ms")
        with pytest.raises(
            TickwheelError, match="ack_wait_ms is 1234 here and 30000 in the cluster"
        ) as raised:
            await one.serve()
        assert raised.value.code == "bad_config"

    run(tmp_path, scenario, nodes=1)


def test_a_directory_that_no_node_can_follow_with_says_what_to_do(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        await one.wait_role("follower")
        await one.stop()
        one.line.partition = Partition(random.Random(2))
        await begin(one.line, "test", store_settings(Settings()), 0)
        with pytest.raises(TickwheelError, match="holds another log") as raised:
            await one.serve()
        assert (raised.value.code, "an empty directory" in raised.value.advice) == ("bad_directory", True)
        (one.directory / replica_mark.NAME).write_bytes(b"no mark")
        with pytest.raises(TickwheelError, match="to which cluster") as raised:
            await one.serve()
        assert (raised.value.code, "tokens.json" in raised.value.advice) == ("damaged", True)

    run(tmp_path, scenario, nodes=1)


def test_a_second_process_with_the_number_of_the_owner_ends(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        twin = one.twin(tmp_path / "twin")
        with pytest.raises(NodeNumberTaken) as raised:
            await twin.serve()
        assert one.url in str(raised.value)
        assert exit_code_for(raised.value.code) == 78
        assert one.assigner.has_joined
        await one.wait_role("owner")

    run(tmp_path, scenario, nodes=1)


class FullDisks:
    """Directories that have no room."""

    def __init__(self) -> None:
        self._full: set[Path] = set()

    def fill(self, node: OneNode) -> None:
        self._full.add(node.directory)

    def make_room(self, node: OneNode) -> None:
        self._full.discard(node.directory)

    def check(self, path: Path) -> None:
        if self._full.intersection(path.parents):
            raise DiskFull(f"no room for {path.name}")

    def room_of(self, settings: Settings) -> Room:
        return Room(0 if Path(settings.data_dir) in self._full else 1 << 40, 1 << 20)


@pytest.fixture
def full_disks(monkeypatch: pytest.MonkeyPatch) -> FullDisks:
    disks = FullDisks()
    allocate_file, allocate_region = FileSegment.allocate, Region._allocate

    def of_file(file: FileSegment, end: int) -> None:
        if end > file.size_bytes:
            disks.check(file._path)
        allocate_file(file, end)

    def of_region(region: Region, fd: int, target: int) -> None:
        disks.check(region.path)
        allocate_region(region, fd, target)

    monkeypatch.setattr(FileSegment, "allocate", of_file)
    monkeypatch.setattr(Region, "_allocate", of_region)
    monkeypatch.setattr(node_process, "room_of", disks.room_of)
    monkeypatch.setattr(disk_watch, "FULL_S", 0.2)
    monkeypatch.setattr(disk_watch, "FULL_LOOK_S", 0.1)
    monkeypatch.setattr(node_module, "FULL_S", 0.1)
    return disks


async def send_to_full(node: OneNode, is_enough: Callable[[int], bool]) -> None:
    """Send to an owner until it has refused so much, or is the owner no more."""
    refused = 0
    async with tickwheel.Client(node.url) as client:
        while not is_enough(refused):
            with trio.move_on_after(0.5):
                try:
                    await client.send_many("t", [bytes(50_000)] * 10)
                except tickwheel.errors.DiskFull:
                    refused += 1
                    await trio.sleep(0.01)
                except tickwheel.SendUncertain:
                    pass  # a node that stands still for a second sends its clients away, and goes on


def test_an_owner_without_room_hands_over_to_one_that_has_some(tmp_path: Path, full_disks: FullDisks) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        await two.wait_role("follower")
        urls = f"{one.url},{two.url}"
        full_disks.fill(one)
        await send_to_full(one, lambda refused: not one.assigner.has_joined)
        one.assigner.choose(False)
        two.assigner.choose(True)
        assert (await two.wait_role("owner"))["is_disk_full"] is False
        async with tickwheel.Client(urls) as client:
            await client.send("t", b"x", key="k")
        # Where there is room nowhere, nothing is handed over.
        full_disks.fill(two)
        assert not one.assigner.has_joined
        await send_to_full(two, lambda refused: refused > 100)
        found = json.loads((await two.get("/readyz")).text)
        assert [reason["code"] for reason in found["reasons"]] == ["disk_full"]
        assert (found["is_disk_full"], found["has_joined"], found["term"]) == (True, True, 2)
        async with tickwheel.Client(two.url) as client:
            assert await client.message("t", key="k") is not None
        full_disks.make_room(one)
        while two.assigner.has_joined:
            await trio.sleep(0.02)
        assert one.assigner.has_joined
        two.assigner.choose(False)
        one.assigner.choose(True)
        assert (await one.wait_role("owner"))["is_disk_full"] is False
        async with tickwheel.Client(urls) as client:
            await client.send("t", b"y")
        full_disks.make_room(two)

    run(tmp_path, scenario)
