"""How a cluster's log begins with a log that is there already: its bytes become records, as an owner's do.

The first record says what is to come (UPLOAD), and no node takes what follows for a log before all of it counts. What
counts is said by the rule of all records, so whoever goes on after a stop, a failure, or beside another one, fences and
reads first: it knows then what is there, and appends what is missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from tickwheel_broker.sharedlog.beginning import (
    ClusterExists,
    ClusterUnreachable,
    TopicNotUsable,
    UnfinishedCluster,
)
from tickwheel_broker.sharedlog.known_owner import OwnWords
from tickwheel_broker.sharedlog.replicator import RETRY_S, append_fence
from tickwheel_broker.sharedlog.shared_log import AppendFailed, SharedLog, SharedLogUnavailable
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.replication.genesis import (
    Announcements,
    Upload,
    start_record,
    unpack_upload,
    upload_record,
)
from timerlog.replication.record import Head, Kind, Range, Writer, fence, unpack
from timerlog.replication.rule import Reader, Said, State
from timerlog.replication.source import Source

UPLOADER: Final = 0
"""The number under which it owns the log; nodes have numbers from 1."""

STALL_S: Final = 60.0
"""So long nothing may come to count before it gives up."""

Progress = Callable[[int, int], object]
"""Called with how many bytes count, or are on their way, and how many there are."""


@dataclass(frozen=True)
class Begun:
    """What an upload came to. `went_on`: an earlier one had begun."""

    upload: Upload
    went_on: bool


async def begin_from(
    shared: SharedLog,
    cluster: str,
    source: Source,
    now_ms: Callable[[], int],
    on_progress: Progress = lambda done_bytes, all_bytes: None,
) -> Begun:
    """Begin the shared log with all of `source`, or go on with what an earlier call has begun.

    Raises ClusterExists, UnfinishedCluster, TopicNotUsable, ClusterUnreachable: then the same call goes on where this
    one stopped.
    """
    wanted = source.upload_as(cluster, now_ms())
    try:
        went_on = await _begin(shared, wanted, now_ms())
        found, offset = await _first(shared, cluster)
        if not source.can_go_on_as(found, wanted):
            raise UnfinishedCluster(
                f"The topic of cluster {cluster!r} has the unfinished beginning of another log, or of one with other "
                "settings."
            )
        uploading = _Uploading(shared, found, offset, now_ms)
        await uploading.run(source, on_progress)
    except (SharedLogUnavailable, AppendFailed) as error:
        raise ClusterUnreachable(str(error)) from error
    return Begun(found, went_on or found != wanted)


async def _begin(shared: SharedLog, wanted: Upload, now_ms: int) -> bool:
    """Whether there was something already."""
    first, end = await shared.first(), await shared.end()
    if end > first:
        return True
    if first:
        raise TopicNotUsable(f"Kafka has deleted all {first} records of the topic.")
    await shared.append([upload_record(wanted, now_ms)])
    return False


async def _first(shared: SharedLog, cluster: str) -> tuple[Upload, int]:
    """What the first record says: of several that began at the same moment one is the first."""
    stored = (await shared.read(await shared.first()))[0]
    parts = unpack(stored.record)
    if parts is None:
        raise TopicNotUsable("The topic in Kafka does not begin with what a cluster begins with.")
    head, body = parts
    if head.kind is not Kind.UPLOAD:
        raise ClusterExists(f"There is a cluster {cluster!r} already.")
    return unpack_upload(body), stored.offset


class _Uploading:
    """One attempt, from what is there to all of it."""

    def __init__(self, shared: SharedLog, upload: Upload, offset: int, now_ms: Callable[[], int]) -> None:
        self._shared, self._upload, self._offset, self._now_ms = shared, upload, offset, now_ms
        self._reader = Reader(upload.genesis.segment_bytes, State(end=upload.first))
        self._words = OwnWords(process=secrets.token_hex(8)).now()
        self._fenced = False
        self._announcements = Announcements()
        self._starts_at: int | None = None
        """Where the record stands at which a node that is new can begin as well as at the UPLOAD."""
        self._moved_s = trio.current_time()

    @property
    def is_whole(self) -> bool:
        """Whether all of it counts."""
        return self._reader.state.end >= self._upload.end

    async def run(self, source: Source, on_progress: Progress) -> None:
        """Raises ClusterExists, ClusterUnreachable."""
        await self._retry(self._read_to_end)
        while not self.is_whole:
            await self._retry(self._fence)
            if not self.is_whole:
                await self._append_all(source, on_progress)
                await self._retry(self._read_to_end)
        source.give_away(self._upload.genesis)
        if self._starts_at is not None:
            with suppress(SharedLogUnavailable):
                # Then who begins to read need not look first whether all of it is there.
                await self._shared.delete_before(self._starts_at)

    async def _retry(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except (SharedLogUnavailable, AppendFailed) as error:
                self._check_moving(error)
                await trio.sleep(RETRY_S)

    def _check_moving(self, error: Exception) -> None:
        if trio.current_time() - self._moved_s >= STALL_S:
            raise ClusterUnreachable(
                f"nothing came to count for {STALL_S:g} s: {error}; the same command goes on where this one stopped"
            ) from error

    # -- appending --

    async def _append_all(self, source: Source, on_progress: Progress) -> None:
        """From where it ends on; returns early where it is not known what came of it."""
        upload, state = self._upload, self._reader.state
        writer = Writer(UPLOADER, state.term, state.chain)
        done_bytes = source.size_bytes - source.left_bytes(state.end)
        for position, data in source.batches(state.end):
            on_progress(done_bytes, source.size_bytes)
            if position + len(data) >= upload.end:
                source.give_away(upload.genesis)  # from here on it may be whole at any moment
            try:
                await self._shared.append(self._records(writer, (position, data)))
            except AppendFailed as error:
                self._check_moving(error)
                await trio.sleep(RETRY_S)
                return
            self._moved_s = trio.current_time()
            done_bytes += len(data)
        on_progress(done_bytes, source.size_bytes)

    def _records(self, writer: Writer, batch: Range) -> list[bytes]:
        """Before a segment, which log it is of: the log itself does not say that."""
        records = writer.data([batch], self._now_ms())
        head, _ = _parts(records[0])
        if head.position % self._upload.genesis.segment_bytes == SEGMENT_HEADER_BYTES:
            records.insert(0, start_record(self._upload.genesis, head))
        return records

    # -- reading --

    async def _fence(self) -> None:
        """Own the log, and read what counted until now. Raises AppendFailed, SharedLogUnavailable, ClusterExists."""
        term = self._reader.state.term + 1
        await append_fence(self._shared, fence(UPLOADER, term, self._now_ms(), self._words), self._offset)
        while self._reader.state.term < term:
            await self._read_some()
        self._moved_s = trio.current_time()

    async def _read_to_end(self) -> None:
        end = await self._shared.end()
        while self._offset + 1 < end and not self.is_whole:
            await self._read_some()

    async def _read_some(self) -> None:
        for stored in await self._shared.read(self._offset + 1):
            self._offset = stored.offset
            parts = unpack(stored.record)
            if parts is not None:
                self._take(*parts, stored.offset)
        self._moved_s = trio.current_time()

    def _take(self, head: Head, body: memoryview, offset: int) -> None:
        said = self._reader.take(head, body).said
        if said is Said.FENCED:
            is_ours = bytes(body) == self._words
            if self._fenced and not is_ours:
                raise ClusterExists("Somebody else makes this cluster at the same moment.")
            self._fenced = is_ours
        is_announced = self._announcements.read(head, offset)
        begins = is_announced and head.position == self._upload.first and said in (Said.PART, Said.BATCH)
        if begins and self._starts_at is None:
            self._starts_at = offset - 1


def _parts(record: bytes) -> tuple[Head, memoryview]:
    found = unpack(record)
    assert found is not None, "it was packed here"
    return found
