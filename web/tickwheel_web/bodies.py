"""The body of a message in JSON: `body` (any JSON), `text`, or `base64`, told apart by its content type."""

from __future__ import annotations

import base64
import binascii
from itertools import combinations
from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel.errors import BadArgument
from tickwheel.protocol.headers import WithHeaders, shown_headers
from tickwheel_web.shapes import JSON

TEXT: Final = "text/plain; charset=utf-8"
CONTENT_TYPE: Final = "content-type"
"""The header of a message that says what its body is."""
FORMS: Final = ("body", "text", "base64")
ONE_FORM: Final = [{"required": [name]} for name in FORMS]
"""What msgspec's schema cannot say: exactly one of them."""
TWO_FORMS: Final = [{"required": [first, second]} for first, second in combinations(FORMS, 2)]
"""What a schema forbids where there may be one of them."""

Base64 = Annotated[
    str,
    Meta(
        extra_json_schema={
            "contentEncoding": "base64",
            "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        }
    ),
]


_ALONE: Final[dict[str, dict[str, Any]]] = {kind: {CONTENT_TYPE: kind} for kind in (JSON, TEXT)}
"""The same object each time: what all messages of a batch have is written once."""


class Body(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Exactly one of `body` (any JSON), `text` and `base64`."""

    body: msgspec.Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: Base64 | UnsetType = UNSET


class WithContent(WithHeaders, Protocol):
    """A message of the client."""

    @property
    def body(self) -> bytes:
        """All of it, or its beginning."""


def body_of(given: Body) -> tuple[bytes, str]:
    """The body's bytes and their content type, empty for bytes of any kind. Raises BadArgument."""
    if (given.body is UNSET) + (given.text is UNSET) + (given.base64 is UNSET) != len(FORMS) - 1:
        names = [name for name in FORMS if getattr(given, name) is not UNSET]
        raise BadArgument(
            f"The message has {' and '.join(names) or 'no body'}.",
            advice=f"Give exactly one of {', '.join(FORMS)}.",
        )
    if isinstance(given.body, msgspec.Raw):
        return _checked(bytes(given.body)), JSON
    if isinstance(given.text, str):
        return given.text.encode(), TEXT
    assert isinstance(given.base64, str)
    try:
        return base64.b64decode(given.base64, validate=True), ""
    except (binascii.Error, ValueError):
        raise BadArgument("base64 is no base64.", advice="Use the standard alphabet, with padding.") from None


def _checked(body: bytes) -> bytes:
    """msgspec looks at its structure, and not into its texts. Raises BadArgument."""
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError:
        raise BadArgument(
            "The texts in body are no UTF-8.", advice="Write JSON as UTF-8, or give bytes as base64."
        ) from None
    return body


def headers_of(given: dict[str, Any] | UnsetType, content_type: str) -> dict[str, Any] | None:
    """A message's headers, with its content type unless they say one themselves; None: none."""
    if given is UNSET and content_type in _ALONE:
        return _ALONE[content_type]
    headers = {} if given is UNSET else dict(given)
    if content_type and CONTENT_TYPE not in headers:
        headers[CONTENT_TYPE] = content_type
    return headers or None


def shown(body: bytes, headers: dict[str, Any]) -> dict[str, Any]:
    """The body by its content type; as base64 where it is not what that says."""
    kind = headers.get(CONTENT_TYPE)
    named = _named(body, kind.partition(";")[0].strip().lower()) if isinstance(kind, str) else None
    return named or {"base64": base64.b64encode(body).decode()}


def content_of(message: WithContent, *, has_body: bool = True) -> dict[str, Any]:
    """The headers of a message as JSON can have them, and its body in one of the forms."""
    headers = shown_headers(message)
    return {"headers": headers, **(shown(message.body, headers or {}) if has_body else {})}


def _named(body: bytes, kind: str) -> dict[str, Any] | None:
    try:
        if kind == JSON or kind.endswith("+json"):
            if not body.isascii():
                body.decode()  # what follows looks at its structure only, since its values are of no interest
            msgspec.json.decode(body, type=msgspec.Raw)
            return {"body": msgspec.Raw(body)}
        if kind.startswith("text/"):
            return {"text": body.decode()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return None
