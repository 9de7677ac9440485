"""A message as a CloudEvent 1.0 over HTTP: its attributes as headers (binary), or all of it as JSON (structured)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

import msgspec

SPEC_VERSION: Final = "1.0"
STRUCTURED_TYPE: Final = "application/cloudevents+json"
DEFAULT_TYPE: Final = "tickwheel.message"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_JSON: Final = re.compile(r"(?:application|text)/(?:[\w.!#$&^-]+\+)?json(?:\s*;.*)?", re.IGNORECASE)
_TEXT: Final = re.compile(r"text/[\w.!#$&^+-]+(?:\s*;\s*charset=\"?utf-8\"?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """The attributes that we give it, and its data."""

    id: str
    source: str
    type: str
    time: str
    subject: str | None
    content_type: str | None
    data: bytes


def source_of(topic: str) -> str:
    """A relative URI that names the topic."""
    return f"/topics/{quote(topic, safe='')}"


def time_text(time_ms: int) -> str:
    """RFC 3339 in UTC.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def binary_headers(event: CloudEvent) -> dict[str, str]:
    """The attributes as headers; the data is the body as it is."""
    return {f"ce-{name}": _header_value(value) for name, value in _attributes(event).items()}


def structured(event: CloudEvent) -> bytes:
    """The body of a request of type ``STRUCTURED_TYPE``. Data that is neither JSON nor text is base64 in it."""
    document: dict[str, object] = dict(_attributes(event))
    if event.content_type is not None:
        document["datacontenttype"] = event.content_type
    document |= _data(event)
    return msgspec.json.encode(document)


def _attributes(event: CloudEvent) -> dict[str, str]:
    attributes = {
        "specversion": SPEC_VERSION,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": event.time,
    }
    if event.subject:
        attributes["subject"] = event.subject
    return attributes


def _data(event: CloudEvent) -> dict[str, object]:
    if not event.data:
        return {}
    if event.content_type is not None and _JSON.fullmatch(event.content_type) and _is_json(event.data):
        return {"data": msgspec.Raw(event.data)}
    if event.content_type is not None and _TEXT.fullmatch(event.content_type):
        try:
            return {"data": event.data.decode()}
        except UnicodeDecodeError:
            pass
    return {"data_base64": event.data}


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _header_value(value: str) -> str:
    """As the HTTP binding has it: printable ASCII stays, but for blank, quote and percent."""
    return "".join(
        char if "!" <= char <= "~" and char not in '"%' else quote(char.encode(errors="replace"), safe="")
        for char in value
    )
