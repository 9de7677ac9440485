"""The owner's side of the shared log: when it may answer."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.support.cluster.replicas import SETTINGS
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.sharedlog.replicator import Deposed, Replicator, Tail
from tickwheel_broker.sharedlog.shared_log import Stored
from tickwheel_simulation.cluster.partition import Line, Partition, PartitionFaults
from timerlog.background import Stage
from timerlog.commitlog.durability import Link, SyncTicket
from timerlog.files.disk import FileDisk
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.replication.places import Places
from timerlog.replication.record import Kind, Writer, fence, unpack
from timerlog.replication.rule import Reader, Said

NODE = 1
TIMEOUT_S = 3.0


@dataclass
class Log:
    durable_position: int = 64
    appended_position: int = 64
    telling_position: int = 64


@dataclass
class Engine:
    """One in which nothing is new."""

    log: Log = field(default_factory=Log)

    def begin_sync(self) -> SyncTicket | None:
        return None

    def finish_sync(self, ticket: SyncTicket) -> int:
        raise AssertionError("there is nothing to sync")

    def hand_over(self) -> int:
        raise AssertionError("durability is always")


class SlowLine(Line):
    """One on which reading can be held up; what comes then comes at once."""

    is_slow = False

    async def read(self, offset: int) -> list[Stored]:
        """See `SharedLog`."""
        await super().read(offset)
        while self.is_slow:
            await trio.sleep(0.01)
        return [Stored(at, record) for at, record in enumerate(self.partition.records)][offset:]


@dataclass
class Scene:
    """An owner that has read its FENCE, and what it works with."""

    log: Partition
    line: SlowLine
    tail: Tail
    replicator: Replicator
    commit: GroupCommit


def run(scenario: Callable[[Scene], Awaitable[None]], *, alone: bool = False) -> None:
    """Time passes when all wait. ``alone``: of the owner its reader works, and nothing else."""

    async def main(directory: Path) -> None:
        async with trio.open_nursery() as nursery:
            log = Partition(random.Random(1))
            line = SlowLine(log, nursery)
            log.put(fence(NODE, 1, 0))
            places = Places(FileDisk(directory), SETTINGS.segment_bytes)
            tail = Tail(
                shared=line, reader=Reader(SETTINGS.segment_bytes), offset=-1, node=NODE, places=places
            )
            tail.await_fence(1, b"")
            async with trio.open_nursery() as reading:
                reading.start_soon(tail.run)
                await tail.wait(lambda: tail.reader.state.term == 1)
                reading.cancel_scope.cancel()
            replicator = Replicator(
                shared=line, tail=tail, node=NODE, now_ms=lambda: 0, owner_timeout_s=TIMEOUT_S
            )
            commit = GroupCommit(store=Engine(), committer=replicator, on_durable=lambda: None)  # type: ignore[arg-type]
            for work in [tail.run] if alone else [replicator.run, commit.run]:
                nursery.start_soon(work)
            await scenario(Scene(log, line, tail, replicator, commit))
            nursery.cancel_scope.cancel()

    with TemporaryDirectory() as directory:
        trio.run(main, Path(directory), clock=MockClock(autojump_threshold=0))


def ticket(position: int, data: bytes) -> SyncTicket:
    return SyncTicket(position + len(data), 1, pieces=((position, data),))


def shipped(log: Partition) -> list[bytes]:
    """The bodies of what counts."""
    reader, bodies = Reader(SETTINGS.segment_bytes), []
    for record in log.records:
        found = unpack(record)
        assert found is not None
        bodies += [data for _, data in reader.take(*found).ranges]
    return bodies


def test_nothing_is_answered_before_a_record_of_the_term_counts() -> None:
    async def scenario(one: Scene) -> None:
        assert not one.replicator.is_current
        told: list[bytes] = []
        one.commit.when_durable(64, told.append, b"answer")
        assert told == []
        with trio.fail_after(1):
            await one.commit.wait_durable(64)
        assert told == [b"answer"]
        assert one.replicator.is_current
        one.commit.when_durable(64, told.append, b"at once")
        assert told == [b"answer", b"at once"]

    run(scenario)


@pytest.mark.promise("in-a-cluster")
def test_an_owner_that_is_cut_off_keeps_its_answers_back() -> None:
    async def scenario(one: Scene) -> None:
        await one.commit.wait_durable(64)
        one.line.is_cut = True
        await trio.sleep(TIMEOUT_S + 0.1)
        told: list[bytes] = []
        one.commit.when_durable(64, told.append, b"stale?")
        await trio.sleep(20)
        assert told == []
        one.line.is_cut = False
        with trio.fail_after(5):
            await one.commit.wait_durable(64)
        assert told == [b"stale?"]

    run(scenario)


@pytest.mark.promise("in-a-cluster")
def test_one_that_was_replaced_meanwhile_never_gives_them() -> None:
    async def scenario(one: Scene) -> None:
        await one.commit.wait_durable(64)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(TIMEOUT_S + 0.1)  # the process was stopped: nothing of it ran
        one.log.put(fence(2, 2, 0))
        one.commit.when_durable(64, told.append, b"stale")
        await trio.sleep(20)

    told: list[bytes] = []
    with pytest.raises(ExceptionGroup) as raised:
        run(scenario)
    assert raised.value.split(Deposed)[1] is None, "nothing else went wrong"
    assert told == []


def test_the_time_of_a_record_is_that_of_its_beginning() -> None:
    """Its confirmation may have lain unread for long, and another node may own the log since."""

    async def scenario(one: Scene) -> None:
        await one.commit.wait_durable(64)
        began_s = trio.current_time()
        one.line.is_cut = True
        await trio.sleep(10)
        assert one.replicator.confirmed_s <= began_s
        one.line.is_cut = False
        await trio.sleep(3)
        assert one.replicator.is_current

    run(scenario)


def test_an_owner_whose_next_record_was_deleted_owns_nothing() -> None:
    """It was cut off for so long that another one has owned the log, and trimmed it."""

    async def scenario(one: Scene) -> None:
        await one.commit.wait_durable(64)
        one.line.is_cut = True
        for number in range(5):
            one.log.put(b"%d" % number)
        await trio.sleep(1)
        one.log.first_offset = len(one.log.records)
        await trio.sleep(1)
        raise AssertionError("it was not noticed")

    with pytest.raises(ExceptionGroup) as raised:
        run(scenario)
    deposed, others = raised.value.split(Deposed)
    assert others is None, "nothing else went wrong"
    assert "has deleted what this one has not read" in repr(deposed)


def test_what_comes_while_others_are_shipped_is_shipped_as_well() -> None:
    async def scenario(one: Scene) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.replicator.commit, ticket(64, b"the first"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(one.replicator.commit, ticket(73, b"the second"))
        assert shipped(one.log) == [b"the first", b"the second"]

    run(scenario, alone=True)


def test_what_was_cancelled_is_shipped_with_the_next_once() -> None:
    async def scenario(one: Scene) -> None:
        one.line.is_slow = True
        with trio.move_on_after(1):
            one.log.faults = PartitionFaults(fails=1)
            await one.replicator.commit(ticket(64, b"the first"))
        one.log.faults, one.line.is_slow = PartitionFaults(), False
        await one.replicator.commit(ticket(73, b"the second"))
        assert shipped(one.log) == [b"the first", b"the second"]

    run(scenario, alone=True)


def test_the_records_of_the_next_owner_confirm_nothing_of_this_one() -> None:
    """Each counts its records from 0: the numbers that this owner waits for come, but not its records."""

    async def scenario(one: Scene) -> None:
        await one.replicator.commit(ticket(64, b"counts"))
        await one.tail.wait(lambda: one.tail.reader.state.end == 70)
        one.line.is_slow = True
        chain = one.tail.reader.state.chain
        one.log.put(fence(2, 2, 0))
        async with trio.open_nursery() as nursery:

            async def replace() -> None:
                await one.log.wait_beyond(3)  # what comes too late
                other = Writer(2, 2, chain)
                for _ in range(10):
                    one.log.put(other.beat(0))
                one.line.is_slow = False

            nursery.start_soon(replace)
            with pytest.raises(Deposed):
                await one.replicator.commit(ticket(70, b"comes too late"))
        assert shipped(one.log) == [b"counts"]

    run(scenario, alone=True)


@pytest.mark.parametrize("fences", [True, False])
def test_another_process_with_the_same_number_confirms_nothing(fences: bool) -> None:
    """A node's number was given twice: in a term of its own, or in the same one."""

    async def scenario(one: Scene) -> None:
        await one.replicator.commit(ticket(64, b"counts"))
        await one.tail.wait(lambda: one.tail.reader.state.end == 70)
        other = Writer(NODE, 2 if fences else 1, one.tail.reader.state.chain)
        if fences:
            one.log.put(fence(NODE, 2, 0))
        else:
            other.seq = one.replicator._writer.seq
        for record in other.data([(70, b"of the other")], 0):
            one.log.put(record)
        with pytest.raises(Deposed, match="this node's number"):
            await one.replicator.commit(ticket(70, b"of this one!"))
        assert shipped(one.log) == [b"counts", b"of the other"]

    run(scenario, alone=True)


