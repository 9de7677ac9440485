"""What has happened, from the CommitLog's records: one row for each message that a record is about.

Everything is done for many records at once: those of one type are gathered into one array of runs, which is then
expanded. Records inside a transaction are rows like any others, at their own positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from timerlog.commitlog.reader import END_RECORD, padded
from timerlog.commitlog.view import LogView
from timerlog.errors import DamagedLog
from timerlog.layout import RECORD_HEAD_BYTES, RUN, TRANSACTION_ID_BYTES, Array, Int64Array, RecordType
from timerlog.life import ENDS

NO_TIME: Final = -1  #: the log does not say when
CHUNK_ROWS: Final = 100_000

#: The names of events, by the type of the record that says so.
EVENTS: Final[dict[int, str]] = {
    RecordType.MESSAGE: "sent",
    RecordType.PUT: "due",
    RecordType.LEASE: "delivered",
    RecordType.ACK: "acked",
    RecordType.NACK: "nacked",
    RecordType.RELEASE: "released",
    RecordType.RETURNED: "returned",
    RecordType.RESCHEDULE: "rescheduled",
    RecordType.REDELIVER: "redelivered",
    RecordType.CANCEL: "cancelled",
    RecordType.EXPIRED: "expired",
    RecordType.DAMAGED: "damaged",
    RecordType.DEAD: "dead",
    RecordType.DROPPED: "dropped",
}
_LISTS_IDS: Final = frozenset(ENDS)
#: Those that name messages by id; the others do it by number in the topic of the group in ``aux``.
_NAMES_IDS: Final = _LISTS_IDS | {RecordType.MESSAGE, RecordType.PUT, RecordType.RESCHEDULE}
#: Where the runs begin in the payload of each type that has some.
_RUNS_AT: Final[dict[int, int]] = {
    RecordType.PUT: 24,
    RecordType.LEASE: 0,
    RecordType.ACK: 0,
    RecordType.NACK: 8,
    RecordType.RELEASE: 0,
    RecordType.RETURNED: 8,
    RecordType.RESCHEDULE: 0,
    RecordType.REDELIVER: 8,
    RecordType.DEAD: 0,
}
#: Where the payload itself says how many runs there are.
_COUNT_AT: Final[dict[int, int]] = {RecordType.PUT: 16, RecordType.NACK: 0}
#: What the time of a run is: when it happened, and not when it goes on.
_HAPPENED: Final = frozenset({RecordType.ACK, RecordType.DEAD})


def event_types(names: Iterable[str]) -> frozenset[int]:
    """The record types of some events. Raises ``KeyError`` for a name that is none."""
    types = {name: kind for kind, name in EVENTS.items()}
    return frozenset(types[name] for name in names)


@dataclass(slots=True)
class Events:
    """Columns of equal length, in order of the log. ``kinds``: record types. Times: epoch ms, or NO_TIME. ``seqs``: the
    number in the topic, -1 where the record names ids; ``ids``: 0 where it names numbers. ``topic_ids``, ``group_ids``:
    0 where the record does not say. ``places``: which of the record's messages. ``errors``: by position."""

    positions: Int64Array
    places: Int64Array
    kinds: npt.NDArray[np.uint8]
    times_ms: Int64Array
    next_ms: Int64Array
    topic_ids: Int64Array
    group_ids: Int64Array
    ids: Int64Array
    seqs: Int64Array
    epochs: Int64Array
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.positions)


_COLUMNS: Final = tuple(column.name for column in fields(Events) if column.name != "errors")


def read_events(
    log: LogView,
    start: int,
    end: int,
    wanted: frozenset[int] = frozenset(EVENTS),
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Events]:
    """The events between two positions at which records begin, about ``chunk_rows`` at a time: a record is not split.
    Checksums are checked. Raises ``DamagedLog`` when the records do not reach ``end``."""
    for part in log.scan(start, end, wanted | {RecordType.TRANSACTION}):
        if part.reason is not None and part.reason != END_RECORD and part.stop < end:
            raise DamagedLog(f"the log cannot be read at position {part.stop}, although it reached {end}")
        yield from events_of(log, flat(log, part.positions, wanted), chunk_rows)


