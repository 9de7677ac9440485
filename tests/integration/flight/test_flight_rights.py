"""Who sees what by Arrow Flight: each kind of token, table, column and call; nothing of a foreign topic shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.flight.conftest import Served
from tests.support.flight.calling import Caller, forged, told
from tests.support.flight.shops import SECRET
from tests.support.run.cases import table
from tickwheel import sync
from tickwheel.arrow.columns import COLUMNS

pytestmark = pytest.mark.usefixtures("no_defects")

TABLES = ("messages", "events")
SEES = {
    "all": ("a.", "b."),
    "queries": ("a.", "b."),
    "query-a": ("a.",),
    "body-a": ("a.",),
    "query-b": ("b.",),
    "consumes": (),
    "publishes": (),
    "nothing": (),
}
"""How the topics begin that each may query."""


def visible(who: str, topic: str | None) -> bool:
    return bool(SEES[who]) and (len(SEES[who]) == 2 or (topic or "").startswith(SEES[who]))


def columns_of(name: Any, *without: str) -> list[str]:
    return [column for column in COLUMNS[name] if column not in without]


@table("name", TABLES)
@table("who", list(SEES))
def test_rows_are_those_of_topics_that_it_may_query(served: Served, who: str, name: Any) -> None:
    columns = columns_of(name, "body", "directory")
    everything = served.all.rows(table=name, columns=columns)
    assert {row["topic"] for row in everything} >= {"a.x", "a.x.dead", "b.hidden", "b.hidden.dead"}
    assert any((row["topic"] or "").startswith("a.s/") for row in everything)
    if not SEES[who]:
        assert told(lambda: served.callers[who].info(table=name))[0] == "forbidden"
        return
    found = served.callers[who].rows(table=name, columns=columns)
    assert found == [row for row in everything if visible(who, row["topic"])]
    if "b." not in SEES[who]:
        assert SECRET not in json.dumps(found, default=str)


@table("name", TABLES)
def test_no_column_alone_tells_of_foreign_topics(served: Served, name: Any) -> None:
    """A column that is read without the topic is that of the same rows."""
    columns = columns_of(name, "body", "directory")
    mine = [row for row in served.all.rows(table=name, columns=columns) if visible("query-a", row["topic"])]
    for column in columns:
        found = served.callers["query-a"].rows(table=name, columns=[column])
        assert found == [{column: row[column]} for row in mine], column


@table("name", TABLES)
def test_filters_find_nothing_foreign(served: Served, name: Any) -> None:
    texts = ["topic", "shard", "group", "key"] + (
        ["headers", "dead_reason"] if name == "messages" else ["error"]
    )
    for column in texts:
        for operator in ("contains", "starts with"):
            value = SECRET if operator == "contains" else "b."
            found = served.callers["query-a"].rows(
                table=name, columns=["id"], filters=[[column, operator, value]]
            )
            assert found == [], column
    foreign = [["topic", "in", ["b.hidden", "a.x"]], ["topic", "!=", "a.x"]]
    assert served.callers["query-a"].rows(table=name, columns=["id"], filters=foreign) == []


def test_bodies(served: Served) -> None:
    may, cannot = served.callers["body-a"], served.callers["query-a"]
    of_ax = {"columns": ["topic", "body"], "filters": [["topic", "=", "a.x"]]}
    assert {row["body"][:3] for row in may.rows(of_ax)} == {b"a.x"}
    dead = may.rows(columns=["body"], filters=[["topic", "=", "a.x.dead"]])
    assert dead
    assert all(row["body"].startswith(b"a.x") for row in dead)
    refused: list[Callable[[], Any]] = [
        lambda: cannot.info(of_ax),
        lambda: may.info(columns=["body"]),
        lambda: may.info(columns=["id", "body"], filters=[["topic", "!=", "a.x"]]),
        lambda: may.info(columns=["body"], filters=[["topic", "starts with", "a."]]),
        lambda: served.callers["queries"].info(columns=["body"]),
        *(lambda ticket=ticket: cannot.get(ticket) for ticket in may.tickets(of_ax)),  # type: ignore[misc]
        *(
            lambda ticket=ticket: may.get(forged(ticket, filters=[]))  # type: ignore[misc]
            for ticket in may.tickets(of_ax)
        ),
    ]
    for call in refused:
        code, text = told(call)
        assert code == "forbidden"
        assert "b.hidden" not in text or call is refused[4]
    for spelt in ("id,body", " body", ""):
        assert told(lambda spelt=spelt: may.info(columns=[spelt]))[0] == "bad_source"  # type: ignore[misc]
    for who in ("body-a", "query-a", "queries"):
        assert "body" not in served.callers[who].info({}).schema.names
        assert "body" not in served.callers[who].schema({}).names


@table("name", TABLES)
def test_a_ticket_of_somebody_else_gives_no_right(served: Served, name: Any) -> None:
    columns = columns_of(name, "body", "directory")
    (ticket,) = served.all.tickets(table=name, columns=columns)
    for who in ("query-a", "query-b", "consumes", "publishes", "nothing"):
        code, _ = told(lambda who=who: served.callers[who].get(ticket))  # type: ignore[misc]
        if SEES[who]:
            found = served.callers[who].get(ticket).to_pylist()
            assert {row["topic"][:2] for row in found} == set(SEES[who])
        else:
            assert code in ("", "forbidden")
            assert code or served.callers[who].get(ticket).num_rows == 0


def rejected(served: Served, caller: Caller) -> set[str]:
    """The codes of all that somebody is told who may not come in."""
    (message,) = served.all.tickets(columns=["id"])
    (event,) = served.all.tickets(table="events", columns=["id"])
    calls: list[Callable[[], Any]] = [
        lambda: caller.info({}),
        lambda: caller.info(table="events"),
        lambda: caller.get(message),
        lambda: caller.get(event),
        lambda: caller.act("first_offset", table="events"),
        lambda: caller.act("last_offset", table="events"),
        lambda: caller.act("drop_everything"),
    ]
    return {told(call)[0] for call in calls}


def test_strangers(served: Served, tmp_path: Path) -> None:
    token = served.tokens["all"]
    secret = token.rpartition("_")[2]
    assert rejected(served, Caller(served.url)) == {"login_required"}
    for wrong in (token[:-1] + ("a" if token[-1] != "a" else "b"), "hunter2", "twk_x_y"):
        assert rejected(served, Caller(served.url, wrong)) == {"bad_token"}
    for who in ("revoked", "expired"):
        found = Caller(
            served.url, served.place.create(who, "all:*", expires_in="1s" if who == "expired" else "")
        )
        if who == "revoked":
            served.place.tokens("revoke", who, "--yes")
        told_so: set[str] = set()
        while told_so != {f"token_{who}"}:  # until what was known of it does not count any more
            told_so = rejected(served, found)
    log = (served.place.data.parent / "data.log.jsonl").read_text()
    assert secret not in log


def test_a_token_that_is_far_too_long_is_a_bad_token(served: Served) -> None:
    """It is the token that is wrong, and not the broker's address."""
    assert rejected(served, Caller(served.url, "x" * 3_000)) == {"bad_token"}