def test_the_same_term_of_another_process_with_the_same_number_is_not_its_own() -> None:
    async def scenario(one: Scene) -> None:
        one.tail.await_fence(2, b"")
        one.log.put(fence(NODE, 2, 0, b"process=another"))
        with pytest.raises(Deposed, match="this node's number"):
            await one.tail.wait(lambda: False)

    run(scenario, alone=True)


def test_who_knows_that_it_was_replaced_does_not_fence_again() -> None:
    async def scenario(one: Scene) -> None:
        await one.replicator.commit(ticket(64, b"counts"))
        with trio.move_on_after(0.0001):
            await one.replicator.commit(ticket(70, b"its end is not known"))
        one.log.put(fence(2, 2, 0))
        await trio.sleep(0.1)
        with pytest.raises(Deposed):
            await one.replicator.settle()
        heads = [unpack(record) or pytest.fail("it is a record") for record in one.log.records]
        assert [head.term for head, _ in heads if head.kind is Kind.FENCE] == [1, 2]

    run(scenario, alone=True)


def test_how_far_its_own_log_counts_is_not_what_the_next_owner_wrote() -> None:
    """Both may have written as much, and not the same."""

    async def scenario(one: Scene) -> None:
        await one.replicator.commit(ticket(64, b"of both"))
        await one.tail.wait(lambda: one.tail.place.end == 71)
        place = one.tail.place
        one.log.put(fence(2, 2, 0))
        for record in Writer(2, 2, one.tail.reader.state.chain).data([(71, b"of the other")], 0):
            one.log.put(record)
        await trio.sleep(1)
        assert one.tail.reader.state.end == 83
        assert one.tail.place == place

    run(scenario, alone=True)


