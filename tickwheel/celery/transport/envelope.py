"""A message of Kombu as the body of a message at the broker: JSON, as other transports have it.

So a dashboard shows it, and a program in another language can write one: ``{"body": …, "content-type": …,
"content-encoding": …, "headers": {…}, "properties": {…}}``. A body that is text stays text, any other is base64, and
``properties["body_encoding"]`` says so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias

from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

PROPERTIES: Final = frozenset(
    {
        "app_id",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    }
)
"""AMQP's own. Callers pass others, too, which JSON may refuse."""

TASK_HEADER: Final = "celery-task"
"""Name of the task, in the headers at the broker: for people who look, and for queries."""
ID_HEADER: Final = "celery-id"
"""Its id."""
REPLY_HEADER: Final = "tickwheel_reply"
"""Of a task: the queue of replies that its sender has made before. When it is there no more, nothing waits for them."""
_HEADER_CHARS: Final = 255

Arrival: TypeAlias = Callable[[Mapping[str, Any], MutableMapping[str, Any], MutableMapping[str, Any]], None]
"""Told of a message that arrives: its headers at the broker, and those and the properties of the task, to change."""

ARRIVALS: Final[list[Arrival]] = []
"""What fills in messages as they arrive, such as those that schedules send."""


def encode(message: Mapping[str, Any], exchange: str, routing_key: str) -> bytes:
    """The body at the broker of a message that ``Channel.prepare_message`` made. Raises what JSON raises."""
    given = message["properties"]
    properties = {name: value for name, value in given.items() if name in PROPERTIES and value is not None}
    properties["delivery_info"] = {"exchange": exchange, "routing_key": routing_key}
    # It tells a message that was sent twice from one that only has the same key.
    properties["delivery_tag"] = uuid()
    body = message["body"]
    if not isinstance(body, str):
        properties["body_encoding"] = "base64"
        body = base64.b64encode(body or b"").decode("ascii")
    encoded: str = dumps(
        {
            "body": body,
            "content-encoding": message.get("content-encoding"),
            "content-type": message.get("content-type"),
            "headers": message.get("headers") or {},
            "properties": properties,
        }
    )
    return encoded.encode()


def broker_headers(headers: Mapping[str, Any]) -> dict[str, str] | None:
    """The headers at the broker of a message with these headers; None: it is no task."""
    task, task_id = headers.get("task"), headers.get("id")
    if not isinstance(task, str) or not isinstance(task_id, str):
        return None
    return {TASK_HEADER: task[:_HEADER_CHARS], ID_HEADER: task_id[:_HEADER_CHARS]}


def decode(body: bytes, at_broker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The message in a body. What is no envelope is a message of its own: bytes without headers, of which the consumer
    decides, with the reason as its ``fault``. ``at_broker``: its headers there."""
    try:
        raw = loads(body)
        headers, properties, inner = dict(raw["headers"]), dict(raw["properties"]), raw["body"]
        if properties.pop("body_encoding", None) == "base64":
            inner = base64.b64decode(inner, validate=True)
        if not all(isinstance(raw.get(name), str | None) for name in ("content-type", "content-encoding")):
            raise ValueError("its content type or encoding is no text")
        if "task" in headers and not (
            isinstance(headers["task"], str) and isinstance(headers.get("id"), str)
        ):
            raise ValueError("it is a task without a name or an id that is text")
    except Exception as error:  # whatever is written into a topic must not end the worker that reads it
        return {
            "body": body,
            "content-type": "application/data",
            "content-encoding": "binary",
            "headers": {},
            "properties": {"delivery_info": {}},
            "fault": f"it is no message of Kombu: {error}",
        }
    if not isinstance(properties.get("delivery_info"), dict):
        properties["delivery_info"] = {}
    for filling in ARRIVALS:
        filling(at_broker or {}, headers, properties)
    return {**raw, "headers": headers, "properties": properties, "body": inner, "fault": ""}