def events_of(log: LogView, positions: Int64Array, chunk_rows: int = CHUNK_ROWS) -> Iterator[Events]:
    """The events of some records, of which none is a transaction, about ``chunk_rows`` at a time."""
    if not len(positions):
        return
    before = np.cumsum(_row_counts(log, positions))
    cuts = np.flatnonzero(np.diff(before // chunk_rows)) + 1
    for piece in np.split(positions, cuts):
        yield _decode(log, piece)


def position_after_rows(log: LogView, start: int, end: int, wanted: frozenset[int], limit_rows: int) -> int:
    """The position behind at most ``limit_rows`` events, at which a record begins; behind the first record with any if
    that has more. ``end`` when there are no more events than that."""
    left = limit_rows
    for part in log.scan(start, end, wanted | {RecordType.TRANSACTION}):
        tops = part.positions
        inside, of_top = flat_with_tops(log, tops, wanted)
        if not len(inside):
            continue
        counts = np.bincount(of_top, _row_counts(log, inside), len(tops)).astype(np.int64)
        before = np.cumsum(counts)
        over = np.flatnonzero(before > left)
        if len(over):
            first = int(over[0])
            is_nothing_yet = left == limit_rows and (first == 0 or before[first - 1] == 0)
            if not is_nothing_yet:
                assert int(tops[first]) > start, "who reads on from there comes to more"
                return int(tops[first])
            return min(end, _behind(log, int(tops[first])))
        left -= int(before[-1])
    return end


def position_after_bytes(log: LogView, start: int, end: int, limit_bytes: int) -> int:
    """The first position at least ``limit_bytes`` behind ``start`` at which a record begins; ``end`` when there is
    none before it."""
    assert limit_bytes > 0, "who reads on from there comes to more"
    for part in log.scan(start, end):
        far = part.positions[part.positions >= start + limit_bytes]
        if len(far):
            return int(far[0])
    return end


def _behind(log: LogView, position: int) -> int:
    size = int(log.heads(np.array([position]))["record_bytes"][0])
    return position + padded(size)


def records_about(
    log: LogView, positions: Int64Array, message_id: int, seqs: Collection[int], groups: Collection[int]
) -> Int64Array:
    """Those of some records that are about one message, by its id, or by one of its numbers in its topic if the record
    is of one of these groups of the topic."""
    heads = log.heads(positions)
    is_about = np.zeros(len(positions), bool)
    for kind in np.unique(heads["type"]).tolist():
        mine = np.flatnonzero(heads["type"] == kind)
        if kind not in _NAMES_IDS:
            mine = mine[np.isin(heads["aux"][mine], list(groups))]
        sizes = heads["record_bytes"][mine].astype(np.int64)
        if kind == RecordType.MESSAGE:
            is_about[mine] = log.messages(positions[mine])["id"] == message_id
        elif kind in _LISTS_IDS:
            counts = (sizes - RECORD_HEAD_BYTES) // 8
            ids = log.gather(positions[mine] + RECORD_HEAD_BYTES, counts * 8).view(np.uint64)
            is_about[np.repeat(mine, counts)[ids == message_id]] = True
        else:
            runs, of_record = _runs(log, kind, positions[mine], sizes)
            ends = runs["first"] + runs["count"]
            for value in [message_id] if kind in _NAMES_IDS else seqs:
                hits = (runs["first"] <= value) & (value < ends)
                is_about[mine[of_record[hits]]] = True
    return positions[is_about]


def flat(log: LogView, positions: Int64Array, wanted: frozenset[int]) -> Int64Array:
    """The records of the types that are wanted, with those inside transactions in place of these."""
    return flat_with_tops(log, positions, wanted)[0]


def flat_with_tops(
    log: LogView, positions: Int64Array, wanted: frozenset[int]
) -> tuple[Int64Array, Int64Array]:
    """As ``flat``, and from which of ``positions`` each comes."""
    heads = log.heads(positions)
    groups = np.flatnonzero(heads["type"] == RecordType.TRANSACTION)
    tops = np.arange(len(positions))
    if not len(groups):
        return positions, tops
    parts, of_top = [np.delete(positions, groups)], [np.delete(tops, groups)]
    for index in groups.tolist():
        inside = int(positions[index]) + RECORD_HEAD_BYTES + TRANSACTION_ID_BYTES
        end = int(positions[index]) + int(heads["record_bytes"][index])
        for part in log.scan(inside, end, wanted):
            parts.append(part.positions)
            of_top.append(np.full(len(part.positions), index))
    found, which = np.concatenate(parts), np.concatenate(of_top)
    order = np.argsort(found, kind="stable")
    return found[order], which[order]


def _row_counts(log: LogView, positions: Int64Array) -> Int64Array:
    """How many messages each record is about."""
    heads = log.heads(positions)
    counts = np.ones(len(positions), np.int64)
    for kind in np.unique(heads["type"]).tolist():
        mine = np.flatnonzero(heads["type"] == kind)
        sizes = heads["record_bytes"][mine].astype(np.int64)
        if kind in _LISTS_IDS:
            counts[mine] = (sizes - RECORD_HEAD_BYTES) // 8
        elif kind != RecordType.MESSAGE:
            runs, of_record = _runs(log, kind, positions[mine], sizes)
            counts[mine] = np.bincount(of_record, runs["count"], len(mine)).astype(np.int64)
    return counts


def _runs(log: LogView, kind: int, positions: Int64Array, sizes: Int64Array) -> tuple[Array, Int64Array]:
    """All runs of records of one type, and which record each is of. Raises ``DamagedLog`` for a record that ends before
    its runs do: positions come from clients, and what begins at a wrong one may be a piece of a message."""
    payloads = positions + RECORD_HEAD_BYTES
    room = (sizes - RECORD_HEAD_BYTES - _RUNS_AT[kind]) // RUN.itemsize
    is_whole = room >= 0
    counts = room
    if kind in _COUNT_AT and is_whole.all():
        counts = log.word(payloads + _COUNT_AT[kind])
        is_whole = (counts >= 0) & (counts <= room)
    if not is_whole.all():
        position = int(positions[~is_whole][0])
        raise DamagedLog(
            f"no event begins at position {position}: take positions that a table or a stream told"
        )
    runs = log.gather(payloads + _RUNS_AT[kind], counts * RUN.itemsize).view(RUN)
    return runs, np.repeat(np.arange(len(positions)), counts)


def _decode(log: LogView, positions: Int64Array) -> Events:
    """The rows of some records, in order."""
    heads = log.heads(positions)
    parts = [
        _DECODERS[kind](log, kind, positions[heads["type"] == kind], heads[heads["type"] == kind])
        for kind in np.unique(heads["type"]).tolist()
    ]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    assert len({len(column) for column in joined.values()}) == 1, "columns are of equal length"
    order = np.argsort(joined["positions"], kind="stable")
    errors = {position: text for part in parts for position, text in part.errors.items()}
    return Events(**{name: column[order] for name, column in joined.items()}, errors=errors)


def _new(kind: int, positions: Int64Array, places: Int64Array) -> Events:
    rows = len(positions)
    return Events(
        positions=positions,
        places=places,
        kinds=np.full(rows, kind, np.uint8),
        times_ms=np.full(rows, NO_TIME, np.int64),
        next_ms=np.full(rows, NO_TIME, np.int64),
        topic_ids=np.zeros(rows, np.int64),
        group_ids=np.zeros(rows, np.int64),
        ids=np.zeros(rows, np.int64),
        seqs=np.full(rows, -1, np.int64),
        epochs=np.zeros(rows, np.int64),
    )


def _sent(log: LogView, kind: int, positions: Int64Array, heads: Array) -> Events:
    messages = log.messages(positions)
    events = _new(kind, positions, np.zeros(len(positions), np.int64))
    events.times_ms, events.next_ms = messages["created_ms"].copy(), messages["deliver_at_ms"].copy()
    events.topic_ids = messages["topic_id"].astype(np.int64)
    events.ids = messages["id"].astype(np.int64)
    return events


def _listed(log: LogView, kind: int, positions: Int64Array, heads: Array) -> Events:
    counts = (heads["record_bytes"].astype(np.int64) - RECORD_HEAD_BYTES) // 8
    events = _new(kind, np.repeat(positions, counts), _places(counts))
    events.ids = log.gather(positions + RECORD_HEAD_BYTES, counts * 8).view(np.int64)
    return events


def _places(counts: Int64Array) -> Int64Array:
    """0, 1, 2 … for each of some counts."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _in_runs(log: LogView, kind: int, positions: Int64Array, heads: Array) -> Events:
    """Rows of runs; what only some types have is filled in behind."""
    sizes = heads["record_bytes"].astype(np.int64)
    runs, of_record = _runs(log, kind, positions, sizes)
    counts = runs["count"].astype(np.int64)
    values = np.repeat(runs["first"].astype(np.int64), counts) + _places(counts)
    of_row = np.repeat(of_record, counts)
    events = _new(kind, positions[of_row], _places(np.bincount(of_row, minlength=len(positions))))
    times, epochs = np.repeat(runs["time_ms"], counts), np.repeat(runs["epoch"].astype(np.int64), counts)
    aux = heads["aux"].astype(np.int64)[of_row]
    if kind == RecordType.PUT:
        events.ids, events.topic_ids = values, aux
        events.times_ms = log.word(positions + RECORD_HEAD_BYTES)[of_row]
        events.seqs = log.word(positions + RECORD_HEAD_BYTES + 8)[of_row] + events.places
        return events
    if kind == RecordType.RESCHEDULE:
        events.ids, events.next_ms = values, times
        return events
    events.seqs, events.group_ids, events.epochs = values, aux, epochs
    if kind == RecordType.RETURNED:  # its runs have something else in the time's place
        events.times_ms = log.word(positions + RECORD_HEAD_BYTES)[of_row]
    elif kind in _HAPPENED:
        events.times_ms = times
    else:
        events.next_ms = times
    if kind == RecordType.LEASE:
        events.times_ms = _given_ms(log, positions, sizes)[of_row]
    elif kind == RecordType.NACK:
        events.errors = _nack_errors(log, positions, sizes)
    return events


def _given_ms(log: LogView, positions: Int64Array, sizes: Int64Array) -> Int64Array:
    """When leases were given; older logs do not say it."""
    says = (sizes - RECORD_HEAD_BYTES) % RUN.itemsize != 0
    times = np.full(len(positions), NO_TIME, np.int64)
    times[says] = log.word(positions[says] + sizes[says] - 8)
    return times


def _nack_errors(log: LogView, positions: Int64Array, sizes: Int64Array) -> dict[int, str]:
    starts = positions + RECORD_HEAD_BYTES + 8 + log.word(positions + RECORD_HEAD_BYTES) * RUN.itemsize
    rest = positions + sizes - starts
    return {
        position: log.read(start, count).decode(errors="replace")
        for position, start, count in zip(positions.tolist(), starts.tolist(), rest.tolist(), strict=True)
        if count
    }


_Decoder = Callable[[LogView, int, Int64Array, Array], Events]
_DECODERS: Final[dict[int, _Decoder]] = {
    RecordType.MESSAGE: _sent,
    **dict.fromkeys(_LISTS_IDS, _listed),
    **dict.fromkeys(_RUNS_AT, _in_runs),
}
assert _DECODERS.keys() == EVENTS.keys(), "each event can be read, and what is read is an event"
assert len(set(EVENTS.values())) == len(EVENTS), "an event is asked for by its name"
