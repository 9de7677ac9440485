"""Group commit: no reply before its position is durable, one sync for many, and no second try after a failure."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import outcome
import pytest
import trio
import trio.testing

from tickwheel_broker.group_commit import (
    LAZY_SYNC_S,
    SHARED_SYNC_S,
    DiskCommitter,
    GroupCommit,
    InPlace,
    Reply,
    SyncEnded,
    SyncFailed,
)
from timerlog.commitlog.durability import SyncTicket
from timerlog.commitlog.log import CommitLog
from timerlog.settings import StoreSettings
from timerlog.store import Store

NOW_MS = 1_000_000
PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "data", StoreSettings(), NOW_MS)


class GatedRunner(InPlace):
    """A disk that syncs when the test says so."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = trio.Semaphore(0)

    async def run(self, work: Callable[[], None]) -> None:
        await self.gate.acquire()
        work()
        self.runs += 1


async def test_replies_wait_for_the_disk_and_share_a_sync(store: Store) -> None:
    runner = GatedRunner()
    moved: list[int] = []
    commit = GroupCommit(
        store, DiskCommitter(runner), on_durable=lambda: moved.append(store.log.durable_position)
    )
    replies: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        store.topics.open("first", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"1")
        await trio.testing.wait_all_tasks_blocked()
        assert replies == []
        for number in (2, 3, 4):
            store.topics.open(f"topic-{number}", NOW_MS)
            commit.when_durable(store.log.appended_position, replies.append, b"%d" % number)
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [b"1"]
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [b"1", b"2", b"3", b"4"]
        assert runner.runs == 2
        assert moved == sorted(moved)
        nursery.cancel_scope.cancel()
    store.close()


async def test_the_sync_of_a_reply_that_comes_alone_begins_at_once(store: Store) -> None:
    runner = GatedRunner()
    commit = GroupCommit(store, DiskCommitter(runner), on_durable=lambda: None)
    replies: list[bytes] = []

    def ask(reply: bytes, *, is_last: bool = True) -> bool:
        """Whether its sync has begun."""
        store.topics.open(f"topic-{reply.decode()}", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, reply, is_last=is_last)
        return commit.figures.began_s is not None

    async def sync() -> None:
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()

    assert not ask(b"0"), "the task that hears of a failure does not run yet"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.testing.wait_all_tasks_blocked()
        await sync()
        assert ask(b"1")
        ask(b"2")
        ask(b"3")
        await sync()
        assert replies == [b"0", b"1"], "what comes while a sync is on the disk waits for the next"
        await sync()
        assert replies == [b"0", b"1", b"2", b"3"]
        assert not ask(b"4"), "several came at a time: more may come in this turn"
        await trio.testing.wait_all_tasks_blocked()
        await sync()
        assert not ask(b"5", is_last=False), "more comes"
        assert not ask(b"6"), "it shares the sync of what is there"
        await trio.testing.wait_all_tasks_blocked()
        await sync()
        assert (len(replies), runner.runs) == (7, 5)
        nursery.cancel_scope.cancel()
    store.close()


async def test_a_sync_that_was_begun_at_once_and_fails_is_final(store: Store) -> None:
    class Breaking(InPlace):
        is_broken = False
        runs = 0

        async def run(self, work: Callable[[], None]) -> None:
            await trio.lowlevel.checkpoint()
            self.runs += 1
            if self.is_broken:
                raise OSError(5, "Input/output error")
            work()

    disk = Breaking()
    commit = GroupCommit(store, DiskCommitter(disk), on_durable=lambda: None)
    replies: list[bytes] = []

    async def break_disk() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run)
            await trio.testing.wait_all_tasks_blocked()
            disk.is_broken = True
            store.topics.open("t", NOW_MS)
            commit.when_durable(store.log.appended_position, replies.append, b"never", is_last=True)
            assert commit.figures.began_s is not None
            with trio.fail_after(PATIENCE_S):
                await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as failed:
        await break_disk()
    assert failed.group_contains(SyncFailed, match="Input/output error")
    disk.is_broken = False
    store.topics.open("later", NOW_MS)
    with pytest.raises(SyncFailed):
        await commit.sync_once()
    assert (replies, disk.runs) == ([], 1), "nothing is tried again"
    store.close(clean=False)


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_sync_that_cannot_be_begun_is_final(store: Store, *, is_last: bool) -> None:
    class Unable(InPlace):
        def begin(self, ticket: SyncTicket, ended: SyncEnded, reply: Reply | None = None) -> None:
            raise MemoryError

    commit = GroupCommit(store, DiskCommitter(Unable()), on_durable=lambda: None)
    replies: list[bytes] = []

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run)
            await trio.testing.wait_all_tasks_blocked()
            store.topics.open("t", NOW_MS)
            commit.when_durable(store.log.appended_position, replies.append, b"never", is_last=is_last)
            with trio.fail_after(PATIENCE_S):
                await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as failed:
        await ask()
    assert failed.group_contains(MemoryError)
    with pytest.raises(MemoryError):
        await commit.sync_once()
    assert replies == []
    store.close(clean=False)


