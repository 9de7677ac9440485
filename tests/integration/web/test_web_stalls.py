"""Requests that are heavy for `tickwheel web`, legal and illegal: whoever sends them does not hold its event loop.

The process is watched (`stalls`): a step that takes too much processor time fails the test when the process has ended.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.support.processes.web_process import Web
from tickwheel.protocol.receipts import Receipt, encode_receipt

JSON = "application/json"
LINES = "application/x-ndjson"
MIB = 1024 * 1024


def ask(
    connection: HTTPConnection, path: str, body: bytes | None = None, kind: str = JSON
) -> tuple[int, Any]:
    method = "GET" if body is None else "POST"
    connection.request(method, path, body, {"Content-Type": kind})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.request(
        "GET", "/v1/stats"
    )  # when it is answered, the step that wrote the first answer has ended
    connection.getresponse().read()
    return found


def objects(count: int) -> bytes:
    return b"[" + b",".join([b'{"a":{}}'] * count) + b"]"


@pytest.mark.parametrize(
    ("kind", "body", "status", "code"),
    [
        (LINES, b"{}\n" * (2 * MIB), 400, "bad_argument"),
        (LINES, b"x\n" * (3 * MIB), 400, "bad_argument"),
        (JSON, b"[" + b"1," * (3 * MIB) + b"1]", 400, "bad_argument"),
        (JSON, b"[" + b'{"text":""},' * 400_000 + b"{}]", 400, "bad_argument"),
        (JSON, b"[" + b"1," * (3 * MIB) + b"1", 400, "bad_json"),
    ],
    ids=["lines", "garbage", "numbers", "messages", "no-end"],
)
def test_batches_that_are_refused(
    web: Web, topic: str, kind: str, body: bytes, status: int, code: str
) -> None:
    connection = web.connection()
    found, problem = ask(connection, f"/v1/topics/{topic}/messages/batch", body, kind)
    assert (found, problem["code"]) == (status, code)
    connection.close()


@pytest.mark.parametrize(
    "wrong",
    [{}, {"txt": "x"}, {"text": "y"}],
    ids=["none", "all-unknown", "twice"],
)
def test_a_batch_with_all_columns(web: Web, topic: str, wrong: dict[str, str]) -> None:
    messages = [
        json.dumps(
            {
                "body": {"number": number},
                "key": f"k{number}",
                "headers": {"a": str(number), "b": [{"c": number}]},
                "priority": number % 255,
                "order_key": f"o{number}",
                "delay": f"{number % 3_000 + 1}s",
            }
            | ({"txt": "x"} if wrong == {"txt": "x"} else {})
        )
        for number in range(10_000)
    ]
    if wrong == {"text": "y"}:
        messages[-1] = '{"text": "a", "text": "b"}'
    connection = web.connection()
    path = f"/v1/topics/{topic}/messages/batch"
    status, answer = ask(connection, path, f"[{','.join(messages)}]".encode())
    refused = {"{}": 0, "{'txt': 'x'}": 10_000, "{'text': 'y'}": 1}[str(wrong)]
    assert (status, answer["stored"], answer["refused"]) == (200, 10_000 - refused, refused)
    codes = {item["code"] for item in answer["items"] if "code" in item}
    assert codes == {0: set(), 1: {"bad_json"}, 10_000: {"unknown_field"}}[refused]
    ids = [int(item["id"]) for item in answer["items"] if "id" in item]
    assert ids == sorted(ids)
    connection.close()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (b'"headers":{%b}' % b",".join(b'"k%d":%d' % (n, n) for n in range(300_000)), "headers_too_large"),
        (b'"headers":{"z":1,"z":2,"a":%b}' % objects(300_000), "headers_too_large"),
        (b'"headers":{"a":%b},"headers":{}' % objects(300_000), "bad_json"),
    ],
    ids=["many", "nested", "twice"],
)
def test_headers_that_are_never_allowed(web: Web, topic: str, fields: bytes, code: str) -> None:
    connection = web.connection()
    path = f"/v1/topics/{topic}/messages"
    status, problem = ask(connection, path, b'{"text":"x",%b}' % fields)
    assert (status, problem["code"]) == (400, code)
    status, answer = ask(connection, f"{path}/batch", b'[{"text":"a"},{"text":"x",%b}]' % fields)
    assert (status, [item.get("code") for item in answer["items"]]) == (200, [None, code])
    connection.close()


def test_bodies_of_many_values_are_stored_and_shown(web: Web, topic: str) -> None:
    body = objects(400_000)
    connection = web.connection()
    path = f"/v1/topics/{topic}/messages"
    for name in (b"body", b"b\\u006fdy"):
        assert ask(connection, path, b'{"%b":%b}' % (name, body))[0] == 201
    status, listed = ask(connection, f"{path}?bodies=1")
    assert (status, [len(item["body"]) for item in listed["items"]]) == (200, [400_000] * 2)
    status, received = ask(connection, f"/v1/topics/{topic}/groups/g/receive", b'{"max": 1}')
    assert (status, [len(item["body"]) for item in received["items"]]) == (200, [400_000])
    connection.close()


def test_many_receipts_and_many_things_to_do(web: Web, topic: str) -> None:
    connection = web.connection()
    path = f"/v1/topics/{topic}/groups/g"
    assert ask(connection, f"{path}/receive", b"{}")[0] == 200
    receipts = [encode_receipt(topic, "g", Receipt(1, number, 1)) for number in range(1, 10_001)]
    status, answer = ask(connection, f"{path}/settle", json.dumps({"ack": receipts}).encode())
    assert (status, len(answer["ack"])) == (200, 10_000)
    nacks = [{"receipt": one, "delay": f"{number}s"} for number, one in enumerate(receipts[:1_000])]
    status, answer = ask(connection, f"{path}/settle", json.dumps({"nack": nacks}).encode())
    assert (status, len(answer["nack"])) == (200, 1_000)
    status, problem = ask(connection, f"{path}/settle", b'{"ack":[%b""]}' % (b'"",' * (2 * MIB)))
    assert (status, problem["code"]) == (400, "bad_argument")
    connection.close()
