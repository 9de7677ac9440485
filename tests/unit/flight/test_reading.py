"""Plans and streams over a real directory, with each kind of rights."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.run.cases import table
from tests.unit.flight.filled import COUNT, TOPICS, fill, in_place
from tickwheel.arrow.columns import COLUMNS, EVENT_COLUMNS, MESSAGE_COLUMNS
from tickwheel.arrow.errors import PositionLost, SourceError
from tickwheel.errors import Forbidden, LoginRequired, ShuttingDown
from tickwheel.protocol.grants import Granted, parse_grants
from tickwheel_flight import reading as module
from tickwheel_flight.commands import Command, parse_command
from tickwheel_flight.directory import Directory
from tickwheel_flight.reading import Reading, TooManyStreams, readable
from tickwheel_flight.tickets import BadTicket, Moment, Ticket, make_ticket, open_ticket
from tickwheel_flight.turns import Turns
from timerlog.errors import PositionGone

ALL = Granted(None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("flight") / "data"
    fill(found)
    return found


@pytest.fixture
def reading(directory: Path) -> Reading:
    return Reading(Directory(directory), Turns(2))


def granted(*grants: str) -> Granted:
    return Granted(parse_grants(grants))


def rows(reading: Reading, command: Command, who: Granted = ALL) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for ticket in reading.plan(command, who).tickets:
        _, batches = reading.stream(ticket, lambda has_begun: who, lambda: False)
        found += [row for batch in batches for row in batch.to_pylist()]
    return found


def now_of(reading: Reading, command: Command) -> int:
    return open_ticket(reading.plan(command, ALL).tickets[0]).moment.now_ms


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
@table("name", ["messages", "events"])
@table("size", [None, 7])
def test_the_rows_are_those_that_are_read_in_place(
    reading: Reading, directory: Path, name: Any, size: int | None
) -> None:
    command = Command(table=name, rows_per_partition=size)
    columns = list(COLUMNS[command.table])
    found = rows(reading, command)
    expected = in_place(directory, name, columns, now_of(reading, command))
    order = str if size else lambda row: 0  # a part has the rows of each group one behind the other
    assert sorted(found, key=order) == sorted(expected, key=order)
    assert len(expected) >= 4 * COUNT
    assert list(found[0]) == columns


def test_columns_and_filters(reading: Reading) -> None:
    command = Command(columns=["key", "id"], filters=[["topic", "=", "b.orders"], ["key", "is not null"]])
    found = rows(reading, command)
    assert [row["key"] for row in found] == [f"key-{n}" for n in range(COUNT) if n % 3]
    assert list(found[0]) == ["key", "id"]


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
@table("name", ["messages", "events"])
@table(
    ("grants", "topics"),
    [
        (["query:*"], TOPICS),
        (["query:a.*"], ("a.orders", "a.mails")),
        (["query:b.orders", "consume:*"], ("b.orders",)),
        (["query:nothing"], ()),
    ],
)
def test_a_token_sees_the_topics_that_it_may_query(
    reading: Reading, directory: Path, name: Any, grants: list[str], topics: tuple[str, ...]
) -> None:
    columns = [column for column in COLUMNS[Command(table=name).table] if column != "body"]
    command = Command(table=name, columns=columns)
    found = rows(reading, command, granted(*grants))
    everything = in_place(directory, name, columns, now_of(reading, command))
    sees_all = "query:*" in grants
    assert found == [row for row in everything if sees_all or row["topic"] in topics]
    others = set(TOPICS) - set(topics)
    assert not any(other in str(row) for row in found for other in others)


def test_who_may_query_nothing_is_told_nothing(reading: Reading) -> None:
    (ticket,) = reading.plan(Command(columns=["id"]), ALL).tickets
    who = granted("consume:*", "publish:*", "admin:*", "push:*")
    for ask in (
        lambda: reading.schema(Command(), who),
        lambda: reading.plan(Command(), who),
        lambda: reading.first_offset(Command(table="events"), who),
        lambda: reading.last_offset(Command(table="events"), who),
        lambda: reading.stream(ticket, lambda has_begun: who, lambda: False),
    ):
        with pytest.raises(Forbidden, match="may not query any topic"):
            ask()


def test_how_many_events_there_are_elsewhere_is_not_told(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one event for who may query all; for others of so many bytes, to where a record begins."""
    command = Command(table="events", columns=["position"], limit_rows=1)

    def steps(who: Granted) -> int:
        start, count = reading.first_offset(command, who), 0
        while (further := reading.last_offset(replace(command, start=start), who)) != start:
            start, count = further, count + 1
        return count

    limited = granted("query:a.*")
    assert steps(ALL) > COUNT
    assert steps(limited) == 1
    monkeypatch.setattr(module, "_LEAST_STEP_BYTES", 2_000)
    assert 2 < steps(limited) < 12
    (first,) = reading.first_offset(command, ALL).items()
    (second,) = reading.last_offset(replace(command, start=dict([first])), limited).items()
    assert len(rows(reading, Command(table="events", start=dict([first]), end=dict([second])))) > 1
    with pytest.raises(PositionLost, match="no record begins"):
        reading.last_offset(replace(command, start={first[0]: first[1] + 1}), ALL)


