"""What tasks of Spark read from a log whose positions are beyond 2^44: the same as from one that begins at 0."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.stores.far import BEYOND_FLOATS, FAR, begin, begin_late, begin_with_large_ids
from tests.support.stores.purging import LATER_MS, mixed
from tickwheel.arrow.archive_table import Wanted, count_messages, parts_of
from tickwheel.arrow.columns import EVENT_COLUMNS, MESSAGE_COLUMNS
from tickwheel.arrow.event_table import (
    EventsPart,
    all_events,
    current_offset,
    log_key,
    read_event_batches,
    split_events,
    starting_offset,
    wanted_types,
)
from tickwheel.arrow.message_table import read_messages, split_messages
from tickwheel.arrow.options import ReadOptions, read_options
from timerlog.readers.describe import Offline, describe_directory
from timerlog.store import Store

#: By the columns of a row: all but the directory, which differs.
MESSAGES = [name for name in MESSAGE_COLUMNS if name != "directory"]
EVENTS = [name for name in EVENT_COLUMNS if name != "directory"]


class Place:
    """A directory with messages in many states, closed, and where its log begins."""

    def __init__(self, directory: Path, position: int | None = None) -> None:
        """None: it is there already."""
        self.base = 0 if position is None else begin(directory, position)
        mixed(directory).close()
        self.directory = directory

    @property
    def offline(self) -> Offline:
        return describe_directory(self.directory, NOW_MS)

    def options(self, **given: Any) -> ReadOptions:
        return read_options({"path": str(self.directory), "table": "events", **given})


@pytest.fixture(scope="module", params=[FAR, BEYOND_FLOATS])
def places(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Place, Place]:
    """At position 0 and far away."""
    folder = tmp_path_factory.mktemp("far")
    return Place(folder / "near", 0), Place(folder / "far", request.param)


def rows(batches: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return found


def messages_of(place: Place) -> list[dict[str, Any]]:
    offline = place.offline
    parts = split_messages([offline], 1_000, [], 1)
    return rows([batch for part in parts for batch in read_messages(offline, part, MESSAGES, [])])


def events_of(place: Place, parts: list[EventsPart], columns: list[str] = EVENTS) -> list[dict[str, Any]]:
    wanted, offline = wanted_types(place.options()), place.offline
    return rows([batch for part in parts for batch in read_event_batches(offline, part, columns, [], wanted)])


def near_positions(place: Place, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As if the log began at 0 with the first event: a log that begins later has a record more before it."""
    second, first = place.offline.segments[1], found[0]["position"]
    begins = [first if row["position"] < second else place.base for row in found]
    return [{**row, "position": row["position"] - start} for row, start in zip(found, begins, strict=True)]


def test_messages_have_the_same_rows(places: tuple[Place, Place]) -> None:
    near, far = places
    found = messages_of(far)
    assert found == messages_of(near)
    assert len(found) > 9_000
    assert {row["body_bytes"] for row in found} == {1_000}
    assert all(row["body"].rstrip(b".").decode() == row["key"] for row in found)


def test_events_have_the_same_rows_and_their_own_positions(places: tuple[Place, Place]) -> None:
    near, far = places
    parts = all_events([far.offline])
    assert len(parts) == 2
    found = events_of(far, parts)
    assert near_positions(far, found) == near_positions(near, events_of(near, all_events([near.offline])))
    places_of = [(row["position"], row["place"]) for row in found]
    assert places_of == sorted(set(places_of))
    assert parts[0].start <= places_of[0][0] < places_of[-1][0] < parts[1].end
    assert parts[0].start > 1 << 44