JOB = b"j" * 16
BEHIND = 2 * SETTINGS.segment_bytes + SEGMENT_HEADER_BYTES


def staging(directory: Path, size_bytes: int) -> Stage:
    """A job of one file."""
    path = directory / "file.log"
    path.write_bytes(bytes(range(256)) * (size_bytes // 256))
    return Stage(JOB, pytest.fail, (path,), SETTINGS.segment_bytes)


def linking(stage: Stage) -> SyncTicket:
    """The commit that makes the job a part of the log, which has nothing before it."""
    link = Link(BEHIND, JOB, tuple(path.stat().st_size for path in stage.paths))
    return SyncTicket(BEHIND + 4, 1, pieces=((64, b"ADOPTED"), link, (BEHIND, b"BASE")))


def kinds_since_the_last_fence(log: Partition) -> list[Kind]:
    heads = [(unpack(record) or pytest.fail("it is a record"))[0] for record in log.records]
    last = max(at for at, head in enumerate(heads) if head.kind is Kind.FENCE)
    return [head.kind for head in heads[last + 1 :] if head.kind is not Kind.BEAT]


def staged_bytes(log: Partition) -> bytes:
    """Of the files that all nodes have when they come to the link."""
    reader, found, linked = Reader(SETTINGS.segment_bytes), b"", b""
    for record in log.records:
        head, body = unpack(record) or pytest.fail("it is a record")
        taken = reader.take(head, body)
        if taken.said is Said.FENCED:
            found = b""
        elif taken.said is Said.STAGED:
            assert head.position == len(found)
            found += bytes(body[16:])
        if taken.links:
            linked = found
    return linked


def test_files_come_beside_what_is_committed(tmp_path: Path) -> None:
    async def scenario(one: Scene) -> None:
        stage = staging(tmp_path, 3_000_000)

        async def send() -> None:
            for number in range(3):
                await one.replicator.commit(ticket(64 + 5 * number, b"sent%d" % number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.replicator.stage, stage)
            nursery.start_soon(send)
        kinds = kinds_since_the_last_fence(one.log)
        assert (kinds.count(Kind.STAGE), kinds.count(Kind.DATA)) == (4, 3)
        assert Kind.STAGE in kinds[kinds.index(Kind.DATA) :], "the commits did not wait for all of it"
        link = Link(BEHIND, JOB, (2_999_808,))
        await one.replicator.commit(SyncTicket(BEHIND, 1, pieces=((79, b"ADOPTED"), link)))
        assert staged_bytes(one.log) == stage.paths[0].read_bytes()

    run(scenario, alone=True)


@pytest.mark.parametrize("fails", ["while they come", "before the link", "with the link"])
def test_another_term_makes_them_come_again(tmp_path: Path, fails: str) -> None:
    """A FENCE makes all nodes forget them."""

    async def scenario(one: Scene) -> None:
        stage = staging(tmp_path, 2_000_000)

        async def fail(work: Callable[[], Awaitable[object]]) -> None:
            one.line.refuses_appends = True
            with trio.move_on_after(1):
                await work()
            one.line.refuses_appends = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.replicator.stage, stage)
            if fails == "while they come":
                await one.log.wait_beyond(2)
                await fail(partial(trio.sleep, 1))
        if fails == "before the link":
            await fail(one.replicator._append_beat)
        if fails == "with the link":
            await fail(lambda: one.replicator.commit(linking(stage)))
            await one.replicator.settle()
        else:
            await one.replicator.commit(linking(stage))
        assert one.replicator.term > 1
        assert kinds_since_the_last_fence(one.log)[-3:] == [Kind.DATA, Kind.LINK, Kind.DATA]
        assert staged_bytes(one.log) == stage.paths[0].read_bytes()
        assert shipped(one.log) == [b"ADOPTED", b"BASE"]

    run(scenario, alone=True)


def test_a_file_that_cannot_be_read_ends_the_job_alone(tmp_path: Path) -> None:
    async def scenario(one: Scene) -> None:
        errors: list[OSError] = []
        await one.replicator.stage(Stage(JOB, errors.append, (tmp_path / "missing.log",), 1 << 20))
        assert [type(error) for error in errors] == [FileNotFoundError]
        await one.replicator.commit(ticket(64, b"goes on"))
        assert shipped(one.log) == [b"goes on"]

    run(scenario, alone=True)
