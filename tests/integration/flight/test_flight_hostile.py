"""Commands, headers and tickets that nobody would send who means well: each is told what is wrong, as a typed error,
and the process goes on.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow.flight as fl
import pytest

from tests.integration.flight.conftest import Served
from tests.support.flight.calling import forged, signed, told
from tests.support.run.cases import table
from tickwheel_flight.tickets import open_ticket

pytestmark = pytest.mark.usefixtures("no_defects")

BAD: dict[str, Any] = {
    "garbage": b"\x00\xff\xfe",
    "two MB": b" " * (2 << 20),
    "deep": b'{"filters":' + b"[" * 100_000,
    "null": b"null",
    "NaN": b'{"filters":[["id","=",NaN]]}',
    "infinity": b'{"limit_rows":1e400}',
    "unknown field": {"path": "/etc"},
    "wrong type": {"columns": "id"},
    "path in columns": {"columns": ["../../etc/passwd"]},
    "column twice": {"columns": ["id", "id"]},
    "empty column": {"columns": [""]},
    "columns in one": {"columns": ["id,topic"]},
    "no rows a part": {"rows_per_partition": 0},
    "negative rows a part": {"rows_per_partition": -5},
    "no table": {"table": "users"},
    "no event": {"table": "events", "events": ["exploded"]},
    "empty event": {"table": "events", "events": [""]},
    "events in one": {"table": "events", "events": ["sent,acked"]},
    "position below 0": {"table": "events", "starting": -5},
    "deep position": {"table": "events", "starting": "[" * 100_000},
    "digits": {"table": "events", "starting": "9" * 5_000},
    "digits in JSON": {"table": "events", "starting": '{"x":' + "9" * 5_000 + "}"},
    "position of a path": {"table": "events", "starting": '{"/etc/passwd": 5}'},
    "operator null": {"filters": [["id", None, 3]]},
    "operator list": {"filters": [["id", ["="], 3]]},
    "operator object": {"filters": [["id", {"a": 1}, 3]]},
    "column list": {"filters": [[["id"], "=", 3]]},
    "no condition": {"filters": [[]]},
    "beyond 64 bit": {"filters": [["id", "=", 10**30]]},
    "nothing in": {"filters": [["topic", "in", []]]},
    "surrogate": {"filters": [["topic", "=", "\ud800"]]},
    "deep value": b'{"filters":[["topic","=",' + b"[" * 900 + b"]" * 900 + b"]]}",
    "body": {"filters": [["body", "=", "x"]]},
}


@table("name", list(BAD))
def test_commands(served: Served, name: str) -> None:
    """What can be seen when the table is asked for is said then, and not when it is read."""
    assert told(lambda: served.all.info(BAD[name]))[0] == "bad_source"


@table(
    "filters",
    [
        [["id", ">", (1 << 63) - 1]],
        [["id", "<", -(1 << 63)]],
        [["topic", "=", "\0"]],
        [["topic", "in", ["x" * 100] * 8_000]],
        [["time_created", "<", "0001-01-01T00:00:00+14:00"]],
        [["time_created", ">", "9999-12-31T23:59:59-12:00"]],
    ],
)
def test_filters_at_the_edge_find_nothing(served: Served, filters: Any) -> None:
    assert served.all.rows(columns=["id"], filters=filters) == []


def test_a_descriptor_by_path_is_no_command(served: Served) -> None:
    descriptor = fl.FlightDescriptor.for_path("..", "etc", "passwd")
    code, _ = told(lambda: served.all.client.get_flight_info(descriptor, served.all.options))
    assert code == "bad_source"


def test_unknown_actions_are_typed_errors(served: Served) -> None:
    code, text = told(lambda: served.all.act("drop_everything"))
    assert not code.startswith("?")
    assert "first_offset" in text


@table(
    "options",
    [
        {"limit_rows": -1},
        {"limit_rows": 10**30},
        {"end": 1 << 50},
        {"end": 1 << 50, "limit_rows": 1_000},
        {"start": -1},
        {"start": 1 << 50},
        {"start": 10**30},
    ],
)
def test_offsets_stay_within_what_is_committed(served: Served, options: dict[str, int]) -> None:
    first = served.all.act("first_offset", table="events")
    last = served.all.act("last_offset", table="events", start=first)
    (log,) = first
    asked: dict[str, Any] = {"table": "events", "start": first}
    asked |= {name: value if name == "limit_rows" else {log: value} for name, value in options.items()}
    found: dict[str, int] = {}
    code, _ = told(lambda: found.update(served.all.act("last_offset", asked)))
    if "start" in options:
        assert code == "position_lost"
    else:
        assert code in ("", "bad_source", "position_lost")
        assert not found or first[log] <= found[log] <= last[log]


def test_positions_between_records_are_the_readers_mistake(served: Served) -> None:
    """The log is not damaged, and nobody need look into it."""
    (log, first), *_ = served.all.act("first_offset", table="events").items()
    code, _ = told(
        lambda: served.all.act("last_offset", table="events", start={log: first + 1}, limit_rows=9)
    )
    assert code == "position_lost"
    (ticket, *_) = served.all.tickets(table="events", columns=["id"])
    for changed in ({"first": first + 1}, {"end": open_ticket(ticket).end - 1}):
        assert told(lambda changed=changed: served.all.get(forged(ticket, **changed)))[0] in (  # type: ignore[misc]
            "position_lost",
            "bad_ticket",
        )


def test_headers(served: Served) -> None:
    for value, code in (
        (b"Basic eDp5", "bad_token"),
        (b"Bearer", "login_required"),
        (b"", "login_required"),
        (b"Bearer " + b"x" * 3_000, "bad_token"),
        (b"Bearer " + b"\xe2\x82\xac", "?ArrowInvalid"),  # gRPC itself refuses to send these two
        (b"Bearer " + b"x" * 100_000, "?ArrowInvalid"),
    ):
        options = fl.FlightCallOptions(headers=[(b"authorization", value)], timeout=60)
        found, _ = told(
            lambda options=options: served.all.client.get_flight_info(  # type: ignore[misc]
                fl.FlightDescriptor.for_command(b"{}"), options
            )
        )
        assert found == code or (code.startswith("?") and found.startswith("?"))
        assert served.all.info({})
    twice = fl.FlightCallOptions(
        headers=[
            (b"authorization", b"Bearer " + served.tokens["query-a"].encode()),
            (b"authorization", b"Bearer " + served.tokens["all"].encode()),
        ],
        timeout=60,
    )
    (ticket,) = served.all.tickets(columns=["topic"])
    topics = served.all.client.do_get(fl.Ticket(ticket), twice).read_all()["topic"].to_pylist()
    assert all(name.startswith("a.") for name in topics)


def test_each_bit_of_a_ticket(served: Served) -> None:
    (ticket,) = served.all.tickets(columns=["id"])
    for bit in range(8 * len(ticket)):
        changed = bytearray(ticket)
        changed[bit // 8] ^= 1 << bit % 8
        assert told(lambda changed=changed: served.all.get(bytes(changed)))[0] == "bad_ticket"  # type: ignore[misc]
    for length in range(len(ticket)):
        assert told(lambda length=length: served.all.get(ticket[:length]))[0] == "bad_ticket"  # type: ignore[misc]


MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "other log": ({"log": "1" * 16}, "position_lost"),
    "ids to come": ({"now_ms": 5, "next_id": 1 << 60}, "position_lost"),
    "end to come": ({"now_ms": 5, "position": 1 << 60}, "position_lost"),
    "other groups": ({"now_ms": 5, "groups": 1}, "position_lost"),
    "column": ({"columns": ["secret"]}, "bad_source"),
    "columns twice": ({"columns": ["id", "id"]}, "bad_source"),
    "NaN": ({"filters": [["id", "=", float("nan")]]}, "bad_source"),
    "ext": ({"filters": [[msgspec.msgpack.Ext(5, b"x")]]}, "bad_source|bad_ticket"),
    "null key": ({"filters": [["topic", "=", {None: 2}]]}, "bad_source|bad_ticket"),
    "operator list": ({"filters": [["id", ["="], 3]]}, "bad_source"),
    "table": ({"table": "events"}, "bad_source|position_lost"),
    "version": ({"version": 2}, "bad_ticket"),
}
EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "below 0": ({"first": -1}, "position_lost"),
    "beyond 63 bit": ({"end": (1 << 64) - 1}, "position_lost"),
    "end to come": ({"now_ms": 5, "end": 1 << 50, "position": 1 << 50}, "position_lost"),
    "event": ({"events": ["exploded"]}, "bad_source"),
}


@table(("of", "name"), [*(("messages", one) for one in MESSAGES), *(("events", one) for one in EVENTS)])
def test_tickets_that_were_made_up(served: Served, of: str, name: str) -> None:
    changes, code = (MESSAGES if of == "messages" else EVENTS)[name]
    (ticket, *_) = served.all.tickets(table=of, columns=["id"])
    found, _ = told(lambda: served.all.get(forged(ticket, **changes)))
    assert found in code.split("|")


@table(
    "changes",
    [
        {"first": 1 << 63},
        {"first": (1 << 64) - 1, "end": (1 << 64) - 1},
        {"end": -5},
        {"first": -(1 << 63), "end": (1 << 64) - 1},
        {"filters": [["topic", "in", ["x" * 100] * 10_000]]},
    ],
)
def test_ranges_that_were_made_up(served: Served, changes: dict[str, Any]) -> None:
    (ticket,) = served.all.tickets(columns=["id"])
    whole = served.all.get(ticket).num_rows
    found = served.all.get(forged(ticket, **changes)).num_rows
    assert found == (whole if changes.get("first", 0) < 0 else 0)


def test_tickets_that_nest(served: Served) -> None:
    (ticket,) = served.all.tickets(columns=["id"])
    head = msgspec.msgpack.encode(list(msgspec.to_builtins(open_ticket(ticket)))[:6])[1:]
    for depth in (500, 5_000, 200_000):
        nested = b"\x98" + head + b"\x91\x93\xa5topic\xa1=" + b"\x91" * depth + b"\xc0\x90"
        assert told(lambda nested=nested: served.all.get(signed(nested)))[0] in (  # type: ignore[misc]
            "bad_ticket",
            "bad_source",
        )
    assert json.dumps(served.all.rows(columns=["id"]))
