"""Transactions and prepared messages over HTTP, on a real broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.daemon_harness import Daemon

LATER = "2031-05-01T09:00:00Z"


async def sent(ask: Caller, topic: str, key: str, **more: Any) -> str:
    answer = await ask("POST", f"/v1/topics/{topic}/messages", {"text": "x", "key": key, **more})
    return str(answer.json["id"])


async def test_all_parts_happen_together_and_once(ask: Caller) -> None:
    ids = [await sent(ask, "mixed", f"k{n}", deliver_at=LATER) for n in range(3)]
    await sent(ask, "work", "w")
    (held,) = (await ask("POST", "/v1/topics/work/groups/g/receive", {"wait": "60s"})).json["items"]
    wanted = {
        "id": "order-17",
        "sends": [
            {"topic": "invoices", "body": {"order": 17}, "key": "i-17"},
            {"topic": "reminders", "text": "17 is not paid", "delay": "30d", "headers": {"x": 1}},
        ],
        "cancels": [{"id": ids[0]}, {"topic": "mixed", "key": "k1"}],
        "reschedules": [{"id": ids[2], "deliver_at": "2032-01-01T00:00:00Z", "priority": 3}],
        "acks": [{"topic": "work", "group": "g", "receipts": [held["receipt"]]}],
    }
    done = await ask("POST", "/v1/transactions", wanted)
    assert (done.status, done.json["repeated"], len(done.json["ids"])) == (200, False, 2)
    first, second = [(await ask("GET", f"/v1/messages/{one}")).json for one in done.json["ids"]]
    assert (first["topic"], first["body"], first["key"]) == ("invoices", {"order": 17}, "i-17")
    assert (second["topic"], second["text"], second["headers"]["x"]) == ("reminders", "17 is not paid", 1)
    states = [(await ask("GET", f"/v1/messages/{one}")).json for one in ids]
    assert [one["state"] for one in states] == ["cancelled", "cancelled", "scheduled"]
    assert (states[2]["deliver_at"], states[2]["priority"]) == ("2032-01-01T00:00:00Z", 3)
    settled = await ask("POST", "/v1/topics/work/groups/g/settle", {"ack": [held["receipt"]]})
    assert settled.json["ack"] == ["already_acked"]

    again = await ask("POST", "/v1/transactions", wanted)
    assert (again.status, again.json) == (200, {**done.json, "repeated": True})
    del wanted["id"]
    named = await ask("POST", "/v1/transactions", wanted, headers={"Idempotency-Key": "order-17"})
    assert named.json == again.json


@pytest.mark.parametrize(
    ("part", "pointer"),
    [
        ({"sends": [{"topic": "once", "text": "y", "key": "taken"}]}, "/sends/1"),
        ({"cancels": [{"topic": "once", "key": "none"}]}, "/cancels/0"),
        ({"reschedules": [{"topic": "once", "key": "none", "delay": "1h"}]}, "/reschedules/0"),
        ({"acks": ["stale"]}, "/acks/0/receipts/1"),
    ],
)
async def test_nothing_happens_when_one_part_cannot(ask: Caller, part: dict[str, Any], pointer: str) -> None:
    """The problem points at the part."""
    await sent(ask, "once", "taken", deliver_at=LATER)
    await sent(ask, "once", "other", deliver_at=LATER)
    wanted: dict[str, Any] = {"sends": [{"topic": "never", "text": "x"}], **part}
    if "sends" in part:
        wanted["sends"] = [{"topic": "never", "text": "x"}, *part["sends"]]
    if "reschedules" in part:
        wanted["cancels"] = [{"topic": "once", "key": "other"}]
    if "acks" in part:
        receipts = []
        for key in ("a", "b"):
            await sent(ask, "acked", key)
            (held,) = (await ask("POST", "/v1/topics/acked/groups/g/receive", {"wait": "60s"})).json["items"]
            receipts.append(held["receipt"])
        await ask("POST", "/v1/topics/acked/groups/g/settle", {"ack": [receipts[1]]})
        wanted["acks"] = [{"topic": "acked", "group": "g", "receipts": receipts}]
    refused = await ask("POST", "/v1/transactions", wanted)
    assert (refused.status, refused.code) == (409, "transaction_refused")
    assert [one["pointer"] for one in refused.json["errors"]] == [pointer]
    assert (await ask("GET", "/v1/topics/never/messages")).json["items"] == []


async def test_the_client_names_its_transactions_and_acks_by_receipts(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send("named", b"x")
        fetched = await client.fetch("named", "g", wait=timedelta(seconds=60))
        (message,) = fetched
        results = []
        for body in (b"1", b"2"):
            async with client.transaction(id="named-1") as transaction:
                transaction.send("named-out", body)
                transaction.ack_receipts(fetched.group_id, [(message.id, message.epoch)])
            assert transaction.result is not None
            results.append((transaction.result.ids, transaction.result.repeated))
        assert results == [(results[0][0], False), (results[0][0], True)]
        receipts = [(message.id, message.epoch)]
        assert await client.ack(fetched.group_id, receipts) == ["already_acked"]
        assert [one.body for one in await client.browse("named-out")] == [b"1"]
    with tickwheel.sync.Client(daemon.url) as blocking, blocking.transaction(id="named-1") as once_more:
        once_more.send("named-out", b"3")
    assert once_more.result is not None
    assert once_more.result.repeated


# Prepared ----------------------------------------------------------------------------------------


async def test_a_prepared_message_is_committed(ask: Caller) -> None:
    await ask("PUT", "/v1/topics/shipments", {})
    nothing = await ask("GET", "/v1/prepared?topic=shipments")
    assert (nothing.status, nothing.json) == (200, {"items": [], "next": None})
    wanted = {
        "topic": "shipments",
        "body": {"order": 1},
        "key": "s-1",
        "deliver_at": LATER,
        "check_after": "1h",
    }
    made = await ask("POST", "/v1/prepared", wanted)
    assert made.status == 201
    again = await ask("POST", "/v1/prepared", wanted)
    assert (again.status, again.json) == (200, {"id": made.json["id"], "duplicate": True})
    (waiting,) = (await ask("GET", "/v1/prepared?topic=shipments")).json["items"]
    assert (waiting["id"], waiting["key"], waiting["topic"]) == (made.json["id"], "s-1", "shipments")
    assert (waiting["deliver_at"], waiting["body"]) == (LATER, {"order": 1})
    assert waiting["headers"] == {"content-type": "application/json"}

    decided = await ask("POST", f"/v1/prepared/{made.json['id']}/commit")
    assert decided.json["result"] == "committed"
    message = (await ask("GET", f"/v1/messages/{decided.json['id']}")).json
    assert (message["topic"], message["key"], message["deliver_at"]) == ("shipments", "s-1", LATER)
    again = await ask("POST", f"/v1/prepared/{made.json['id']}/commit")
    assert again.json == {"result": "already_committed", "id": decided.json["id"]}
    late = await ask("POST", f"/v1/prepared/{made.json['id']}/abort")
    assert (late.status, late.code) == (409, "already_committed")
    assert (await ask("GET", "/v1/prepared?topic=shipments")).json["items"] == []


async def test_a_prepared_message_is_aborted(ask: Caller) -> None:
    made = await ask("POST", "/v1/prepared", {"topic": "parcels", "text": "x"})
    assert (await ask("POST", f"/v1/prepared/{made.json['id']}/abort")).json == {
        "result": "rolled_back",
        "id": None,
    }
    assert (await ask("POST", f"/v1/prepared/{made.json['id']}/abort")).json[
        "result"
    ] == "already_rolled_back"
    late = await ask("POST", f"/v1/prepared/{made.json['id']}/commit")
    assert (late.status, late.code) == (409, "already_rolled_back")


async def test_prepared_messages_come_in_parts(ask: Caller) -> None:
    ids = [
        (await ask("POST", "/v1/prepared", {"topic": "many", "text": str(n)})).json["id"] for n in range(3)
    ]
    first = (await ask("GET", "/v1/prepared?topic=many&limit=2")).json
    rest = (await ask("GET", f"/v1/prepared?topic=many&limit=2&after={first['next']}")).json
    assert [one["id"] for one in first["items"] + rest["items"]] == ids
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("method", "target", "json", "status", "code", "pointer"),
    [
        ("POST", "/v1/transactions", {}, 400, "bad_argument", None),
        ("POST", "/v1/transactions", {"sends": [{"text": "x"}]}, 400, "bad_argument", "/sends/0"),
        ("POST", "/v1/transactions", {"sends": [{"topic": "t"}]}, 400, "bad_argument", "/sends/0"),
        (
            "POST",
            "/v1/transactions",
            {"sends": [{"topic": "t", "txt": "x"}]},
            400,
            "unknown_field",
            "/sends/0/txt",
        ),
        (
            "POST",
            "/v1/transactions",
            {"cancels": [{"id": "1", "key": "k"}]},
            400,
            "bad_argument",
            "/cancels/0",
        ),
        ("POST", "/v1/transactions", {"cancels": [{}]}, 400, "bad_argument", "/cancels/0"),
        ("POST", "/v1/transactions", {"reschedules": [{"id": "1"}]}, 400, "bad_time", "/reschedules/0"),
        (
            "POST",
            "/v1/transactions",
            {"acks": [{"topic": "t", "group": "g", "receipts": ["x"]}]},
            400,
            "bad_receipt",
            "/acks/0/receipts/0",
        ),
        ("POST", "/v1/transactions", {"id": "", "cancels": [{"id": "1"}]}, 400, "bad_argument", "/id"),
        ("POST", "/v1/prepared", {"text": "x"}, 400, "bad_argument", ""),
        ("POST", "/v1/prepared", {"topic": "-", "text": "x"}, 400, "bad_topic_name", None),
        ("POST", "/v1/prepared", {"topic": "t", "text": "x", "check_after": "x"}, 400, "bad_time", None),
        ("GET", "/v1/prepared", None, 400, "bad_argument", "?topic"),
        ("GET", "/v1/prepared?topic=none", None, 404, "unknown_topic", None),
        ("POST", "/v1/prepared/17000000/commit", None, 404, "not_found", None),
        ("POST", "/v1/prepared/x/abort", None, 400, "bad_argument", None),
    ],
)
async def test_what_is_refused(
    ask: Caller, method: str, target: str, json: Any, status: int, code: str, pointer: str | None
) -> None:
    answer = await ask(method, target, json)
    assert (answer.status, answer.code) == (status, code)
    assert [one["pointer"] for one in answer.json.get("errors", [])] == ([] if pointer is None else [pointer])


async def test_the_advice_for_a_field_within_another_is_about_that(ask: Caller) -> None:
    refused = await ask("POST", "/v1/transactions", {"sends": [{"topic": "t", "txt": "x"}]})
    assert refused.json["detail"] == "There is no field 'txt'. Did you mean text?"
