"""Bulk jobs in nodes as processes have them: whoever owns the log when, all nodes have a job, or none."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.cluster.replicas import NOW_MS, Replicas, work
from tests.support.stores.bulk import JOB, columns, job, prepare
from tests.unit.broker.node.test_node_process import OneNode, run
from tickwheel import sync
from tickwheel.errors import TickwheelError
from tickwheel_broker.sharedlog.replicator import Tail
from tickwheel_broker.sharedlog.shared_log import Stored
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.background import InThread, Stage
from timerlog.bulk.adopt import Adopter
from timerlog.bulk.job import Pause
from timerlog.replication.follower import Follower
from timerlog.replication.record import fence

COUNT = 30_000


def schedule_in_bulk(url: str, messages: int) -> tickwheel.AdoptResult:
    """A job of so many messages with keys, as a driver hands it in."""
    keys = [b"k%d" % number for number in range(messages)]
    part = columns([4_000_000_000_000] * messages, bodies=[b"b" * 1_000] * messages, keys=keys)
    with sync.Client(url) as client:
        prepare(client, "jobs", part)
        return client.adopt_job(JOB)


@pytest.mark.promise("in-a-cluster")
def test_a_bulk_job_is_on_all_nodes_before_it_counts(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        found = await trio.to_thread.run_sync(schedule_in_bulk, one.url, COUNT)
        assert (found.messages, found.rejected, found.repeated) == (COUNT, 0, False)
        async with tickwheel.Client(one.url) as client:
            assert (await client.send("jobs", b"x", key="k7")).duplicate
        one.assigner.choose(False)
        two.assigner.choose(True)
        await two.wait_role("owner")
        async with tickwheel.Client(two.url) as client:
            assert (await client.topic("jobs")).scheduled == COUNT
            assert (await client.send("jobs", b"x", key="k29999")).duplicate
        again = await trio.to_thread.run_sync(schedule_in_bulk, two.url, COUNT)
        assert (again.messages, again.repeated) == (COUNT, True)
        # A new disk: all comes from the shared log.
        await one.stop()
        shutil.rmtree(one.directory)
        one.directory.mkdir()
        await one.start()
        two.assigner.choose(False)
        one.assigner.choose(True)
        await one.wait_role("owner")
        async with tickwheel.Client(one.url) as client:
            assert (await client.topic("jobs")).scheduled == COUNT

    run(tmp_path, scenario)


async def scheduled(node: OneNode) -> int:
    """How many messages of the job its owner has."""
    async with tickwheel.Client(node.url) as client:
        return (await client.topic("jobs")).scheduled


async def hand_over(of: OneNode, to: OneNode) -> None:
    of.assigner.choose(False)
    to.assigner.choose(True)
    await to.wait_role("owner")


async def try_to_schedule(url: str) -> None:
    with suppress(TickwheelError):  # another node may have the log by then
        await trio.to_thread.run_sync(schedule_in_bulk, url, COUNT)


def test_a_node_that_is_chosen_while_it_takes_a_job_in_owns_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, chosen = Follower.work, []

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes

        def choose(follower: Follower) -> None:
            if follower.places.linked and not chosen:
                chosen.append(two)
                one.assigner.choose(False)
                two.assigner.choose(True)
            work(follower)

        one.assigner.choose(True)
        await one.wait_role("owner")
        monkeypatch.setattr(Follower, "work", choose)
        await try_to_schedule(one.url)
        await two.wait_role("owner")
        assert chosen == [two]
        assert await scheduled(two) == COUNT

    run(tmp_path, scenario)


async def replace_owner(one: OneNode, two: OneNode, is_time: Callable[[Adopter, Pause], bool]) -> None:
    """Another node is chosen while a job is taken in, which goes no further from then on."""
    step, replaced = Adopter.step, list[Adopter]()

    def step_or_stand(adopter: Adopter, now_ms: int) -> Pause:
        if adopter in replaced:
            return None
        pause = step(adopter, now_ms)
        if not replaced and is_time(adopter, pause):
            replaced.append(adopter)
            one.assigner.choose(False)
            two.assigner.choose(True)
            return None
        return pause

    one.assigner.choose(True)
    await one.wait_role("owner")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adopter, "step", step_or_stand)
        await try_to_schedule(one.url)
        await two.wait_role("owner")
    assert len(replaced) == 1


@pytest.mark.promise("in-a-cluster")
def test_an_owner_that_is_replaced_while_a_job_becomes_visible_keeps_all_of_it(tmp_path: Path) -> None:
    steps = 0

    def is_visible_in_part(adopter: Adopter, _: Pause) -> bool:
        nonlocal steps
        steps += adopter.is_committing
        return steps == 3

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        await replace_owner(one, two, is_visible_in_part)
        assert await scheduled(two) == COUNT
        await hand_over(two, one)
        assert await scheduled(one) == COUNT

    run(tmp_path, scenario)


def test_an_owner_that_is_replaced_when_keys_are_entered_keeps_none_of_them(tmp_path: Path) -> None:
    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        await replace_owner(one, two, lambda _, pause: isinstance(pause, Stage))
        assert await scheduled(two) == 0
        await hand_over(two, one)
        async with tickwheel.Client(one.url) as client:
            assert not (await client.send("jobs", b"x", key="k7")).duplicate

    run(tmp_path, scenario)


def test_an_owner_that_is_killed_while_files_come_follows_again(tmp_path: Path) -> None:
    """A segment began in the middle of them."""
    replicas = Replicas(tmp_path)
    owner = replicas.owner(1, 1)
    work(owner, 3)
    keys = [b"k%d" % number for number in range(3_000)]
    part = columns([NOW_MS + 10_000] * len(keys), bodies=[b"b" * 900] * len(keys), keys=keys)
    job(owner.store, tmp_path / "job", [("jobs", part)], NOW_MS)
    owner.commit()
    owner.places.step_bytes = 1_000
    before = owner.follower.offset + 1
    tail = Tail(
        shared=Line(Partition(random.Random(1)), None),
        reader=owner.follower.reader,
        offset=before - 1,
        node=1,
        places=owner.places,
    )
    tail.await_fence(1, b"")

    def stage_half(stage: Stage) -> None:
        pieces = list(stage.ranges(50_000))
        for number, piece in enumerate(pieces[: len(pieces) // 2]):
            if number == len(pieces) // 4:
                owner.store.log.roll()
                ticket = owner.store.begin_sync()
                assert ticket is not None
                for record in owner.writer.data(ticket.pieces, NOW_MS, 900):
                    replicas.partition.append(record)
                owner.store.finish_sync(ticket)
            for record in owner.writer.stage(stage.job, [piece], NOW_MS):
                replicas.partition.append(record)

    owner.store.adopter.start(tmp_path / "job", 0)
    has_staged = False
    while not has_staged:
        match owner.store.adopter.step(NOW_MS):
            case Stage() as stage:
                stage_half(stage)
                has_staged = True
            case InThread() as pause:
                pause.work()
    for offset in range(before, len(replicas.partition.records)):
        tail._take(Stored(offset, replicas.partition.records[offset]))
    owner.store.close(clean=False)
    replicas.partition.append(fence(2, 2, NOW_MS))
    for _ in range(2):
        follower = replicas.follower(1)
        replicas.follow(follower)
        follower.close()
