"""The request that a message becomes: its headers and its body, signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tickwheel.protocol.receipts import Receipt, encode_receipt
from tickwheel.protocol.targets import target_headers
from tickwheel.protocol.targets.signing_secrets import secret_bytes
from tickwheel.protocol.targets.target_urls import matches
from tickwheel_push.http.addresses import AddressRefused, Allowed, Location
from tickwheel_push.http.cloud_event import (
    DEFAULT_TYPE,
    STRUCTURED_TYPE,
    CloudEvent,
    binary_headers,
    source_of,
    structured,
    time_text,
)

Format: TypeAlias = Literal["binary", "structured", "plain"]

_BARE: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS"})
"""Without a body these have no length, either."""
_CONTENT_TYPE: Final = "content-type"
_DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
_PASSED_ON: Final = ("traceparent", "tracestate")
_USER_AGENT: Final = "tickwheel-push"

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-zA-Z-]{1,128}")
_VALUE: Final = re.compile(r"[!-~](?:[\t -~]*[!-~])?|")


class RequestRefused(Exception):
    """A message that cannot become a request, now or later."""


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery of a message, as far as its request tells of it."""

    receipt: Receipt
    topic: str
    group: str
    body: bytes
    headers: Mapping[str, Any]
    key: str | None
    deliver_at_ms: int
    created_ms: int
    attempt: int
    """From 1: how often it was tried, with this time."""

    @property
    def id(self) -> int:
        """That of the message."""
        return self.receipt.id


@dataclass(frozen=True, slots=True)
class Style:
    """How an endpoint wants its requests."""

    format: Format = "binary"
    secrets: Sequence[str] = ()
    headers: Mapping[str, str] | None = None
    tells_receipt: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Ready to be sent."""

    method: str
    location: Location
    headers: list[tuple[str, str]]
    body: bytes


def request_of(
    due: Due,
    style: Style,
    location: Location,
    now_s: float,
    method: str = "POST",
    more: Mapping[str, str] | None = None,
) -> Request:
    """``more``: headers of this request alone. ``now_s``: epoch seconds. Raises RequestRefused."""
    headers = {"host": location.authority, "user-agent": _USER_AGENT, "accept": "*/*"}
    headers |= {name.lower(): value for name, value in {**(style.headers or {}), **(more or {})}.items()}
    content_type = _text(due.headers.get(_CONTENT_TYPE)) or headers.get(_CONTENT_TYPE)
    headers |= _trace(due.headers)
    body = due.body
    if style.format == "plain":
        headers[_CONTENT_TYPE] = content_type or _DEFAULT_CONTENT_TYPE
    else:
        event = event_of(due, content_type or _DEFAULT_CONTENT_TYPE)
        if style.format == "structured":
            headers[_CONTENT_TYPE] = STRUCTURED_TYPE
            body = structured(event)
        else:
            headers[_CONTENT_TYPE] = content_type or _DEFAULT_CONTENT_TYPE
            headers |= binary_headers(event)
    if body or method not in _BARE:
        headers["content-length"] = str(len(body))
    else:
        del headers[_CONTENT_TYPE]
    headers |= _told(due, style, int(now_s), body)
    _check(headers)
    return Request(method, location, list(headers.items()), body)


def event_of(due: Due, content_type: str) -> CloudEvent:
    """The attributes: what the message says itself in headers ``ce-…``, and otherwise what we know."""

    def given(name: str) -> str | None:
        return _text(due.headers.get(f"ce-{name}"))

    return CloudEvent(
        id=given("id") or webhook_id(due.id),
        source=given("source") or source_of(due.topic),
        type=given("type") or DEFAULT_TYPE,
        time=time_text(due.deliver_at_ms),
        subject=given("subject") or _subject(due.key),
        content_type=content_type,
        data=due.body,
    )


def _subject(key: str | None) -> str | None:
    """The key, unless a client made it up. One that is no text is shown as far as it is."""
    return None if key is None or key.startswith("~") else key.encode(errors="replace").decode()


def _told(due: Due, style: Style, timestamp_s: int, body: bytes) -> dict[str, str]:
    """What we say of the message, and the proof that we do."""
    message_id = webhook_id(due.id)
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "tickwheel-attempt": str(due.attempt),
        "tickwheel-due": time_text(due.deliver_at_ms),
        "tickwheel-scheduled": time_text(due.created_ms),
    }
    if style.secrets:
        headers["webhook-signature"] = signature(style.secrets, message_id, timestamp_s, body)
    if style.tells_receipt:
        # For who settles it by the HTTP API.
        headers["tickwheel-receipt"] = encode_receipt(due.topic, due.group, due.receipt)
    return headers


def webhook_id(message_id: int) -> str:
    """The same in all attempts, so that a receiver knows what it has seen; without a dot, which divides what is
    signed."""
    return f"msg_{message_id}"


def signature(secrets: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The proof of who sent a request, as Standard Webhooks (standardwebhooks.com) has it: one entry for each secret.
    While secrets change, a receiver may know either. Raises ValueError."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    digests = (hmac.new(secret_bytes(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _trace(headers: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _text(headers.get(name)) for name in _PASSED_ON}
    return {name: value for name, value in found.items() if value}


def _text(value: object) -> str | None:
    """A value that may be one of HTTP; None: it is none."""
    return value if isinstance(value, str) and value and _VALUE.fullmatch(value) else None


def _check(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise RequestRefused(f"the header {name!r} is not one of HTTP")


# Tasks -------------------------------------------------------------------------------------------


def task_of(due: Due, style: Style, allowed: Allowed, allow_urls: Sequence[str], now_s: float) -> Request:
    """The request of a message that names its URL, method and headers itself. Raises RequestRefused."""
    try:
        task = target_headers.task_of(due.headers)
        location = allowed.location(task.url)
    except (ValueError, AddressRefused) as error:
        raise RequestRefused(str(error)) from None
    if not any(matches(pattern, task.url) for pattern in allow_urls):
        raise RequestRefused(f"none of allow_urls matches {task.url}")
    return request_of(due, style, location, now_s, task.method, task.headers)