def test_parts_are_not_without_number(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTS", 100)
    assert len(reading.plan(Command(rows_per_partition=2), ALL).tickets) == 90
    with pytest.raises(SourceError, match="more than 100 parts"):
        reading.plan(Command(rows_per_partition=1), ALL)


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_bodies_need_the_right_to_consume(reading: Reading) -> None:
    who = granted("query:*", "consume:a.*")
    everything = Command()
    assert "body" not in reading.schema(everything, who).names
    assert "body" not in reading.plan(everything, who).schema.names
    assert "body" in reading.schema(everything, granted("query:a.*", "consume:a.*")).names
    with pytest.raises(Forbidden, match=r"'b\.orders' may not be consumed"):
        reading.plan(Command(columns=["id", "body"]), who)
    chosen = Command(columns=["id", "body"], filters=[["topic", "starts with", "a."]])
    assert {row["body"][:2] for row in rows(reading, chosen, who)} == {b"a."}


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_a_ticket_gives_no_right(reading: Reading) -> None:
    """Of somebody who may more, or of nobody: who comes with it is judged."""
    (ticket,) = reading.plan(Command(columns=["topic", "body"]), ALL).tickets
    with pytest.raises(Forbidden):
        reading.stream(ticket, lambda has_begun: granted("query:*"), lambda: False)
    (ticket,) = reading.plan(Command(columns=["topic"]), ALL).tickets
    _, batches = reading.stream(ticket, lambda has_begun: granted("query:b.*"), lambda: False)
    assert {row["topic"] for batch in batches for row in batch.to_pylist()} == {"b.orders"}


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_a_stream_ends_when_its_token_does(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is some seconds later."""
    seconds = itertools.count(0, 4)
    reading = Reading(Directory(directory), Turns(1), lambda: float(next(seconds)))
    monkeypatch.setattr(module, "CHUNK_ROWS", 10)
    monkeypatch.setattr(module, "_LEAST_ROWS", 10)
    (ticket,) = reading.plan(Command(columns=["id"]), ALL).tickets
    answers: Iterator[Granted] = iter([ALL, ALL, ALL])
    asked = []

    def judge(has_begun: bool) -> Granted:
        asked.append(has_begun)
        found = next(answers, None)
        if found is None:
            raise LoginRequired
        return found

    _, batches = reading.stream(ticket, judge, lambda: False)
    read: list[Any] = []
    with pytest.raises(LoginRequired):
        read.extend(batches)
    assert asked == [False, True, True, True]
    assert 0 < len(read) < 24
    _, others = reading.stream(
        ticket, lambda has_begun: granted("query:a.*") if has_begun else ALL, lambda: False
    )
    with pytest.raises(Forbidden, match="has changed"):
        list(others)


def test_streams_are_counted_and_given_back(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", 10)
    monkeypatch.setattr(module, "_LEAST_ROWS", 10)
    (ticket,) = reading.plan(Command(columns=["id"]), ALL).tickets
    begun: list[Any] = []

    def begin() -> None:
        _, batches = reading.stream(ticket, lambda has_begun: ALL, lambda: False)
        next(batches)
        begun.append(batches)

    for _ in range(module.MAX_STREAMS):
        reading.stream(ticket, lambda has_begun: ALL, lambda: False)[1].close()  # type: ignore[attr-defined]
        begin()
    with pytest.raises(TooManyStreams):
        begin()
    assert 0 < sum(len(batch) for batch in begun.pop()) < 4 * COUNT
    begun.pop().close()
    begin()
    begin()
    with pytest.raises(TooManyStreams):
        begin()


@table(("name", "least"), [("messages", 11), ("events", 2)])
def test_who_looks_for_what_is_not_there_takes_many_turns(
    directory: Path, name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(Turns):
        taken = 0

        @contextmanager
        def turn(self, has_left: Callable[[], bool]) -> Iterator[None]:
            self.taken += 1
            with super().turn(has_left):
                yield

    monkeypatch.setattr(module, "CHUNK_ROWS", 2)
    monkeypatch.setattr(module, "_LEAST_ROWS", 2)
    turns = Counted(1)
    reading = Reading(Directory(directory), turns)
    command = Command(table=name, columns=["id"], filters=[["key", "=", "nobody"]])
    assert rows(reading, command) == []
    assert turns.taken >= least
    # Who has gone is not read for.
    has_left = iter([False] * 4)
    for ticket in reading.plan(command, ALL).tickets:
        before = turns.taken
        assert [*reading.stream(ticket, lambda has_begun: ALL, lambda: next(has_left, True))[1]] == []
        assert turns.taken - before <= 4


def test_the_end_of_the_process_ends_streams(reading: Reading) -> None:
    (ticket,) = reading.plan(Command(columns=["id"]), ALL).tickets
    _, batches = reading.stream(ticket, lambda has_begun: ALL, lambda: False)
    reading.stop()
    with pytest.raises(ShuttingDown):
        next(batches)
    with pytest.raises(ShuttingDown):
        reading.stream(ticket, lambda has_begun: ALL, lambda: False)


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_a_ticket_is_good_in_another_process(directory: Path) -> None:
    command = Command(columns=["id", "state"], rows_per_partition=50)
    first = Reading(Directory(directory), Turns(1))
    tickets = first.plan(command, ALL).tickets
    assert len(tickets) == 4
    other = Reading(Directory(directory), Turns(1))
    for ticket in tickets:
        mine, theirs = (
            [
                *itertools.chain.from_iterable(
                    b.to_pylist() for b in one.stream(ticket, lambda _: ALL, bool)[1]
                )
            ]
            for one in (first, other)
        )
        assert mine == theirs


def changed(ticket: bytes, **changes: Any) -> bytes:
    """A ticket that somebody has written himself, digest and all."""
    found = open_ticket(ticket)
    moment = msgspec.structs.replace(
        found.moment, **{name: changes.pop(name) for name in ("log", "next_id", "now_ms") if name in changes}
    )
    found = msgspec.structs.replace(found, moment=moment, **changes)
    return make_ticket(
        found.moment,
        found.table,
        (found.first, found.end),
        columns=found.columns,
        filters=found.filters,
        events=found.events,
    )


@pytest.mark.promise("tables-that-are-read-from-elsewhere")
def test_tickets_that_were_made_up(reading: Reading) -> None:
    (ticket,) = reading.plan(Command(columns=["id"]), ALL).tickets
    (events, *_) = reading.plan(Command(table="events", columns=["id"]), ALL).tickets

    def read(packed: bytes) -> int:
        return sum(len(batch) for batch in reading.stream(packed, lambda _: ALL, lambda: False)[1])

    whole = read(ticket)
    for bit in range(8 * len(ticket)):
        wrong = bytearray(ticket)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadTicket):
            read(bytes(wrong))
    for packed in (b"", ticket[:20], ticket + b"x"):
        with pytest.raises(BadTicket):
            read(packed)
    with pytest.raises(PositionLost, match="is for the log 1111"):
        read(changed(ticket, log="1" * 16))
    with pytest.raises(PositionLost, match="known up to"):
        read(changed(ticket, next_id=1 << 60))
    with pytest.raises(SourceError, match="no column 'secret'"):
        read(changed(ticket, columns=("secret",)))
    assert read(changed(ticket, first=-5, end=1 << 62)) == whole  # nothing that is not committed
    assert read(changed(ticket, first=1 << 40, end=1 << 41)) == 0
    with pytest.raises(PositionGone):
        read(changed(events, first=1))
    with pytest.raises(PositionGone):
        read(changed(events, first=1 << 50))
    assert readable(PositionGone("position 1 was purged")).code == "position_lost"


@table(
    ("packed", "message"),
    [
        (b"select 1", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"table": "users"}', "cannot be read"),
        (b'{"path": "/etc"}', "unknown field"),
        (b'{"columns": "id"}', "Expected `array`"),
        (b'{"start": {"x": 1e400}}', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b" " * (1 << 21), "may have"),
    ],
)
def test_commands_that_are_refused(packed: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_command(packed)


def test_a_command_without_anything_is_the_table_of_messages(reading: Reading) -> None:
    assert parse_command(b"") == Command()
    assert reading.schema(Command(), ALL).names == list(MESSAGE_COLUMNS)
    assert reading.schema(Command(table="events"), ALL).names == list(EVENT_COLUMNS)


def test_what_is_of_events_alone() -> None:
    for field in ({"start": {"x": 1}}, {"end": {"x": 1}}, {"limit_rows": 5}, {"events": ["sent"]}):
        with pytest.raises(SourceError, match="are of the table events"):
            Command(**field).options(Path("x"))  # type: ignore[arg-type]


def test_large_bodies_come_in_small_batches_among_many(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stands still keeps a batch: of so many bytes, whatever its rows are."""
    monkeypatch.setattr(module, "BATCH_BYTES", 600)
    monkeypatch.setattr(module, "_LEAST_BATCH_BYTES", 200)
    (ticket,) = reading.plan(Command(columns=["body"]), ALL).tickets

    def batches() -> int:
        return len(list(reading.stream(ticket, lambda has_begun: ALL, lambda: False)[1]))

    alone, held = batches(), []
    for _ in range(8):
        stream = reading.stream(ticket, lambda has_begun: ALL, lambda: False)[1]
        next(stream)
        held.append(stream)
    assert batches() > 2 * alone > 4


def test_offsets_of_events(reading: Reading) -> None:
    command = Command(table="events", columns=["position", "event"])
    start, end = reading.first_offset(command, ALL), reading.last_offset(command, ALL)
    (log,) = start
    assert start[log] < end[log]
    middle = reading.last_offset(replace(command, start=start, limit_rows=50), ALL)
    parts = [
        rows(reading, replace(command, start=one, end=other))
        for one, other in ((start, middle), (middle, end))
    ]
    assert 0 < len(parts[0]) <= 50
    assert parts[0] + parts[1] == rows(reading, command)
    with pytest.raises(Forbidden, match="may not query any topic"):
        reading.last_offset(command, granted("consume:*"))
    for wrong in ("nothing", "sent,acked", ""):
        with pytest.raises(SourceError, match="no event"):
            reading.last_offset(replace(command, events=[wrong]), ALL)
    with pytest.raises(PositionLost, match="lies behind"):
        reading.last_offset(replace(command, start=start, end={log: 1 << 50}), ALL)


def test_a_ticket_of_another_version() -> None:
    newer = msgspec.msgpack.encode(
        Ticket(
            version=2,
            moment=Moment("0" * 16, 0, 1, 0, 0, True),
            table="messages",
            first=1,
            end=2,
            columns=("id",),
            filters=[],
            events=(),
        )
    )
    with pytest.raises(BadTicket, match="version 2"):
        open_ticket(hashlib.sha256(newer).digest()[:16] + newer)
