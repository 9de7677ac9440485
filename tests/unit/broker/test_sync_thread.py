"""The thread that syncs: files, the mark behind a sync, the reply behind that, and its end."""

import errno
import socket
from dataclasses import replace
from pathlib import Path

import outcome
import pytest
import trio

from tickwheel_broker.group_commit import Reply, SyncThread
from timerlog.commitlog.durability import Mark, SyncTicket
from timerlog.errors import TooManyOpenFiles

PATIENCE_S = 60.0


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


async def synced(
    thread: SyncThread, file: object, reply: Reply, mark: Mark | None = None
) -> outcome.Outcome[float]:
    """How a sync of this file with this reply ends."""
    results: list[outcome.Outcome[float]] = []
    ended = trio.Event()

    def take(result: outcome.Outcome[float]) -> None:
        results.append(result)
        ended.set()

    thread.begin(SyncTicket(0, 0, (file,), mark=mark), take, reply)  # type: ignore[arg-type]
    with trio.fail_after(PATIENCE_S):
        await ended.wait()
    return results[0]


def connected_sockets() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


async def test_the_sync_thread_sends_the_reply_as_far_as_the_socket_takes_it(tmp_path: Path) -> None:
    here, there = connected_sockets()
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread, here, there:
        reply = Reply(Nobody(), here.fileno(), b"stored")
        assert (await synced(thread, file, reply)).unwrap() >= 0
        assert (reply.sent_bytes, there.recv(100)) == (6, b"stored")
        large = Reply(Nobody(), here.fileno(), bytes(64 << 20))
        assert (await synced(thread, file, large)).unwrap() >= 0
        assert 0 < large.sent_bytes < len(large.frame)
        more = Reply(Nobody(), here.fileno(), b"there is no room for it")
        assert (await synced(thread, file, more)).unwrap() >= 0
        assert more.sent_bytes == 0
        there.close()
        gone = Reply(Nobody(), here.fileno(), b"the peer has gone")
        assert (await synced(thread, file, gone)).unwrap() >= 0
        assert gone.sent_bytes == 0


async def test_the_sync_thread_sends_no_reply_after_a_failed_sync() -> None:
    here, there = connected_sockets()
    with SyncThread() as thread, here, there:
        reply = Reply(Nobody(), here.fileno(), b"stored")
        with pytest.raises(OSError, match="Bad file descriptor"):
            (await synced(thread, Gone(), reply)).unwrap()
        assert reply.sent_bytes == 0
        with pytest.raises(BlockingIOError):
            there.recv(1)


async def test_the_sync_thread_writes_the_mark_before_it_sends_the_reply(tmp_path: Path) -> None:
    here, there = connected_sockets()
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread, here, there:
        mark = Mark(file, 1_000, b"durable up to here")  # type: ignore[arg-type]
        reply = Reply(Nobody(), here.fileno(), b"stored")
        assert (await synced(thread, file, reply, mark)).unwrap() >= 0
        assert (tmp_path / "file").read_bytes() == bytes(1_000) + mark.data
        assert there.recv(100) == b"stored"
        with pytest.raises(OSError, match="Bad file descriptor"):
            (await synced(thread, file, reply, replace(mark, file=Gone()))).unwrap()  # type: ignore[arg-type]
        with pytest.raises(BlockingIOError):
            there.recv(1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            (await synced(thread, Gone(), reply, replace(mark, data=b"x" * 18))).unwrap()
        assert (tmp_path / "file").read_bytes()[1_000:] == mark.data, "nothing is marked that was not synced"


async def test_nothing_is_sent_after_a_reply_was_withheld(tmp_path: Path) -> None:
    """Whatever the thread was about: afterwards the descriptor may be another file's."""
    sent = 0
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread:
        for number in range(200):
            here, there = connected_sockets()
            with here, there:
                ended = trio.Event()
                reply = Reply(Nobody(), here.fileno(), b"stored")
                file.write(bytes(number))
                file.flush()
                thread.begin(SyncTicket(0, 0, (file,)), lambda _, ended=ended: ended.set(), reply)  # type: ignore
                if number % 2:
                    await trio.lowlevel.checkpoint()
                thread.withhold()
                try:
                    before = there.recv(100)
                except BlockingIOError:
                    before = b""
                with trio.fail_after(PATIENCE_S):
                    await ended.wait()
                assert reply.sent_bytes == len(before)
                with pytest.raises(BlockingIOError):
                    there.recv(1)
                sent += bool(before)
    assert sent < 200, "most are withheld in time"


class Nobody:
    """Lends nothing."""

    def lend(self) -> int:
        return -1

    def take_back(self, sent_bytes: int) -> None:
        raise AssertionError("the group commit does that")


class Gone:
    """A file that was closed."""

    def fileno(self) -> int:
        return -1


def sync_threads() -> set[str]:
    """Brokers of other tests may have some."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name for task in tasks if (task / "comm").read_text().strip() == "tickwheel-sync"}


async def test_the_sync_thread_ends_what_it_has_begun(tmp_path: Path) -> None:
    before = sync_threads()
    with (tmp_path / "file").open("wb") as file, SyncThread() as thread:
        thread.begin(SyncTicket(0, 0, (file,)), lambda _: None)  # type: ignore[arg-type]
        assert len(sync_threads() - before) == 1
    assert sync_threads() == before
