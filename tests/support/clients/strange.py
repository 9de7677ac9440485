"""Messages that no program of ours writes: headers that are none, or not what their names promise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from tests.support.processes.daemon_harness import RawConnection
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import SendColumns, encode_send

_OWN: Final = (
    "tickwheel-dead",
    "tickwheel-prepared",
    "tickwheel-schedule",
    "tickwheel-beat",
    "tickwheel-url",
    "tickwheel-method",
    "tickwheel-endpoint",
    "tickwheel-endpoint-version",
    "tickwheel-header-shop",
    "celery-task",
    "celery-id",
    "taskiq_id",
    "taskiq_name",
    "taskiq_schedule",
    "rocketmq",
    "content-type",
    "traceparent",
)
"""Names whose values some program of ours reads."""
_VALUES: Final[tuple[Any, ...]] = (
    "tea",
    "",
    17,
    -1,
    1 << 63,
    1.5,
    float("inf"),
    None,
    True,
    b"\x00\xff",
    [],
    [1, [2]],
    {},
    {"id": "x", "group": 17, "attempts": "many", "error": ["e"], "key": {"k": 1}, "topic": None},
    {"id": float("inf"), "group": "", "key": "", "topic": "strange", "deliver_at_ms": float("inf")},
    {"id": -5, "group": "no such", "key": "k", "topic": "strange", "deliver_at_ms": 1 << 63},
    {
        "id": 1,
        "group": "default",
        "key": "k",
        "topic": "strange",
        "history": [[1, -5, "x"], "y"],
        "error": "\x1b[2J",
    },
    {"name": 17, "slot_ms": "soon"},
    {"name": "x", "slot_ms": 1 << 62, "app": "x", "entry": "y", "expires_ms": 1 << 62},
    {"id": "x", "shadowed": [1], "keys": 5, "type": "x", "dead": 1, "born_ms": -1, "priority": 1 << 40},
    msgspec.msgpack.Ext(5, b"\x01"),
    {1: 2, None: {b"\xff": [1]}},
)
HEADERS: Final[Sequence[bytes]] = (
    b"",
    b"\xc1",  # no MessagePack
    b"\x93\x01\x02\x03",  # no map
    b"\x81\x01\x02",  # a name that is no text
    b"\x81\xa1\xff\x01",  # a name that is no UTF-8
    b"\x91" * 2_000 + b"\x00",
    b"\x81\xa1a" + b"\x91" * 1_500 + b"\x00",
    *(msgspec.msgpack.encode(dict.fromkeys(_OWN, value)) for value in _VALUES),
)
BODIES: Final[Sequence[bytes]] = (
    b"",
    b"\x00\xff",
    b"tea",
    b"17",
    b"[]",
    b"null",
    b'{"task": 17, "id": [], "args": 5, "kwargs": null, "backend": {}, "queue": 1, "priority": "x", "schedule": 1}',
    b'{"queue_name": 1, "actor_name": [], "args": 5, "kwargs": [], "options": "x", "message_id": null}',
    b'{"queue_name": "q", "actor_name": "a", "args": [], "kwargs": {}, "options": [], "message_id": 5}',
    b'{"queue_name": "q", "actor_name": "a", "args": [], "kwargs": {}, "options": [], "message_id": "x"}',
    b'{"body": 5, "headers": {"task": 1, "id": 2, "eta": {}}, "properties": {"delivery_info": 5, "priority": "x"}}',
    b'{"body": "x", "headers": {"task": "a", "id": "b", "retries": "x", "expires": "y"}, "properties": {}}',
    b'{"body": "x", "headers": {}, "properties": {"delivery_info": {"routing_key": [], "exchange": {}}}}',
    b'{"task_id": 1, "task_name": [], "labels": 5, "args": {}, "kwargs": []}',
    b'{"task_id": "a", "task_name": "b", "labels": {"x": 1}, "labels_types": {"x": 99}, "args": [], "kwargs": {}}',
    b"[" * 5_000,
)


def send_strange(
    url: str, topic: str, bodies: Sequence[bytes] = BODIES, *, deliver_at_ms: int = 0, keys: bool = False
) -> int:
    """Each body with no headers, and each of the headers with one of the bodies; how many messages that is."""
    with RawConnection(url).greet() as raw:
        topic_id = raw.open_topic(topic)
        pairs = [(body, b"") for body in bodies]
        pairs += [(bodies[number % len(bodies)], headers) for number, headers in enumerate(HEADERS)]
        columns = SendColumns(
            [body for body, _ in pairs],
            keys=[b"\xff%d" % number for number in range(len(pairs))] if keys else None,
            headers=[headers for _, headers in pairs],
            deliver_at_ms=deliver_at_ms,
        )
        answer = raw.ask(FrameType.SEND, encode_send(topic_id, columns))
        assert answer.type == FrameType.SEND_OK, answer
    return len(pairs)


def readable() -> list[dict[str, Any]]:
    """Those of the headers that are a map with names."""
    found = []
    for packed in filter(None, HEADERS):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(msgspec.msgpack.decode(packed, type=dict[str, Any]))
    return found
