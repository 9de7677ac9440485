"""Receiving and settling over HTTP on a real broker, in this process."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Answer, Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import SendColumns, encode_send
from tickwheel.protocol.receipts import Receipt, encode_receipt
from tickwheel_web.limits import MAX_POLLS_PER_TOKEN

pytestmark = pytest.mark.shared_daemon

GROUP = "/v1/topics/{}/groups/{}"
WAIT = {"wait": "60s"}


async def receive(ask: Caller, topic: str, count: int = 1, group: str = "g", **how: Any) -> list[Any]:
    """So many messages, however many polls that takes."""
    found: list[Any] = []
    with trio.fail_after(PATIENCE_S):
        while len(found) < count:
            wanted = {"max": count - len(found), **WAIT, **how}
            answer = await ask("POST", GROUP.format(topic, group) + "/receive", wanted)
            assert answer.status == 200, answer.body
            found += answer.json["items"]
    return found


async def settle(ask: Caller, topic: str, group: str = "g", **what: Any) -> Answer:
    return await ask("POST", GROUP.format(topic, group) + "/settle", what)


async def until_somebody_waits(daemon: Daemon, topic: str, count: int = 1) -> None:
    with trio.fail_after(PATIENCE_S):
        async with tickwheel.Client(daemon.url) as client:
            while sum(group.subscribers for group in await client.groups(topic)) != count:
                await trio.sleep(0.01)


async def test_a_receipt_is_the_same_text_on_the_command_line(
    ask: Caller, daemon: Daemon, topic: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, daemon.url)
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many(topic, [b"a", b"b"])
    one, two = await receive(ask, topic, 2, lease="1h")
    results = await trio.to_thread.run_sync(
        lambda: shell.json("nack", topic, "g", one["receipt"], "--in", "0s")
    )
    assert [row["result"] for row in results] == ["nacked"]
    lines = "\n".join(json.dumps(item) for item in (one, two)).encode()
    acked = await trio.to_thread.run_sync(
        lambda: shell.run("ack", topic, "g", "-", "--json", stdin=lines, code=1)
    )
    assert [row["result"] for row in json.loads(acked.stdout)] == ["stale_receipt", "acked"]
    options = ("--group", "g", "--wait", "60s", "--lease", "1h", "--json")
    fetched = json.loads(await trio.to_thread.run_sync(lambda: shell.text("fetch", topic, *options)))
    assert (fetched["id"], fetched["epoch"]) == (int(one["id"]), 2)
    assert (await settle(ask, topic, ack=[fetched["receipt"]])).json["ack"] == ["acked"]


async def test_a_message_from_send_to_ack(ask: Caller, topic: str) -> None:
    sent = await ask(
        "POST",
        f"/v1/topics/{topic}/messages",
        {"body": {"order": 17}, "key": "k", "order_key": "o", "headers": {"x": [1]}},
    )
    (item,) = await receive(ask, topic)
    assert {name: item[name] for name in item if name not in ("receipt", "deliver_at", "created_at")} == {
        "id": sent.json["id"],
        "topic": topic,
        "key": "k",
        "order_key": "o",
        "priority": 50,
        "attempt": 1,
        "headers": {"x": [1], "content-type": "application/json"},
        "body": {"order": 17},
    }
    assert item["deliver_at"].endswith("Z")
    settled = await settle(ask, topic, ack=[item["receipt"]])
    assert settled.json == {"ack": ["acked"], "nack": [], "extend": []}
    again = await settle(ask, topic, ack=[item["receipt"]])
    assert (again.status, again.json["ack"]) == (200, ["already_acked"])
    nothing = await ask("POST", GROUP.format(topic, "g") + "/receive", {"wait": "20ms"})
    assert (nothing.status, nothing.json) == (200, {"items": []})


async def test_of_two_holders_of_one_message_one_has_acked_it(ask: Caller, topic: str) -> None:
    await ask("POST", f"/v1/topics/{topic}/messages", {"text": "a"})
    (earlier,) = await receive(ask, topic, lease="20ms")
    (later,) = await receive(ask, topic, lease="1h")
    assert later["attempt"] == 2
    assert (await settle(ask, topic, ack=[later["receipt"]])).json["ack"] == ["acked"]
    again = await settle(ask, topic, ack=[earlier["receipt"], later["receipt"]])
    assert again.json["ack"] == ["stale_receipt", "already_acked"]
    nacked = await settle(ask, topic, nack=[{"receipt": earlier["receipt"]}, {"receipt": later["receipt"]}])
    assert nacked.json["nack"] == ["stale_receipt", "already_acked"]


async def test_everything_in_one_call_and_a_result_for_each(ask: Caller, daemon: Daemon, topic: str) -> None:
    await ask(
        "POST", f"/v1/topics/{topic}/messages/batch", [{"text": str(n), "priority": n} for n in range(6)]
    )
    items = sorted(await receive(ask, topic, 6, lease="1h"), key=lambda item: int(item["text"]))
    a, b, c, d, e, f = (item["receipt"] for item in items)
    settled = await settle(
        ask,
        topic,
        ack=[a, b],
        nack=[
            {"receipt": c, "delay": "0s", "error": "busy"},
            {"receipt": d, "give_up": True, "error": "no"},
            {"receipt": e, "uncounted": True},
        ],
        extend=[{"receipt": f, "by": "2h"}],
    )
    assert settled.json == {
        "ack": ["acked", "acked"],
        "nack": ["nacked", "dead", "nacked"],
        "extend": ["extended"],
    }
    again = await settle(ask, topic, ack=[c, a], nack=[{"receipt": d}], extend=[{"receipt": b, "by": "1m"}])
    assert (again.status, again.json) == (
        200,
        {"ack": ["stale_receipt", "already_acked"], "nack": ["stale_receipt"], "extend": ["already_acked"]},
    )
    back = sorted(await receive(ask, topic, 2), key=lambda item: int(item["text"]))
    assert [(item["text"], item["attempt"]) for item in back] == [("2", 2), ("4", 1)]
    async with tickwheel.Client(daemon.url) as client:
        (letter,) = await client.browse(f"{topic}.dead")
        assert (letter.body, letter.headers["tickwheel-dead"]["error"]) == (b"3", "no")


async def test_receipts_are_good_for_other_clients_and_the_other_way_round(
    ask: Caller, daemon: Daemon, topic: str
) -> None:
    await ask("POST", f"/v1/topics/{topic}/messages/batch", [{"text": "a"}, {"text": "b"}])
    (one,) = await receive(ask, topic)
    async with tickwheel.Client(daemon.url) as client:
        (two,) = await client.fetch(topic, "g", wait=timedelta(seconds=PATIENCE_S))
        group_id = (await client.group(topic, "g")).group_id
        receipt = encode_receipt(topic, "g", Receipt(group_id, two.id, two.epoch))
        assert (await settle(ask, topic, ack=[receipt])).json["ack"] == ["acked"]
        assert await client.ack(group_id, [(int(one["id"]), 1)]) == ["acked"]


async def test_a_poll_waits_for_what_comes(ask: Caller, daemon: Daemon, topic: str) -> None:
    found: list[Any] = []

    async def poll() -> None:
        found.extend(await receive(ask, topic, 2))

    async with trio.open_nursery() as nursery:
        async with tickwheel.Client(daemon.url) as client:
            await client.create_topic(topic)
        nursery.start_soon(poll)
        await until_somebody_waits(daemon, topic)
        await ask("POST", f"/v1/topics/{topic}/messages/batch", [{"text": "a"}, {"text": "b", "delay": "0s"}])
    assert sorted(item["text"] for item in found) == ["a", "b"]


async def test_nothing_is_leased_for_a_client_that_went_away(ask: Caller, daemon: Daemon, topic: str) -> None:
    leaves = trio.Event()
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
    async with trio.open_nursery() as nursery:

        async def poll() -> None:
            answer = await ask(
                "POST", GROUP.format(topic, "g") + "/receive", {**WAIT, "lease": "1h"}, leaves=leaves
            )
            assert answer.code == "incomplete_request"

        nursery.start_soon(poll)
        await until_somebody_waits(daemon, topic)
        leaves.set()
    await until_somebody_waits(daemon, topic, 0)
    await ask("POST", f"/v1/topics/{topic}/messages", {"text": "x"})
    (item,) = await receive(ask, topic)
    assert item["attempt"] == 1


async def test_what_came_for_a_client_that_had_gone_is_given_back(ask: Caller, topic: str) -> None:
    """It left before it was asked for, so that the messages and its leaving come together."""
    await ask("POST", f"/v1/topics/{topic}/messages", {"text": "x"})
    gone = trio.Event()
    gone.set()
    for _ in range(5):
        await ask("POST", GROUP.format(topic, "g") + "/receive", {**WAIT, "lease": "1h"}, leaves=gone)
    (item,) = await receive(ask, topic)
    assert item["attempt"] == 1


async def test_so_many_polls_of_a_token(ask: Caller, daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
    target = GROUP.format(topic, "g") + "/receive"
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_POLLS_PER_TOKEN):
            nursery.start_soon(ask, "POST", target, WAIT)
        await until_somebody_waits(daemon, topic, MAX_POLLS_PER_TOKEN)
        refused = await ask("POST", target, WAIT)
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_polls", "1")
        at_once = await ask("POST", target, {})
        assert (at_once.status, at_once.json) == (200, {"items": []})
        nursery.cancel_scope.cancel()


async def test_what_another_client_wrote_can_be_received_and_acked(
    ask: Caller, daemon: Daemon, topic: str
) -> None:
    odd = [(b"\xff\xfe", b""), (b"", b"\xc1"), (b"k", b"\x81\xa1h\xc7\x01\x05z")]
    with RawConnection(daemon.url).greet() as raw:
        topic_id = raw.open_topic(topic)
        keys, headers = zip(*odd, strict=True)
        raw.ask(
            FrameType.SEND, encode_send(topic_id, SendColumns([b""] * len(odd), keys=keys, headers=headers))
        )
    items = await receive(ask, topic, len(odd))
    assert {item["key"] for item in items} == {"??", None, "k"}
    assert [item["headers"] for item in sorted(items, key=lambda item: int(item["id"]))] == [
        {},
        None,
        {"h": {"ext": 5, "base64": "eg=="}},
    ]
    settled = await settle(ask, topic, ack=[item["receipt"] for item in items])
    assert settled.json["ack"] == ["acked"] * len(odd)


# Wrong requests ----------------------------------------------------------------------------------

GOOD = encode_receipt("t", "g", Receipt(1, 2, 3))
OTHER = encode_receipt("t", "other", Receipt(1, 2, 3))


@pytest.mark.parametrize(
    ("what", "code", "pointer"),
    [
        ({}, "bad_argument", ""),
        ({"ack": "x"}, "bad_argument", "/ack"),
        ({"acks": []}, "unknown_field", "/acks"),
        ({"ack": ["x"]}, "bad_receipt", "/ack/0"),
        ({"ack": [GOOD, GOOD[:-1]]}, "bad_receipt", "/ack/1"),
        ({"ack": [GOOD[:-1] + "é"]}, "bad_receipt", "/ack/0"),
        ({"ack": ["B" + GOOD[1:]]}, "bad_receipt", "/ack/0"),
        ({"ack": [GOOD[:4] + ("A" if GOOD[4] != "A" else "B") + GOOD[5:]]}, "bad_receipt", "/ack/0"),
        ({"extend": [{"receipt": OTHER, "by": "1s"}]}, "bad_receipt", "/extend/0/receipt"),
        ({"ack": [GOOD], "nack": [{"receipt": GOOD}]}, "bad_argument", "/nack/0/receipt"),
        ({"ack": [GOOD] * 10_001}, "bad_argument", ""),
        ({"nack": [{"receipt": GOOD, "delay": "soon"}]}, "bad_time", None),
        ({"nack": [{"receipt": GOOD, "give_up": True, "delay": "1s"}]}, "bad_argument", None),
        ({"nack": [{"receipt": GOOD, "uncounted": True, "error": "x"}]}, "bad_argument", None),
        ({"nack": [{"receipt": GOOD, "give_up": 1}]}, "bad_argument", "/nack/0/give_up"),
        ({"nack": [{}]}, "bad_argument", "/nack/0"),
        ({"extend": [{"receipt": GOOD}]}, "bad_argument", "/extend/0"),
        ({"extend": [{"receipt": GOOD, "by": "9999999d"}]}, "bad_time", None),
    ],
)
async def test_what_cannot_be_settled(ask: Caller, what: Any, code: str, pointer: str | None) -> None:
    answer = await ask("POST", GROUP.format("t", "g") + "/settle", what)
    assert (answer.status, answer.code) == (400, code)
    assert [one["pointer"] for one in answer.json.get("errors", [])] == ([] if pointer is None else [pointer])


@pytest.mark.parametrize(
    ("topic", "group", "wanted", "code", "pointer"),
    [
        ("-", "g", {}, "bad_topic_name", None),
        ("t", "-", {}, "bad_topic_name", None),
        ("t", "g", {"max": 0}, "bad_argument", "/max"),
        ("t", "g", {"max": 1_001}, "bad_argument", "/max"),
        ("t", "g", {"wait": "61s"}, "bad_argument", "/wait"),
        ("t", "g", {"wait": 5}, "bad_argument", "/wait"),
        ("t", "g", {"wait": "long"}, "bad_time", None),
        ("t", "g", {"lease": "9999999d"}, "bad_time", None),
        ("t", "g", {"mx": 1}, "unknown_field", "/mx"),
    ],
)
async def test_what_cannot_be_received(
    ask: Caller, topic: str, group: str, wanted: Any, code: str, pointer: str | None
) -> None:
    answer = await ask("POST", GROUP.format(topic, group) + "/receive", wanted)
    assert (answer.status, answer.code) == (400, code)
    assert [one["pointer"] for one in answer.json.get("errors", [])] == ([] if pointer is None else [pointer])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("credit=0", "bad_argument"),
        ("credit=1001", "bad_argument"),
        ("credit=x", "bad_argument"),
        ("lease=0s", "bad_argument"),
        ("lease=2h", "bad_argument"),
        ("lease=soon", "bad_time"),
        ("credits=1", "unknown_field"),
    ],
)
async def test_what_cannot_be_streamed(ask: Caller, query: str, code: str) -> None:
    answer = await ask("GET", f"/v1/topics/t/groups/g/stream?{query}")
    assert (answer.status, answer.code) == (400, code)


async def test_a_look_at_a_stream_is_none(ask: Caller, topic: str) -> None:
    answer = await ask("HEAD", f"/v1/topics/{topic}/groups/g/stream")
    assert (answer.status, answer.body) == (200, b"")
    assert (await ask("GET", f"/v1/topics/{topic}")).code == "unknown_topic"
