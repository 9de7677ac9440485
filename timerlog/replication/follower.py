"""A replica of a log that another machine writes: the same bytes at the same positions, and the tables that follow.

It is handed the records of the replicated log in order, from wherever they come, applies the rule to them, and does
with what counts what a start does with its own log. When this machine is to own the log, the follower hands over what
it has: nothing needs to be read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tickwheel_native import Buffer, purge, scan
from tickwheel_native.arrays import uint8s
from timerlog.background import WaitDurable
from timerlog.commitlog.durability import Link, Shipped
from timerlog.commitlog.healing import Healing, Scrub
from timerlog.commitlog.reader import whole_bytes
from timerlog.commitlog.records import Purged
from timerlog.commitlog.segments import read_segment_header
from timerlog.errors import BeingHealed, DamagedLog, DamagedSharedLog, DiskFull, LogCut, OtherCluster
from timerlog.files.disk import Disk
from timerlog.files.held_space import Spare
from timerlog.layout import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, RecordType
from timerlog.purge.drop import Dropper, DropTicket, FreeTicket, Steps
from timerlog.recovery.checkpoint import Checkpoints, Place
from timerlog.recovery.derived import derive, find_keys
from timerlog.recovery.opening import Opened, Recovery, create, without_purged
from timerlog.recovery.replay import Replayer
from timerlog.recovery.timeline import Mark
from timerlog.replication.genesis import Genesis, pack_genesis
from timerlog.replication.origin import Origin
from timerlog.replication.places import Places
from timerlog.replication.record import Range, unpack, unpack_staging
from timerlog.replication.rule import Reader, Said, State
from timerlog.replication.staged import Staged
from timerlog.settings import StoreSettings

_ALL: Final = b"\1" * 256
_RECORDS_A_STEP: Final = 4_096
_BYTES_A_STEP: Final = 1 << 20
_PURGED: Final = bytes(kind == RecordType.PURGED for kind in range(256))


class Follower:
    """One replica. ``take`` has what comes next; ``promote`` ends it."""

    def __init__(self, *, opened: Opened, disk: Disk, place: Place, places: Places, now_ms: int) -> None:
        self._opened, self._disk, self.places = opened, disk, places
        self._log = opened.log
        self.reader = Reader(
            opened.log.segment_bytes, State(place.term, place.node, place.seq, place.chain, place.end)
        )
        #: Of the last record that was taken.
        self.offset = place.offset
        self._replayer = Replayer(opened.log.addresses, opened.tables, opened.applier, keeps_keys=True)
        opened.log.start_at(place.end)
        spare = Spare(disk)
        self._checkpoints = Checkpoints(
            disk=disk,
            log=opened.log,
            tables=opened.tables,
            tick_ms=lambda: opened.applier.tick_ms,
            reserve=opened.reserve,
            spare=spare,
            now_ms=now_ms,
        )
        self._checkpoints.place, self._checkpoints.trimmed = place, opened.applier.trimmed
        self._checkpoints.begin_changes()
        self._dropper = Dropper(
            log=opened.log,
            tables=opened.tables,
            checkpoints=self._checkpoints,
            disk=disk,
            reserve=opened.reserve,
            spare=spare,
        )
        opened.applier.before_purge = self._note_purged
        #: Of this replica's log, also when it is promoted.
        self.healing = Healing(opened.log)
        #: The segment that is being purged, and how far it was found to be whole.
        self._purging: tuple[int, Scrub] | None = None
        self._staged = Staged(disk, opened.log.segment_bytes, opened.log.log_id)
        self._steps: Iterator[None] | None = None
        self._found = np.empty(_RECORDS_A_STEP, np.uint64)
        self._trimming: Steps | None = None
        self._ticket: DropTicket | FreeTicket | None = None

    @property
    def end(self) -> int:
        """Where the log ends that this replica has."""
        return self._log.appended_position

    def take(self, offset: int, record: Buffer) -> Said:
        """The next record of the replicated log. Raises ``BeingHealed``: then it is to be given again later. Raises
        ``DamagedLog``, ``DiskFull``, ``LogFailed``: then the follower
        must be closed, and what is opened next goes on where the last checkpoint is."""
        assert offset > self.offset, "records come in their order"
        assert not self.is_linking, "a job is a part of the log before the next record is taken"
        found = unpack(record)
        links: Sequence[Link] = ()
        said = Said.PASSED_OVER
        if found is not None:
            head, body = found
            before = self.reader.copy()
            said, ranges, links = self.reader.take(head, body)
            pieces = joined(ranges)
            try:
                for _, data in pieces:
                    self._check_purged(data)
            except BeingHealed:
                self.reader.go_back(before)
                raise
            self.places.read(head, body, said, offset, links)
            if said is Said.FENCED:
                self._staged.discard()
            elif said is Said.STAGED:
                self._staged.take(unpack_staging(head.position, body))
            self._steps = self._apply(pieces, links)
        self.offset = offset
        if not links:
            self.work()
        return said

    @property
    def is_linking(self) -> bool:
        """Whether the record that was taken last makes a job a part of the log, and that takes more calls of
        ``work``."""
        return self._steps is not None

    def work(self) -> None:
        """A part of what the last record asks for: some milliseconds at most, where it makes a job a part of the log.
        Raises what ``take`` raises."""
        for _ in self._steps or ():
            return
        self._steps = None
        self._note_place()

    def _apply(self, pieces: Sequence[tuple[int, bytes]], links: Sequence[Link]) -> Iterator[None]:
        links_left = deque(links)
        for position, data in pieces:
            if links_left and links_left[0].position <= position:
                yield from self._link(links_left.popleft())
            self._write(position, data)
        for link in links_left:
            yield from self._link(link)

    def _link(self, link: Link) -> Iterator[None]:
        bases = yield from self._staged.link(link)
        self._log.link(bases)
        assert self.end == link.position, "the log goes on behind the files of a job"
        for base, size_bytes in zip(bases, link.sizes, strict=True):
            at, end = base + SEGMENT_HEADER_BYTES, base + size_bytes - RECORD_HEAD_BYTES
            while at < end:
                yield
                stop = self._whole_records(at, end)
                self._replayer.apply(at, stop)
                at = stop

    def _whole_records(self, at: int, end: int) -> int:
        """Where some records end that lie from ``at`` on. Raises ``DamagedSharedLog``."""
        log, found = self._log.addresses.pointer, self._found
        stop, _, _ = scan.scan(log, at, min(end, at + _BYTES_A_STEP), _ALL, found)
        if stop == at:  # it is larger than what is looked at in a step
            stop, _, _ = scan.scan(log, at, end, _ALL, found[:1])
        if stop == at:
            raise DamagedSharedLog(f"what a bulk job has at position {at} of the log is no whole record")
        return stop

    def _note_place(self) -> None:
        """While a job is being staged, a later start must read its files again."""
        if self.reader.is_between_batches and not self.places.is_staging:
            assert self.reader.state.end == self.end, "a place says where this replica's log ends"
            self._checkpoints.place = place = place_of(self.reader.state, self.offset)
            self._checkpoints.trimmed = self._opened.applier.trimmed
            self.places.note(place)

    def _check_purged(self, data: bytes) -> None:
        """What a PURGED record means is found by reading this replica's own log, which must be whole there. Raises
        ``BeingHealed``."""
        at, into = 0, np.empty(64, np.uint64)
        while True:
            at, count, reason = scan.scan(uint8s(data), at, len(data), _PURGED, into)
            for place in into[:count].tolist():
                size_bytes = int.from_bytes(data[place + 4 : place + 8], "little")
                payload = data[place + RECORD_HEAD_BYTES : place + size_bytes]
                purged = msgspec.msgpack.decode(payload, type=Purged)
                self._check_whole(purged.start, purged.end)
            if reason != scan.FULL:
                return

    def _check_whole(self, start: int, end: int) -> None:
        base = start // self._log.segment_bytes * self._log.segment_bytes
        if base not in self._log.segments:
            return
        if self._purging is None or self._purging[0] != base:
            self._purging = base, Scrub(self._log, self.healing, base, base + self._log.segment_bytes)
        scrub = self._purging[1]
        while scrub.position < end and scrub.checked_step():
            pass

    def _write(self, position: int, data: bytes) -> None:
        size_bytes = whole_bytes(data)
        if size_bytes < 0:
            raise DamagedSharedLog(
                f"what the owner of the log wrote at position {position} is no whole record"
            )
        self._log.receive(position, data)
        self._replayer.apply(position, position + size_bytes)

    def housekeeping(self, now_ms: int) -> None:
        """To be called about once a second."""
        if not self._dropper.is_dropping and not self.places.is_staging and not self.is_linking:
            self._checkpoints.keep(now_ms, table_is_gone=False)

    def scrub(self) -> Scrub:
        """Looks through all of this replica's log for damage, also after it was promoted."""
        return Scrub(self._log, self.healing)

    # -- giving space back --

    def _note_purged(self, start: int, end: int) -> None:
        for ids in purge.listed(self._opened.tables.native, start, end):
            self._dropper.reclaim.note(ids)

    def sweep_step(self) -> bool:
        """Deletes a file of a job that came to nothing, also when this replica was promoted. Whether there was one."""
        return self._disk.sweep_staged()

    def trim_step(self) -> bool:
        """A little of dropping what the owner of the log has trimmed, some milliseconds at most: it waits for this
        machine's disk. Whether there is more to be done now. Raises ``OSError``."""
        if self.places.is_staging or self.is_linking:
            return False  # a checkpoint must not be made now
        if self._trimming is None:
            if not self._dropper.segments_before(self._opened.applier.trimmed):
                return False
            self._trimming = self._trim()
        try:
            if self._ticket is None:
                self._take_step(self._trimming)
            while isinstance(ticket := self._ticket, DropTicket):
                ticket.run()
                # What is emptied by records that the checkpoint does not cover must not be among the pages that go.
                self._take_step(self._trimming)
        except DiskFull:
            return False  # there may be room the next time
        except StopIteration:
            self._trimming = None
            return True
        if ticket is not None:
            ticket.run()
            self._ticket = None
        return True

    def _take_step(self, steps: Steps) -> None:
        pause = next(steps)
        assert not isinstance(pause, WaitDurable), "what is read counts"
        self._ticket = pause

    def _trim(self) -> Steps:
        end = self._opened.applier.trimmed
        yield from self._dropper.drop(self._dropper.segments_before(end))
        self.places.forget_before(end)
        yield from self._dropper.give_back(self.end)
        yield from self._dropper.shrink_keys()

    def promote(self) -> Opened:
        """What an owner needs, after its FENCE was taken. The follower must not be used any more. Raises
        ``DamagedLog``."""
        assert self._staged.is_empty, "a FENCE ends the jobs before it"
        assert not self.is_linking, "what was taken counts"
        assert self.reader.state.end == self.end, "an owner goes on where all replicas end"
        self._opened.applier.before_purge = None
        self._dropper.close()
        self._log.own()
        try:
            derive(self._opened.tables, keys_are_kept=True)
        except BaseException:
            self._opened.tables.close()
            self._log.close()
            raise
        return self._opened

    def close(self) -> None:
        """Leaves a checkpoint, so that the next start goes on here, if the follower is still whole."""
        try:
            place = self._checkpoints.place
            self._staged.discard()
            if place is not msgspec.UNSET and place.end == self.end:
                with suppress(DiskFull):  # then the next start reads a little more
                    self._checkpoints.save(clean=False, durable=False)
        finally:
            self._dropper.close()
            self._opened.tables.close()
            self._log.close()


