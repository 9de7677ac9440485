"""Topics, groups, figures, queries and what an operator does, over HTTP, on a real broker."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from datetime import datetime
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.ipc
import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import started
from tickwheel_web.shapes import EVENTS

LATER = "2031-05-01T09:00:00Z"


async def test_a_topic_from_its_creation_to_its_end(ask: Caller) -> None:
    one = "/v1/topics/life"
    wanted = {"settings": {"ack_wait": "PT10S", "max_attempts": 5, "rate": None}, "shards": 2}
    made = await ask("PUT", one, wanted)
    assert made.status == 201
    assert made.json["settings"] == {"ack_wait": "10s", "max_attempts": 5}
    assert len(made.json["shards"]) == 2
    again = await ask("PUT", one, wanted)
    assert (again.status, again.json) == (200, made.json)
    other = await ask("PUT", one, {"settings": {"max_attempts": 6}})
    assert (other.status, other.code) == (409, "topic_exists")

    changed = await ask("PATCH", one, {"settings": {"ack_wait": None, "rate": 0.5, "retention": "2d"}})
    assert changed.json["settings"] == {"max_attempts": 5, "rate": 0.5, "retention": "2d"}
    assert (await ask("POST", f"{one}/pause")).json["paused"] is True
    assert (await ask("POST", f"{one}/resume")).json["paused"] is False

    for target in (one, f"{one}?confirm=live"):
        refused = await ask("DELETE", target)
        assert (refused.status, refused.code) == (400, "bad_argument")
    await ask("POST", f"{one}/messages", {"text": "x", "deliver_at": LATER})
    gone = await ask("DELETE", f"{one}?confirm=life")
    assert (gone.status, gone.json) == (200, {"name": "life", "messages": 1})
    assert (await ask("GET", one)).code == "unknown_topic"


async def test_a_group_from_its_creation_to_its_end(ask: Caller) -> None:
    await ask("PUT", "/v1/topics/read", {})
    one = "/v1/topics/read/groups/billing"
    made = await ask("PUT", one, {"ephemeral": "2h"})
    assert (made.status, made.json["name"], made.json["ephemeral"]) == (201, "billing", "2h")
    assert (await ask("PUT", one, {"start": "latest"})).status == 200
    await ask("POST", "/v1/topics/read/messages", {"text": "x"})
    with trio.fail_after(PATIENCE_S):
        while (await ask("GET", one)).json["backlog"] != 1:
            await trio.sleep(0.01)
    assert (await ask("POST", f"{one}/seek", {"to": "latest"})).json == {"name": "billing", "backlog": 0}
    sought = await ask("POST", f"{one}/seek", {"to_time": "2020-01-01T00:00:00Z"})
    assert sought.json == {"name": "billing", "backlog": 1}
    assert (await ask("DELETE", one)).code == "bad_argument"
    gone = await ask("DELETE", f"{one}?confirm=billing")
    assert gone.json == {"name": "billing", "backlog": 1}
    assert (await ask("GET", one)).code == "unknown_group"


async def test_a_topic_that_is_read_stays(ask: Caller, daemon: Daemon) -> None:
    await ask("PUT", "/v1/topics/busy", {})
    async with tickwheel.Client(daemon.url) as client, client.subscribe("busy"):
        assert (await ask("DELETE", "/v1/topics/busy?confirm=busy")).code == "topic_in_use"
        refused = await ask("DELETE", "/v1/topics/busy/groups/default?confirm=default")
        assert (refused.status, refused.code) == (409, "group_in_use")


# What the broker does ----------------------------------------------------------------------------


async def test_what_is_due_when(ask: Caller) -> None:
    for delay in ("30s", "40s", "3h"):
        await ask("POST", "/v1/topics/due/messages", {"text": "x", "delay": delay})
    within = (await ask("GET", "/v1/forecast?horizons=1m,PT4H")).json
    assert [one["label"] for one in within["items"]] == ["1 min", "4 h"]
    assert [one["messages"] for one in within["items"]] == [2, 3]
    assert len((await ask("GET", "/v1/forecast")).json["items"]) == 3
    wheel = (await ask("GET", "/v1/wheel")).json
    assert sum(level["timers"] for level in wheel["levels"]) >= 3
    assert all(level["slot"] for level in wheel["levels"])
    assert wheel["forecast"][-1]["messages"] >= 3


async def test_what_the_broker_counts(ask: Caller) -> None:
    await ask("PUT", "/v1/topics/counted/groups/g", {})
    await ask("PUT", "/v1/topics/counted", {})
    found = (await ask("GET", "/v1/figures")).json
    assert found["started"] < found["now"]
    assert found["gauges"]
    assert all(len(one["counts"]) == len(one["bounds"]) + 1 for one in found["histograms"].values())
    assert "counted" in [topic["name"] for topic in found["topics"]]


async def test_who_is_connected(ask: Caller, daemon: Daemon) -> None:
    async with (
        tickwheel.Client(daemon.url, name="reader") as client,
        client.subscribe("busy", group="watch") as reading,
    ):
        rows: list[dict[str, Any]] = []
        target = "/v1/clients?limit=1"
        while target:
            part = (await ask("GET", target)).json
            rows += part["items"]
            target = f"/v1/clients?limit=1&after={part['next']}" if part["next"] else ""
        assert {"reader", "web"} <= {row["name"] for row in rows}
        (row,) = [row for row in rows if row["name"] == "reader"]
        assert [one["group"] for one in row["subscriptions"]] == ["watch"]
        closed = await ask("DELETE", f"/v1/clients/{row['id']}")
        assert (closed.status, closed.json) == (200, {"id": row["id"]})
        again = await ask("DELETE", f"/v1/clients/{row['id']}")
        assert (again.status, again.code) == (404, "not_found")
        await client.stats()  # it connects again
        del reading


async def test_the_audit_log_is_followed(ask: Caller) -> None:
    await ask("PUT", "/v1/topics/before-audited", {})
    seen = (await ask("GET", "/v1/audit?limit=1")).json
    assert len(seen["items"]) == 1
    await ask("PUT", "/v1/topics/audited", {})
    after = (await ask("GET", f"/v1/audit?after={seen['next']}")).json
    assert "audited" in str([line["fields"] for line in after["items"] if line["event"] == "SetTopic"])
    nothing = (await ask("GET", f"/v1/audit?after={after['next']}")).json
    assert (nothing["items"], nothing["next"]) == ([], after["next"])


async def test_a_purge_is_confirmed(ask: Caller) -> None:
    assert (await ask("POST", "/v1/purge", {})).code == "bad_argument"
    would = await ask("POST", "/v1/purge", {"dry_run": True})
    assert (would.status, would.json["is_done"]) == (200, True)
    assert (await ask("POST", "/v1/purge", {"confirm": "purge"})).json["is_done"] is True


# Queries -----------------------------------------------------------------------------------------

SQL = "select key, priority > 5 as is_low, deliver_at, null as nothing from asked where priority > $least order by key"


async def test_a_query_and_its_forms(ask: Caller) -> None:
    for key, priority in (("a,b", 1), ("c", 7)):
        await ask(
            "POST",
            "/v1/topics/asked/messages",
            {"text": "x", "key": key, "priority": priority, "deliver_at": LATER},
        )
    question = {"sql": SQL, "parameters": {"least": 0}}
    rows = [["a,b", False, LATER, None], ["c", True, LATER, None]]
    found = await ask("POST", "/v1/query", question)
    assert [column["name"] for column in found.json["columns"]] == ["key", "is_low", "deliver_at", "nothing"]
    assert ([[*row] for row in found.json["rows"]], found.json["truncated"]) == (rows, False)

    lines = await ask("POST", "/v1/query", {**question, "format": "ndjson", "limit": 1})
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert lines.headers["tickwheel-truncated"] == "true"
    assert [msgspec.json.decode(line) for line in lines.body.splitlines()] == [
        {"key": "a,b", "is_low": False, "deliver_at": LATER, "nothing": None}
    ]
    table = await ask("POST", "/v1/query", {**question, "format": "csv"})
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert list(csv.reader(io.StringIO(table.body.decode()))) == [
        ["key", "is_low", "deliver_at", "nothing"],
        ["a,b", "false", LATER, ""],
        ["c", "true", LATER, ""],
    ]


async def test_a_query_for_arrow(ask: Caller) -> None:
    await ask("POST", "/v1/topics/arrows/messages", {"text": "x", "key": "k", "deliver_at": LATER})
    sql = "select key, state, body, deliver_at, priority, count(*) over () as n from arrows"
    answer = await ask("POST", "/v1/query", {"sql": sql, "format": "arrow"})
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert answer.headers["tickwheel-truncated"] == "false"
    (row,) = pyarrow.ipc.open_stream(answer.body).read_all().to_pylist()
    due = datetime.fromisoformat(LATER)
    assert row == {"key": "k", "state": "scheduled", "body": b"x", "deliver_at": due, "priority": 50, "n": 1}
    none = await ask("POST", "/v1/query", {"sql": "select 1 as one where false", "format": "arrow"})
    assert pyarrow.ipc.open_stream(none.body).read_all().to_pydict() == {"one": []}
    some = await ask(
        "POST", "/v1/query", {"sql": "select * from range(5000)", "format": "arrow", "limit": 3_000}
    )
    assert some.headers["tickwheel-truncated"] == "true"
    assert pyarrow.ipc.open_stream(some.body).read_all().num_rows == 3_000
    refused = await ask("POST", "/v1/query", {"sql": "delete from arrows", "format": "arrow"})
    assert (refused.status, refused.code) == (400, "bad_query")


@pytest.mark.parametrize(
    ("method", "target", "json", "status", "code"),
    [
        ("PUT", "/v1/topics/-", {}, 400, "bad_topic_name"),
        ("PUT", "/v1/topics/t", {"settings": {"colour": 1}}, 400, "unknown_field"),
        ("PUT", "/v1/topics/t", {"settings": {"ack_wait": "soon"}}, 400, "bad_time"),
        ("PUT", "/v1/topics/t", {"settings": {"ack_wait": "0s"}}, 400, "bad_topic_settings"),
        ("PUT", "/v1/topics/t", {"shards": 1}, 400, "bad_argument"),
        ("PATCH", "/v1/topics/none", {"settings": {"rate": 1}}, 404, "unknown_topic"),
        ("PATCH", "/v1/topics/none", {"settings": {}}, 400, "bad_argument"),
        ("DELETE", "/v1/topics/none?confirm=none", None, 404, "unknown_topic"),
        ("POST", "/v1/topics/none/pause", None, 404, "unknown_topic"),
        ("POST", "/v1/topics/none/resume", None, 404, "unknown_topic"),
        ("GET", "/v1/topics/none/groups/g", None, 404, "unknown_topic"),
        ("PUT", "/v1/topics/none/groups/-", {}, 400, "bad_topic_name"),
        ("PUT", "/v1/topics/t/groups/g", {"start": "latest", "start_at": LATER}, 400, "bad_argument"),
        ("POST", "/v1/topics/none/groups/g/seek", {"to": "latest"}, 404, "unknown_topic"),
        ("POST", "/v1/topics/none/groups/g/seek", {}, 400, "bad_argument"),
        ("DELETE", "/v1/topics/none/groups/g?confirm=g", None, 404, "unknown_topic"),
        ("GET", "/v1/forecast?horizons=soon", None, 400, "bad_time"),
        ("GET", "/v1/forecast?horizons=", None, 400, "bad_time"),
        ("GET", f"/v1/forecast?horizons={','.join(['1m'] * 65)}", None, 400, "bad_argument"),
        ("GET", "/v1/audit?after=x", None, 400, "bad_argument"),
        ("GET", "/v1/log?after=eA==", None, 400, "bad_argument"),
        ("GET", "/v1/events?after=x", None, 400, "unknown_field"),
        ("DELETE", "/v1/clients/x", None, 400, "bad_argument"),
        ("POST", "/v1/purge", {"confirm": "yes"}, 400, "bad_argument"),
        ("POST", "/v1/query", {"sql": "select"}, 400, "bad_query"),
        ("POST", "/v1/query", {"sql": "select 1", "format": "parquet"}, 400, "bad_argument"),
        ("POST", "/v1/query", {"sql": "select 1", "timeout": "2h"}, 400, "bad_argument"),
        ("POST", "/v1/query", {"sql": "select ?"}, 400, "bad_query"),
    ],
)
async def test_what_is_refused(
    ask: Caller, method: str, target: str, json: Any, status: int, code: str
) -> None:
    answer = await ask(method, target, json)
    assert (answer.status, answer.code) == (status, code)


# What happens ------------------------------------------------------------------------------------


async def test_the_log_is_read_in_parts_and_followed(ask: Caller) -> None:
    sent = await ask("POST", "/v1/topics/logged/messages", {"text": "x", "deliver_at": LATER})
    await ask("DELETE", f"/v1/messages/{sent.json['id']}")
    end = (await ask("GET", "/v1/log?after=latest")).json
    assert (end["items"], end["more"]) == ([], False)
    seen: list[dict[str, Any]] = []
    part = (await ask("GET", "/v1/log?limit=2")).json
    while True:
        assert len(part["items"]) <= 2
        seen += part["items"]
        if not part["more"]:
            break
        part = (await ask("GET", f"/v1/log?limit=2&after={part['next']}")).json
    own = [one for one in seen if one["id"] == sent.json["id"]]
    assert [one["event"] for one in own] == ["sent", "cancelled"]
    assert own[0]["next"] == LATER
    later = await ask("POST", "/v1/topics/logged/messages", {"text": "y", "deliver_at": LATER})
    new = (await ask("GET", f"/v1/log?after={end['next']}")).json["items"]
    assert (later.json["id"], "sent") in [(one["id"], one["event"]) for one in new]


def test_figures_are_streamed_as_they_change(daemon: Daemon, tmp_path: Path) -> None:
    web = started(Shell(tmp_path, daemon.url))
    try:
        with closing(web.connection()) as connection:
            connection.request("GET", "/v1/events")
            with closing(connection.getresponse()) as answer:
                assert (answer.status, answer.headers["content-type"]) == (200, f"{EVENTS}; charset=utf-8")
                first = event(answer)
                assert first["counters"]
                with tickwheel.sync.Client(daemon.url) as client:
                    client.send("streamed", b"x")
                while "streamed" not in (change := event(answer))["topics"]:
                    assert len(str(change)) < len(str(first))
                assert change["topics"]["streamed"]["messages"] == 1
                with tickwheel.sync.Client(daemon.url) as client:
                    client.delete_topic("streamed")
                while "streamed" not in event(answer)["gone"]:
                    pass
    finally:
        web.process.terminate()  # it does not wait for the stream
        web.process.communicate(timeout=PATIENCE_S)


def event(answer: HTTPResponse) -> Any:
    """The data of the next one."""
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    return json.loads(line.removeprefix(b"data: "))
