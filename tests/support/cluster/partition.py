"""A partition as a list, and nodes that write to it and read it in any order: what the rule of replication must bear.

What a node appends may be taken at once, later, twice, or not at all; the answer may come, be lost, or not say where.
Former owners write on until they read that they were replaced, and a node may be stopped for as long as it likes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from timerlog.commitlog.durability import Link, Piece
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.replication.record import Range, Writer, fence, unpack, unpack_staging
from timerlog.replication.rule import Confirmations, Reader, Said, Taken, next_start

SEGMENT_BYTES = 4_096


@dataclass
class Partition:
    records: list[bytes] = field(default_factory=list)
    #: What the owners staged: job -> its files.
    jobs: dict[bytes, list[bytes]] = field(default_factory=dict)

    def append(self, record: bytes) -> int:
        self.records.append(record)
        return len(self.records) - 1


@dataclass
class Promise:
    """What a node answered for: a batch of its own."""

    last_seq: int
    ranges: list[Range]


class Node:
    """One of several that want to own the log. ``make_reader`` and ``make_confirmations`` are what is tested."""

    def __init__(
        self,
        number: int,
        partition: Partition,
        rng: random.Random,
        make_reader: Callable[[], Reader],
        make_confirmations: Callable[[int], Confirmations],
    ) -> None:
        self.number, self._partition, self._rng = number, partition, rng
        self._make_reader, self._make_confirmations = make_reader, make_confirmations
        self.promised: list[Range] = []
        self.start_anew()

    def start_anew(self) -> None:
        """The process ends; all that it knew is gone."""
        self.reader = self._make_reader()
        self.offset = 0
        self.accepted: list[Range] = []
        self.linked = 0
        self._staged: list[tuple[bytes, Range]] = []
        self._seen_term = 0
        self._fencing = 0
        self._resign()

    def _resign(self) -> None:
        self._writer: Writer | None = None
        self._confirmations: Confirmations | None = None
        self._end = 0
        self._job = b""
        self._waiting: list[Promise] = []
        self._late: list[tuple[int, bytes]] = []

    @property
    def is_owner(self) -> bool:
        """Whether it believes so."""
        return self._writer is not None

    # -- steps --

    def campaign(self) -> None:
        self._resign()
        self._fencing = max(self._seen_term, self.reader.state.term) + 1
        self._partition.append(fence(self.number, self._fencing, 0))

    def write(self) -> None:
        if self._writer is None:
            return
        position, ranges = self._end, list[Range]()
        pieces: list[Piece] = []
        for _ in range(self._rng.choice([1, 1, 2])):
            data = self._rng.randbytes(self._rng.randrange(8, 64, 8))
            ranges.append((position, data))
            pieces.append(ranges[-1])
            self._end = position + len(data)
            position = next_start(self._end, SEGMENT_BYTES)
            if self._job:
                files, job = self._partition.jobs[self._job], self._job
                self._job, position = b"", position + len(files) * SEGMENT_BYTES
                link = Link(position, job, tuple(map(len, files)))
                pieces.append(link)
                ranges += linked(link, files)
                self._end = position
        first = self._writer.seq
        records = self._writer.data(pieces, 0, max_bytes=self._rng.choice([16, 24, 1_000]))
        self._waiting.append(Promise(self._writer.seq - 1, ranges))
        self._send(first, records)

    def stage(self) -> None:
        """All nodes get the files of a job, which the next batch links."""
        if self._writer is None or self._job:
            return
        job = self._rng.randbytes(16)
        sizes = [
            SEGMENT_HEADER_BYTES + self._rng.randrange(8, 64, 8) for _ in range(self._rng.choice([1, 2]))
        ]
        files = self._partition.jobs[job] = [self._rng.randbytes(size) for size in sizes]
        first = self._writer.seq
        ranges = [(number * SEGMENT_BYTES, data) for number, data in enumerate(files)]
        self._send(first, self._writer.stage(job, ranges, 0, max_bytes=self._rng.choice([40, 1_000])))
        if self._writer is not None:
            self._job = job

    def beat(self) -> None:
        if self._writer is not None:
            seq = self._writer.seq
            self._send(seq, [self._writer.beat(0)])

    def _send(self, first_seq: int, records: list[bytes]) -> None:
        for seq, record in enumerate(records, first_seq):
            if self._writer is None:
                return  # one before it failed
            match self._rng.choice(["taken"] * 40 + ["no place", "late", "twice", "failed", "lost", "cut"]):
                case "taken":
                    self._placed(seq, self._partition.append(record))
                case "no place":
                    self._partition.append(record)
                    self._placed(seq, None)
                case "late":
                    self._late.append((seq, record))
                case "twice":
                    first = self._partition.append(record)
                    second = self._partition.append(record)
                    self._placed(seq, self._rng.choice([first, second]))
                case "lost":  # Kafka said that it has it, and has not: the rule must not promise it
                    self._placed(seq, None)
                case "failed":
                    self._resign()
                case "cut":  # it is taken, and the node never learns of it
                    self._partition.append(record)
                    self._resign()

    def late_ones_arrive(self) -> None:
        late, self._late = self._late, []
        for seq, record in late:
            self._placed(seq, self._partition.append(record))

    def _placed(self, seq: int, offset: int | None) -> None:
        if self._confirmations is not None:
            self._promise(self._confirmations.placed(seq, offset))

    def _promise(self, seq: int) -> None:
        while self._waiting and self._waiting[0].last_seq <= seq:
            self.promised += self._waiting.pop(0).ranges

    def read(self, count: int) -> None:
        for offset in range(self.offset, min(self.offset + count, len(self._partition.records))):
            self._read_one(offset)

    def _read_one(self, offset: int) -> None:
        self.offset = offset + 1
        found = unpack(self._partition.records[offset])
        assert found is not None
        head, body = found
        self._seen_term = max(self._seen_term, head.term)
        term = self.reader.state.term
        taken = self.reader.take(head, body)
        assert self.reader.state.term >= term, "a term came back"
        self._accept(taken)
        if taken.said is Said.STAGED:
            staging = unpack_staging(head.position, body)
            self._staged.append((staging.job, (staging.position, staging.data)))
        if taken.said is Said.FENCED:
            self._staged.clear()
            self._resign()
            if (head.term, head.node) == (self._fencing, self.number):
                self._confirmations = self._make_confirmations(offset)
                wrote = self._confirmations.wrote
                self._writer = Writer(self.number, head.term, self.reader.state.chain, wrote)
                self._end = self.reader.state.end
        elif taken.said is not Said.PASSED_OVER and self._confirmations is not None:
            self._promise(self._confirmations.read(head.seq, offset, self.reader.chain))
            if self._confirmations.is_foreign:
                self._resign()

    def _accept(self, taken: Taken) -> None:
        found = list(taken.ranges)
        for link in taken.links:
            files = self._partition.jobs[link.job]
            assert contains_all(self._staged, link.job, files), "a job is linked whose files did not come"
            self.linked += 1
            found += linked(link, files)
        self.accepted += sorted(found)


class World:
    """Nodes, a partition, and what happens to them, by a seed."""

    def __init__(
        self,
        seed: int,
        make_reader: Callable[[], Reader] = lambda: Reader(SEGMENT_BYTES),
        make_confirmations: Callable[[int], Confirmations] = Confirmations,
    ) -> None:
        self._rng = random.Random(seed)
        self.partition = Partition()
        self._make_reader = make_reader
        self.nodes = [
            Node(number, self.partition, self._rng, make_reader, make_confirmations) for number in range(1, 4)
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            node = self._rng.choice(self.nodes)
            match self._rng.choices(
                ["write", "stage", "beat", "read", "late", "campaign", "anew"],
                [10, 3, 2, 6, 2, 0.1 if any(one.is_owner for one in self.nodes) else 3, 0.1],
            )[0]:
                case "write":
                    node.write()
                case "stage":
                    node.stage()
                case "beat":
                    node.beat()
                case "read":
                    node.read(self._rng.choice([1, 3, 100]))
                case "late":
                    node.late_ones_arrive()
                case "campaign":
                    node.campaign()
                case "anew":
                    node.start_anew()

    def check(self) -> list[Range]:
        """What counts, after all readers agree on it. Raises ``AssertionError``."""
        fresh = Node(9, self.partition, self._rng, self._make_reader, Confirmations)
        fresh.read(len(self.partition.records))
        log = fresh.accepted
        end = None
        for position, data in log:
            assert end is None or position in (end, next_start(end, SEGMENT_BYTES)), "a hole in the log"
            end = position + len(data)
        for node in self.nodes:
            assert node.accepted == log[: len(node.accepted)], "two readers disagree"
            for promise in node.promised:
                assert contains(log, promise), "what was answered for was passed over"
        return log


def linked(link: Link, files: list[bytes]) -> list[Range]:
    """The bytes that a link makes a part of the log, without the headers of the segments."""
    first = link.position - len(files) * SEGMENT_BYTES
    return [
        (first + number * SEGMENT_BYTES, data[SEGMENT_HEADER_BYTES:]) for number, data in enumerate(files)
    ]


def contains_all(staged: list[tuple[bytes, Range]], job: bytes, files: list[bytes]) -> bool:
    """Whether what was staged is each byte of a job's files once, in order."""
    found = [bytearray() for _ in files]
    for of, (position, data) in staged:
        if of == job:
            number, offset = divmod(position, SEGMENT_BYTES)
            if offset != len(found[number]):
                return False
            found[number] += data
    return found == files


def contains(log: list[Range], one: Range) -> bool:
    """Whether the log has these bytes at this position."""
    position, data = one
    while data:
        at = [one for one in log if one[0] <= position < one[0] + len(one[1])]
        if not at:
            return False
        start, piece = at[0]
        part = piece[position - start :][: len(data)]
        if data[: len(part)] != part:
            return False
        position, data = position + len(part), data[len(part) :]
    return True