def place_of(state: State, offset: int) -> Place:
    """Where a reader is that has taken the record at ``offset``."""
    return Place(state.end, offset, state.term, state.node, state.seq, state.chain)


def joined(ranges: Iterable[Range]) -> list[tuple[int, bytes]]:
    """Pieces that lie side by side as one: a record may begin in one and end in the next."""
    found: list[tuple[int, bytearray]] = []
    for position, data in ranges:
        behind = found[-1][0] + len(found[-1][1]) if found else 0
        assert position >= behind, "ranges of a batch follow each other"
        if found and found[-1][0] + len(found[-1][1]) == position:
            found[-1][1].extend(data)
        else:
            found.append((position, bytearray(data)))
    return [(position, bytes(data)) for position, data in found]


def open_follower(
    directory: Path | None,
    disk: Disk,
    node: StoreSettings,
    origin: Origin,
    now_ms: int,
) -> Follower:
    """Opens what a replica has, or makes a new one that begins where the replicated log can still be read. Raises
    ``OtherCluster``, ``BadSettings``, ``DiskFull``, ``UnsupportedFormat``, ``LogCut``."""
    genesis, start = origin.genesis, origin.start
    settings = genesis.settings_for(node)
    _refuse_other_logs(disk, genesis)
    places = Places(disk, genesis.segment_bytes)
    found = _reopened(directory, disk, settings, origin, places)
    if found is not None:
        opened, place = found
    elif start is None:
        raise LogCut(
            f"the log begins in the middle, at record {origin.first}, and this replica does not have all that was "
            "before it"
        )
    else:
        for base in disk.segments():  # nothing of it is known to count
            disk.remove_segment(base)
        opened, place = _new(directory, disk, settings, genesis, start), start
    opened.genesis = pack_genesis(genesis)
    if genesis.timeline:
        opened.mark = Mark(genesis.timeline, genesis.since_ms)
    opened.applier.tick_ms = max(opened.applier.tick_ms, genesis.began_ms)
    try:
        return Follower(opened=opened, disk=disk, place=place, places=places, now_ms=now_ms)
    except BaseException:
        opened.tables.close()
        opened.log.close()
        raise


