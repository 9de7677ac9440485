"""What an archive and a report read by Arrow Flight: all that lies in the directory, for those alone who may query and
consume it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.integration.flight.conftest import Served
from tests.support.flight.calling import forged, told
from tests.support.flight.shops import SECRET
from tickwheel.arrow.archive_table import Passed, Wanted, count_messages, parts_of, read_pieces
from tickwheel.arrow.network import Flights
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.spark.archive.places import Network
from timerlog.readers.describe import Offline, describe_directory

pytestmark = pytest.mark.usefixtures("no_defects")

EVERYTHING = Wanted(MAX_TIME_MS, ("acked", "dead"))
COMMAND: dict[str, Any] = {"done_before_ms": MAX_TIME_MS, "states": ["acked", "dead"]}
#: By token: what it may archive.
MAY: dict[str, set[str] | None] = {
    "all": None,
    "body-a": {"a.x"},
    "query-b": {"b.hidden", "b.hidden-s"},
    "queries": set(),
    "query-a": set(),
    "consumes": set(),
    "publishes": set(),
    "nothing": set(),
    "none": set(),
}


def offline_of(served: Served) -> Offline:
    return describe_directory(served.daemon.directory, 0)


def in_place(offline: Offline, wanted: Wanted) -> tuple[list[dict[str, Any]], Passed]:
    passed, rows = Passed(), []
    for part in parts_of(offline, 7):
        for piece in read_pieces(offline, range(*part), wanted, passed):
            rows += [row | {"topic": piece.topic, "day": piece.day} for row in piece.batch.to_pylist()]
    return rows, passed


def by_flight(served: Served, wanted: Wanted) -> tuple[list[dict[str, Any]], Passed]:
    place = Network(Flights(served.url, token=served.tokens["all"]), [])
    passed, rows = Passed(), []
    parts = place.parts(wanted, 7, are_counts=False)
    assert len(parts) > 3
    for part in parts:
        for piece in place.pieces(part, wanted, passed):
            rows += [row | {"topic": piece.topic, "day": piece.day} for row in piece.batch.to_pylist()]
    return rows, passed


@pytest.mark.promise("what-is-archived")
@pytest.mark.parametrize(
    "wanted",
    [
        EVERYTHING,
        Wanted(MAX_TIME_MS),
        Wanted(MAX_TIME_MS, topics=("a.x", "b.hidden")),
        Wanted(MAX_TIME_MS, topics=("a.z", "nowhere")),
        Wanted(1),
    ],
    ids=["all", "acked", "topics", "few", "none"],
)
def test_rows_are_those_of_the_directory(served: Served, wanted: Wanted) -> None:
    offline = offline_of(served)
    expected, passed = in_place(offline, wanted)
    assert by_flight(served, wanted) == (expected, passed)
    place = Network(Flights(served.url, token=served.tokens["all"]), [])
    counts: dict[str, tuple[int, int]] = {}
    for part in place.parts(wanted, 7, are_counts=True):
        for topic, found in place.count(part, wanted).items():
            before = counts.get(topic, (0, 0))
            counts[topic] = before[0] + found[0], before[1] + found[1]
    assert counts == count_messages(offline, range(1, 1 << 40), wanted)


def test_what_is_in_the_archive_already_is_left_out(served: Served) -> None:
    expected, _ = in_place(offline_of(served), EVERYTHING)
    some = sorted(row["id"] for row in expected)[::3]
    wanted = Wanted(MAX_TIME_MS, ("acked", "dead"), without=np.array(some, np.int64))
    found, passed = by_flight(served, wanted)
    assert (found, passed) == in_place(offline_of(served), wanted)
    assert len(found) == passed.meant == len(expected) - len(some)
    place = Network(Flights(served.url, token=served.tokens["all"]), [])
    counts = [place.count(part, wanted) for part in place.parts(wanted, 1_000, are_counts=True)]
    assert sum(messages for one in counts for messages, _ in one.values()) == len(found)


@pytest.mark.promise("what-is-archived")
@pytest.mark.parametrize("who", MAY)
@pytest.mark.parametrize("table", ["archive", "archive_sizes"])
def test_who_may_not_query_and_consume_gets_nothing(served: Served, who: str, table: str) -> None:
    caller, may = served.callers[who], MAY[who]
    topics = ["a.x", "a.y", "b.hidden", "b.hidden-s"]
    refusal = "login_required" if who == "none" else "forbidden"
    (ticket, *_) = served.all.tickets(**COMMAND, table=table)
    for chosen in (None, *([name] for name in topics)):
        is_allowed = may is None or (chosen is not None and set(chosen) <= may)
        asked = {**COMMAND, "table": table, "topics": chosen}
        carried = forged(ticket, archive=[table == "archive_sizes", MAX_TIME_MS, ["acked", "dead"], chosen])
        for ask in (lambda asked=asked: caller.info(**asked), lambda carried=carried: caller.get(carried)):
            code, text = told(ask)  # type: ignore[arg-type]
            assert code == ("" if is_allowed else refusal), (chosen, text)
            assert is_allowed or not any(
                letter.isdecimal() for letter in text.partition("]")[2].partition(". Detail")[0]
            )
        if is_allowed and chosen:
            assert {row["topic"] for row in caller.rows(**asked)} <= set(chosen)


def test_what_cannot_be_asked_for(served: Served) -> None:
    for changes in (
        {"states": []},
        {"states": ["waiting"]},
        {"done_before_ms": -1},
        {"done_before_ms": 1 << 62},
        {"rows_per_partition": 0},
        {"columns": ["id"]},
        {"topics": "a.x"},
    ):
        code, text = told(
            lambda changes=changes: served.all.info(**{**COMMAND, "table": "archive", **changes})
        )  # type: ignore[misc]
        assert code == "bad_source", text
    (ticket, *_) = served.all.tickets(**COMMAND, table="archive")
    assert told(lambda: served.all.get(forged(ticket, table="events")))[0] == "bad_ticket"
    assert (
        told(lambda: served.all.get(forged(ticket, archive=[False, 5, ["waiting"], None])))[0] == "bad_ticket"
    )


@pytest.mark.promise("what-is-archived")
def test_a_stream_that_is_cut_is_no_archive(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end says how many messages were meant: without it nothing counts."""
    place = Network(Flights(served.url, token=served.tokens["all"]), [])
    (part,) = place.parts(EVERYTHING, 10_000, are_counts=False)
    whole = list(place.flights.chunks(part))
    assert [told is not None for _, told in whole] == [False] * (len(whole) - 1) + [True]
    monkeypatch.setattr(Flights, "chunks", lambda self, ticket: iter(whole[:-1]))
    with pytest.raises(Exception, match="has no end"):
        list(place.pieces(part, EVERYTHING, Passed()))


def test_outlines_have_what_may_be_queried(served: Served) -> None:
    everything = served.all.act("outline", {})
    assert everything["first_groups"] == {"a.x": "billing", "a.z": "billing", "b.hidden": f"{SECRET}-group"}
    assert set(everything["parents"].values()) == {"a.s", "b.hidden-s"}
    mine = served.callers["query-a"].act("outline", {})
    assert SECRET not in json.dumps(mine)
    assert mine["first_groups"] == {"a.x": "billing", "a.z": "billing"}
    assert set(mine["topics"]) == {name for name in everything["topics"] if name.startswith("a.")}
    for who in ("consumes", "publishes", "nothing", "none"):
        assert told(lambda who=who: served.callers[who].act("outline", {}))[0] in (
            "forbidden",
            "login_required",
        )  # type: ignore[misc]