def test_a_stream_goes_on_at_its_offsets(places: tuple[Place, Place]) -> None:
    _, far = places
    offline, options, columns = far.offline, far.options(), ["position", "place", "event", "id"]
    key, offset = log_key(offline), starting_offset(options, [offline])
    assert offset == {key: offline.first_position}
    ends, seen = [], []
    while offset[key] < offline.end_position:
        # As Spark keeps it between two batches.
        then = json.loads(json.dumps(current_offset(options, [offline], offset, None, 1_000)))
        seen.append(events_of(far, split_events([offline], offset, then, options), columns))
        ends.append(then[key])
        offset = then
    everything = events_of(far, all_events([offline]), columns)
    assert [row for part in seen for row in part] == everything
    assert len(seen) > 10
    half = starting_offset(far.options(startingOffsets=str(ends[4])), [offline])
    rest = events_of(far, split_events([offline], half, offset, options), columns)
    assert rest == [row for part in seen[5:] for row in part]


def test_a_directory_as_after_years(tmp_path: Path) -> None:
    """Tasks look at what is left, and say of it what they would say of a new directory."""
    first = 1 << 37
    begin_late(tmp_path / "late", first, 1 << 36, ("a", "b"))
    near, late = Place(tmp_path / "near", 0), Place(tmp_path / "late")
    told = []
    for place, before in ((near, 1), (late, first)):
        events = events_of(place, all_events([place.offline]), ["event", "id", "topic", "key", "deliver_at"])
        of_messages = [row for row in events if row["id"] is not None]
        told.append([{**row, "id": row["id"] - before} for row in [*messages_of(place), *of_messages]])
    assert told[0] == told[1]
    assert len(told[0]) > 18_000
    spans = [(part.first_id, part.end_id) for part in split_messages([late.offline], 1_000, [], 1)]
    assert spans == parts_of(late.offline, 1_000)
    assert spans[0][0] == first
    assert len(spans) < 20
    Store.open(late.directory, SMALL, NOW_MS).close()


def test_no_tasks_for_what_was_purged(tmp_path: Path) -> None:
    place = Place(tmp_path / "near", 0)
    store = Store.open(place.directory, SMALL, NOW_MS)
    before = describe_directory(place.directory, NOW_MS)
    ids = store.tables.rows["state"][: store.tables.next_id]
    store.change.cancel([number for number in range(1, 400) if ids[number]], NOW_MS)
    store.purge(LATER_MS)
    first_id = int(store.tables.native.first_id)
    store.close()
    assert first_id > 1
    assert split_messages([place.offline], 1_000, [], 1)[0].first_id == first_id
    assert parts_of(place.offline, 1_000)[0][0] == first_id
    # Who has planned before, or asks for what is gone, finds nothing there.
    asked = [part for part in split_messages([before], 100, [], 1) if part.end_id <= first_id]
    assert [list(read_messages(place.offline, part, MESSAGES, [])) for part in asked] == [[]] * len(asked)


def test_messages_and_events_with_ids_beyond_2_to_the_32nd(tmp_path: Path) -> None:
    first_id = begin_with_large_ids(tmp_path / "large")
    near, large = Place(tmp_path / "near", 0), Place(tmp_path / "large")
    told = []
    for place, first in ((near, 1), (large, first_id)):
        parts = all_events([place.offline])
        events = events_of(place, parts, ["event", "id", "topic", "key", "priority", "deliver_at"])
        of_messages = [row for row in events if row["id"] is not None]
        found = [*messages_of(place), *of_messages]
        # Receipts of before a restore do not count, so epochs begin higher.
        told.append([{**row, "id": row["id"] - first, "epoch": None} for row in found])
    assert told[0] == told[1]
    assert len(told[0]) > 18_000
    wanted, counts = Wanted(LATER_MS), []
    for place in (near, large):
        parts = parts_of(place.offline, 1_000)
        assert len(parts) < 20
        found = [count_messages(place.offline, range(*part), wanted) for part in parts]
        counts.append(
            sum((Counter({topic: one[topic][0] for topic in one}) for one in found), Counter[str]())
        )
    assert counts[0] == counts[1]
    assert counts[0].total() > 8_000
