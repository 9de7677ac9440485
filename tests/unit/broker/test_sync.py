"""Group commit: no reply before its position is durable, one sync for many, and no second try after a failure."""

import errno
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    SyncEnded,
    SyncFailed,
    SyncThread,
)
from tickwheel_native import sync_thread
from timerlog.commitlog.durability import SyncTicket
from timerlog.errors import TooManyOpenFiles
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


@pytest.mark.promise("when-is-a-message-safe")
async def test_replies_wait_for_the_disk_and_share_a_sync(store: Store) -> None:
    runner = GatedRunner()
    moved: list[int] = []
    commit = GroupCommit(
        store=store,
        committer=DiskCommitter(runner),
        on_durable=lambda: moved.append(store.log.durable_position),
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
    commit = GroupCommit(store=store, committer=DiskCommitter(runner), on_durable=lambda: None)
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
    commit = GroupCommit(store=store, committer=DiskCommitter(disk), on_durable=lambda: None)
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
        def begin(self, ticket: SyncTicket, ended: SyncEnded) -> None:
            raise MemoryError

    commit = GroupCommit(store=store, committer=DiskCommitter(Unable()), on_durable=lambda: None)
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


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_no_descriptor_for_the_sync_thread_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def no_thread(_: int) -> object:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    before = open_descriptors()
    with monkeypatch.context() as patched:
        patched.setattr("tickwheel_native.sync_thread.start", no_thread)
        with pytest.raises(OSError, match="temporarily"):
            SyncThread()
    assert open_descriptors() == before
    with monkeypatch.context() as patched:
        patched.setattr("os.eventfd", no_descriptor)
        with pytest.raises(TooManyOpenFiles):
            SyncThread()


async def test_who_is_cancelled_waits_for_a_sync_that_was_begun_at_once(store: Store) -> None:
    runner = GatedRunner()
    commit = GroupCommit(store=store, committer=DiskCommitter(runner), on_durable=lambda: None)
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
    commit = GroupCommit(store=store, committer=DiskCommitter(runner), on_durable=lambda: None)
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
        store=store,
        committer=DiskCommitter(runner),
        on_durable=lambda: None,
        is_about_to_deliver=lambda: is_about_to_deliver,
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
        store=store,
        committer=DiskCommitter(InPlace()),
        on_durable=lambda: None,
        is_about_to_deliver=lambda: True,
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
    commit = GroupCommit(store=store, committer=DiskCommitter(InPlace()), on_durable=lambda: None)
    replies: list[bytes] = []
    commit.when_durable(store.log.durable_position, replies.append, b"now")
    assert replies == [b"now"]
    store.close()


async def test_waiting_for_what_needs_no_sync_ends(store: Store) -> None:
    commit = GroupCommit(store=store, committer=DiskCommitter(InPlace()), on_durable=lambda: None)
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

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> Callable[[], Awaitable[None]]:
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
    commit = GroupCommit(store=store, committer=cluster, on_durable=lambda: None)
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
    commit = GroupCommit(store=store, committer=DiskCommitter(InPlace()), on_durable=lambda: None)
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
    commit = GroupCommit(store=store, committer=DiskCommitter(runner), on_durable=lambda: None)
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
        store=store, committer=DiskCommitter(broken), on_durable=lambda: pytest.fail("nothing became durable")
    )
    replies: list[bytes] = []
    store.topics.open("t", NOW_MS)
    commit.when_durable(store.log.appended_position, replies.append, b"never")
    with pytest.raises(SyncFailed, match="Input/output error"):
        await commit.run()
    assert (replies, broken.runs) == ([], 1)
    store.close(clean=False)


async def test_the_sync_thread_syncs_files_and_tells_of_errors(tmp_path: Path) -> None:
    results: list[outcome.Outcome[float]] = []
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread:
        for files in ((file,), (file, file), (Gone(), file)):
            ended = trio.Event()

            def take(result: outcome.Outcome[float], ended: trio.Event = ended) -> None:
                assert trio.lowlevel.in_trio_run()
                results.append(result)
                ended.set()

            file.write(b"x")
            file.flush()
            thread.begin(SyncTicket(0, 0, files), take)  # type: ignore[arg-type]
            with trio.fail_after(PATIENCE_S):
                await ended.wait()
    assert [result.unwrap() >= 0 for result in results[:2]] == [True, True]
    with pytest.raises(OSError, match="Bad file descriptor"):
        results[2].unwrap()


async def test_a_sync_may_end_before_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thread begins it, as the slow disk of the benchmarks does."""
    begin, told = sync_thread.begin, threading.Event()

    def begin_and_wait(*arguments: Any) -> object:
        kept = begin(*arguments)
        assert told.wait(PATIENCE_S), "the loop has heard of the end"
        return kept

    monkeypatch.setattr(sync_thread, "begin", begin_and_wait)
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread:
        ticket = SyncTicket(0, 0, (file,))  # type: ignore[arg-type]
        with trio.fail_after(PATIENCE_S):
            await trio.to_thread.run_sync(thread.begin, ticket, lambda _: told.set())


class Gone:
    """A file that was closed."""

    def fileno(self) -> int:
        return -1


def sync_threads() -> set[str]:
    """Brokers of other tests may have some, which may end at any time."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            if (task / "comm").read_text().strip() == "tickwheel-sync":
                found.add(task.name)
    return found


async def test_the_sync_thread_ends_what_it_has_begun(tmp_path: Path) -> None:
    before, ended = sync_threads(), list[outcome.Outcome[float]]()
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread:
        thread.begin(SyncTicket(0, 0, (file,)), ended.append)  # type: ignore[arg-type]
        (own,) = sync_threads() - before
    assert [result.unwrap() >= 0 for result in ended] == [True], (
        "who waits for it is told, with the loop standing"
    )
    with trio.fail_after(PATIENCE_S):
        while own in sync_threads():  # the system lists a thread a moment longer than it can be joined
            await trio.sleep(0.001)


@pytest.mark.promise("when-is-a-message-safe")
async def test_interval_replies_at_once_and_syncs_later(store: Store) -> None:
    runner = GatedRunner()
    moved: list[int] = []
    commit = GroupCommit(
        store=store,
        committer=DiskCommitter(runner),
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
    commit = GroupCommit(
        store=store, committer=DiskCommitter(GatedRunner()), on_durable=lambda: None, durability="os"
    )
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