def test_errors_of_get_schema_say_their_code(served: Served) -> None:
    """As texts: Arrow Flight hands on no more of them."""
    assert "login_required" in told(lambda: served.callers["none"].schema({}))[1]
    assert "bad_source" in told(lambda: served.all.schema(columns=["secret"]))[1]


@table("who", ["consumes", "publishes", "nothing"])
def test_who_may_query_nothing_learns_nothing(served: Served, who: str) -> None:
    """Neither counts, nor names and ends of logs, nor how many parts there are."""
    caller = served.callers[who]
    (ticket,) = served.all.tickets(columns=["id"])
    asked: list[Callable[[], Any]] = [
        *(lambda name=name: caller.info(table=name, rows_per_partition=1) for name in TABLES),  # type: ignore[misc]
        lambda: caller.get(forged(ticket, now_ms=7, next_id=1 << 60)),
        *(lambda act=act: caller.act(act, table="events") for act in ("first_offset", "last_offset")),  # type: ignore[misc]
    ]
    for ask in asked:
        code, text = told(ask)
        assert code == "forbidden"
        assert not any(letter.isdecimal() for letter in text.partition("]")[2].partition(". Detail")[0])


def steps(caller: Caller, kind: str) -> int:
    """Events that can be told apart by asking how far one more of them goes."""
    offset, count = caller.act("first_offset", table="events"), 0
    while True:
        following = caller.act("last_offset", table="events", events=[kind], start=offset, limit_rows=1)
        if following == offset:
            return count
        offset, count = following, count + 1


@table("kind", ["sent", "acked", "nacked", "dead"])
def test_offsets_tell_no_counts_of_foreign_events(served: Served, kind: str) -> None:
    mine = served.callers["query-a"].rows(table="events", columns=["id"], events=[kind])
    foreign = served.callers["query-b"].rows(table="events", columns=["id"], events=[kind])
    assert mine
    assert foreign
    assert steps(served.callers["query-a"], kind) <= len(mine) + 1


def test_topics_come_and_go_while_tickets_are_held(served: Served) -> None:
    """Rows of a topic that was deleted, the last that was made, are nobody's."""
    with sync.Client(served.daemon.url, token=served.tokens["all"]) as client:
        client.send("b.hidden-last", b"x", key=SECRET)
        with client.subscribe("b.hidden-last", group="g") as receiving:
            message = receiving.receive(timeout=60)
            assert message is not None
            message.ack()
        before = {name: served.all.tickets(table=name, columns=columns_of(name, "body")) for name in TABLES}
        client.delete_topic("b.hidden-last")
    for name in TABLES:
        columns = columns_of(name, "body")
        for who in ("query-a", "queries", "all"):
            for ticket in before[name]:  # of the moment before; what is gone is left out, or said to be gone
                code, _ = told(lambda who=who, ticket=ticket: served.callers[who].get(ticket))  # type: ignore[misc]
                assert code in ("", "position_lost"), (who, name)
            found = served.callers[who].rows(table=name, columns=columns)
            assert found
            if who == "query-a":
                assert all(row["topic"].startswith("a.") for row in found)
        assert served.callers["all"].rows(table=name, columns=columns, filters=[["topic", "=", "b.hidden"]])