async def test_what_was_lent_is_given_back_when_a_sync_cannot_be_begun(store: Store) -> None:
    class Unable(InPlace):
        def begin(self, ticket: SyncTicket, ended: SyncEnded, reply: Reply | None = None) -> None:
            raise MemoryError

    desk = Desk()
    commit = GroupCommit(store, DiskCommitter(Unable()), on_durable=lambda: None)
    with pytest.RaisesGroup(MemoryError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run)
            await trio.testing.wait_all_tasks_blocked()
            store.topics.open("t", NOW_MS)
            commit.when_durable(store.log.appended_position, desk.sink, b"never", is_last=True, lender=desk)
    assert desk.heard == ["lent", 0]
    store.close(clean=False)


async def test_without_a_mark_a_reply_waits_for_the_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, desk = Sending(), Desk()
    commit = GroupCommit(store, DiskCommitter(runner), on_durable=lambda: None)
    monkeypatch.setattr(CommitLog, "_reserved_mark", lambda *_: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.testing.wait_all_tasks_blocked()
        store.topics.open("t", NOW_MS)
        commit.when_durable(store.log.appended_position, desk.sink, b"1", is_last=True, lender=desk)
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert desk.heard == ["lent", 0, b"1"]
        nursery.cancel_scope.cancel()
    assert runner.replies == [None]
    store.close()


async def test_who_is_cancelled_waits_for_a_sync_that_was_begun_at_once(store: Store) -> None:
    runner = GatedRunner()
    commit = GroupCommit(store, DiskCommitter(runner), on_durable=lambda: None)
    replies: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.testing.wait_all_tasks_blocked()
        store.topics.open("t", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"1", is_last=True)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert replies == []
        runner.gate.release()
    assert replies == [b"1"]
    store.close()


async def test_who_was_woken_at_the_same_time_shares_the_sync(store: Store) -> None:
    runner = GatedRunner()
    commit = GroupCommit(store, DiskCommitter(runner), on_durable=lambda: None)
    replies: list[bytes] = []

    async def lease() -> None:
        store.topics.open("second", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"2")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.testing.wait_all_tasks_blocked()
        store.topics.open("first", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"1")
        commit.be_patient()
        nursery.start_soon(lease)
        await trio.testing.wait_all_tasks_blocked()
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (replies, runner.runs) == ([b"1", b"2"], 1)
        nursery.cancel_scope.cancel()
    store.close()


async def test_acks_share_the_sync_of_a_delivery_that_is_about_to_come(
    store: Store, mock_clock: trio.testing.MockClock
) -> None:
    runner, is_about_to_deliver = GatedRunner(), True
    commit = GroupCommit(
        store, DiskCommitter(runner), on_durable=lambda: None, is_about_to_deliver=lambda: is_about_to_deliver
    )
    replies: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        store.topics.open("ack", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"ack", is_hurried=False)
        await trio.testing.wait_all_tasks_blocked()
        assert commit.figures.began_s is None
        store.topics.open("lease", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"delivery")
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (replies, runner.runs) == ([b"ack", b"delivery"], 1)
        is_about_to_deliver = False
        store.topics.open("other-ack", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"other ack", is_hurried=False)
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (replies[2:], runner.runs) == ([b"other ack"], 2)
        nursery.cancel_scope.cancel()
    store.close()


async def test_acks_wait_for_a_delivery_a_millisecond_at_most(
    store: Store, mock_clock: trio.testing.MockClock
) -> None:
    commit = GroupCommit(
        store, DiskCommitter(InPlace()), on_durable=lambda: None, is_about_to_deliver=lambda: True
    )
    replies: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        store.topics.open("ack", NOW_MS)
        commit.when_durable(store.log.appended_position, replies.append, b"ack", is_hurried=False)
        await trio.testing.wait_all_tasks_blocked()
        assert replies == []
        mock_clock.jump(SHARED_SYNC_S)
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [b"ack"]
        nursery.cancel_scope.cancel()
    store.close()


async def test_a_position_that_is_durable_is_answered_at_once(store: Store) -> None:
    commit = GroupCommit(store, DiskCommitter(InPlace()), on_durable=lambda: None)
    replies: list[bytes] = []
    commit.when_durable(store.log.durable_position, replies.append, b"now")
    assert replies == [b"now"]
    store.close()


async def test_waiting_for_what_needs_no_sync_ends(store: Store) -> None:
    commit = GroupCommit(store, DiskCommitter(InPlace()), on_durable=lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        store.topics.open("t", NOW_MS)
        with trio.fail_after(PATIENCE_S):
            await commit.wait_durable(store.log.appended_position)
            await commit.wait_durable(store.log.appended_position)
        nursery.cancel_scope.cancel()
    store.close()


class GatedCluster:
    """Of a cluster that says when it knows that this node owns the log."""

    def __init__(self) -> None:
        self.is_current = False
        self.gate = trio.Event()
        self.commits = 0

    begins_at_once = False

    def begin(
        self, ticket: SyncTicket, ended: SyncEnded, reply: Reply | None = None
    ) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            self.commits += 1
            ended(outcome.Value(0.0))

        return wait

    async def settle(self) -> None:
        await self.gate.wait()
        self.is_current = True


async def test_what_comes_while_nothing_new_is_settled_waits_for_the_next_commit(store: Store) -> None:
    store.sync()
    cluster = GatedCluster()
    commit = GroupCommit(store, cluster, on_durable=lambda: None)
    replies: list[tuple[bytes, int]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        for reply in (b"old", b"new"):
            commit.when_durable(
                store.log.appended_position, lambda reply: replies.append((reply, cluster.commits)), reply
            )
            await trio.testing.wait_all_tasks_blocked()
            assert replies == []
            store.topics.open("topic", NOW_MS)
        cluster.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [(b"old", 0), (b"new", 1)]
        nursery.cancel_scope.cancel()
    store.close()


async def test_what_nobody_waits_for_is_synced_soon(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    commit = GroupCommit(store, DiskCommitter(InPlace()), on_durable=lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        store.topics.open("t", NOW_MS)
        target = store.log.appended_position
        commit.mark_dirty()
        await trio.sleep(1)
        assert store.log.durable_position >= target
        nursery.cancel_scope.cancel()
    store.close()


async def test_after_a_reply_what_nobody_waits_for_shares_the_sync_of_the_next(
    store: Store, mock_clock: trio.testing.MockClock
) -> None:
    runner = GatedRunner()
    commit = GroupCommit(store, DiskCommitter(runner), on_durable=lambda: None)
    replies: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        for number in range(1, 4):
            store.topics.open(f"send-{number}", NOW_MS)
            commit.when_durable(store.log.appended_position, replies.append, b"%d" % number)
            runner.gate.release()
            await trio.testing.wait_all_tasks_blocked()
            assert (len(replies), runner.runs) == (number, number)
            store.topics.open(f"tick-{number}", NOW_MS)
            commit.mark_dirty()
            await trio.testing.wait_all_tasks_blocked()
            assert commit.figures.began_s is None  # the disk is free for the next send
        mock_clock.jump(LAZY_SYNC_S)
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert runner.runs == 4
        nursery.cancel_scope.cancel()
    store.close()


async def test_a_failed_sync_is_final(store: Store) -> None:
    class Broken(InPlace):
        runs = 0

        async def run(self, work: Callable[[], None]) -> None:
            await trio.lowlevel.checkpoint()
            self.runs += 1
            raise OSError(5, "Input/output error")

    broken = Broken()
    commit = GroupCommit(
        store, DiskCommitter(broken), on_durable=lambda: pytest.fail("nothing became durable")
    )
    replies: list[bytes] = []
    store.topics.open("t", NOW_MS)
    commit.when_durable(store.log.appended_position, replies.append, b"never")
    with pytest.raises(SyncFailed, match="Input/output error"):
        await commit.run()
    assert (replies, broken.runs) == ([], 1)
    store.close(clean=False)


class Desk:
    """Lends a descriptor, and keeps what it hears."""

    def __init__(self, descriptor: int = 7) -> None:
        self.descriptor = descriptor
        self.heard: list[object] = []

    def lend(self) -> int:
        self.heard.append("lent")
        return self.descriptor

    def take_back(self, sent_bytes: int) -> None:
        self.heard.append(sent_bytes)

    def sink(self, reply: bytes) -> None:
        self.heard.append(reply)


class Sending(GatedRunner):
    """Sends all but the last byte of a reply, if it was not withheld."""

    def __init__(self) -> None:
        super().__init__()
        self.is_withheld = False
        self.replies: list[Reply | None] = []

    def begin(self, ticket: SyncTicket, ended: SyncEnded, reply: Reply | None = None) -> None:
        self.replies.append(reply)
        super().begin(ticket, ended, reply)

    def withhold(self) -> None:
        self.is_withheld = True

    async def run(self, work: Callable[[], None]) -> None:
        await super().run(work)
        reply = self.replies[-1]
        if reply is not None and not self.is_withheld:
            reply.sent_bytes = len(reply.frame) - 1


async def test_a_reply_that_comes_alone_is_sent_by_who_syncs(store: Store) -> None:
    runner, desk = Sending(), Desk()
    commit = GroupCommit(store, DiskCommitter(runner), on_durable=lambda: None)

    def ask(reply: bytes, lender: Desk, *, is_last: bool = True) -> None:
        store.topics.open(f"topic-{reply.decode()}", NOW_MS)
        commit.when_durable(store.log.appended_position, lender.sink, reply, is_last=is_last, lender=lender)

    async def sync() -> None:
        runner.gate.release()
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await trio.testing.wait_all_tasks_blocked()
        ask(b"one", desk)
        commit.withhold(Desk())  # another one's
        await sync()
        assert desk.heard == ["lent", 2, b"one"]
        ask(b"two", cannot := Desk(-1))
        await sync()
        assert cannot.heard == ["lent", b"two"], "there is no descriptor now"
        ask(b"three", later := Desk(), is_last=False)
        ask(b"four", later)
        await trio.testing.wait_all_tasks_blocked()
        await sync()
        assert later.heard == [b"three", b"four"], "they share a sync"
        ask(b"0", Desk())  # after several nothing begins at once
        await trio.testing.wait_all_tasks_blocked()
        await sync()
        ask(b"five", leaving := Desk())
        commit.withhold(leaving)
        await sync()
        assert leaving.heard == ["lent", 0, b"five"]
        commit.withhold(leaving)
        nursery.cancel_scope.cancel()
    sent = [None if reply is None else reply.frame for reply in runner.replies]
    assert sent == [b"one", None, None, None, b"five"]
    store.close()


async def test_interval_replies_at_once_and_syncs_later(store: Store) -> None:
    runner = GatedRunner()
    moved: list[int] = []
    commit = GroupCommit(
        store,
        DiskCommitter(runner),
        on_durable=lambda: moved.append(1),
        durability="interval",
        sync_interval_s=0.001,
    )
    replies: list[bytes] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run)
            store.topics.open("first", NOW_MS)
            position = store.log.appended_position
            commit.when_durable(position, replies.append, b"1")
            while not replies:
                await trio.sleep(0.001)
            assert store.log.durable_position < position, "nothing was synced yet"
            assert moved == [1]
            runner.gate.release()
            while store.log.durable_position < position:
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    store.close()


async def test_os_replies_at_once_and_leaves_syncing_to_the_system(store: Store) -> None:
    commit = GroupCommit(store, DiskCommitter(GatedRunner()), on_durable=lambda: None, durability="os")
    replies: list[bytes] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run)
            store.topics.open("first", NOW_MS)
            position = store.log.appended_position
            commit.when_durable(position, replies.append, b"1")
            await trio.testing.wait_all_tasks_blocked()
            assert replies == [b"1"]
            assert store.log.durable_position < position
            nursery.cancel_scope.cancel()
    store.close()
    assert Store.open(store.tables.directory or Path(), StoreSettings(), NOW_MS).tables.topic_ids == {
        "first": 1
    }