def _refuse_other_logs(disk: Disk, genesis: Genesis) -> None:
    headers = [read_segment_header(disk, segment) for segment in disk.segments()]
    if {header.log_id for header in headers if header is not None} - {genesis.log_number}:
        raise OtherCluster(
            f"the directory holds another log than shard {genesis.shard} of cluster {genesis.cluster}"
        )


def _reopened(
    directory: Path | None, disk: Disk, settings: StoreSettings, origin: Origin, places: Places
) -> tuple[Opened, Place] | None:
    """None: there is nothing that can be used."""
    with ExitStack() as undo:
        headers = {segment: read_segment_header(disk, segment) for segment in disk.segments()}
        if not any(headers.values()):
            return None
        try:
            headers = without_purged(disk, headers)
            recovery = Recovery(
                directory=directory,
                disk=disk,
                settings=settings,
                headers=headers,
                undo=undo,
                durability=Shipped(),
                is_replica=True,
            )
            place = recovery.place or places.last_before(recovery.end) or origin.start
            if (
                place is None
                or not min(headers) < place.end <= recovery.end
                or place.offset + 1 < origin.first
            ):
                return None
            opened = recovery.catch_up(place.end)
        except DamagedLog:
            return None
        if not recovery.keys_are_kept:
            find_keys(opened.tables)
        undo.pop_all()
        return opened, place


def _new(
    directory: Path | None, disk: Disk, settings: StoreSettings, genesis: Genesis, start: Place
) -> Opened:
    with ExitStack() as undo:
        first = start.end // settings.segment_bytes * settings.segment_bytes
        opened = create(
            directory, disk, settings, genesis.log_number, 0, undo, first=first, durability=Shipped()
        )
        undo.pop_all()
        return opened
