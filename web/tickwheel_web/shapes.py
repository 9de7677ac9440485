"""What requests and answers of all rooms share.

Ids are decimal texts, because JavaScript rounds numbers of 64 bits. Times are RFC 3339, durations texts as in settings.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel.errors import BadTime
from tickwheel.protocol.moments import parse_moment_as
from tickwheel.protocol.units import parse_duration_ms
from tickwheel_web.problems import Refused

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
NDJSON: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
MAX_BATCH: Final = 10_000
MAX_PAGE: Final = 1_000
MAX_PRIORITY: Final = 255
MAX_ID_DIGITS: Final = 19
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE
)
"""Also without its offset: then the client says what is missing."""
_TIME_ADVICE: Final = "Write it as 2031-05-01T09:00:00+02:00, or with Z for UTC."
_SHOWN_CHARS: Final = 40
ONE_TIME: Final = {"required": ["deliver_at", "delay"]}
"""What a schema forbids where there may be one of them."""

Moment = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
"""Of an answer: as Python's, and in the OpenAPI document as what it is."""


class AskedMoment(datetime):
    """A moment in a request, which ``read_other`` reads: parts of a millisecond are not lost, but rounded up."""


Time = Annotated[AskedMoment, Meta(extra_json_schema={"format": "date-time", "type": "string"})] | UnsetType
Duration = Annotated[str, Meta(description="30s, 1h30m, 250ms, 90d, or PT30S", examples=["30s"])]
Priority = Annotated[int, Meta(ge=0, le=MAX_PRIORITY, description="0 goes first; 50 is usual")]
TopicName = Annotated[
    str,
    # Not `pattern`: what is wrong with a name the client says better.
    Meta(examples=["orders"], extra_json_schema={"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,122}$"}),
]
Id = Annotated[
    str, Meta(pattern="^[0-9]{1,19}$", examples=["17"], description="An id that was answered, in digits")
]


class PageQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of a list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: Annotated[str, Meta(description="`next` of the part before")] = ""


class ConfirmQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """For what cannot be taken back."""

    confirm: Annotated[
        str,
        Meta(description="The name of what is to be deleted, once more", extra_json_schema={"minLength": 1}),
    ]


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Nothing."""


class Sent(msgspec.Struct, frozen=True):
    """A stored message. `duplicate`: its key was there before, and the id is the first one's; `differs`: that one has
    another body, other headers, another ordering key or another `deliver_at`."""

    id: Id
    duplicate: bool
    differs: bool


def duration_of(text: str | UnsetType, name: str) -> timedelta | None:
    """None: it was not given. Raises BadTime."""
    if text is UNSET:
        return None
    try:
        return _duration(text)
    except (ValueError, OverflowError) as error:
        raise BadTime(f"{name} is wrong: {error}.", advice="") from None


@lru_cache(maxsize=1_024)
def _duration(text: str) -> timedelta:
    """The messages of a batch mostly wait as long as each other."""
    return timedelta(milliseconds=parse_duration_ms(text))


def read_other(kind: type, value: object) -> object:
    """For msgspec: what it does not read itself. Raises ValueError."""
    if kind is not AskedMoment:
        raise NotImplementedError(kind)
    if not isinstance(value, str):
        told = "a number" if isinstance(value, int | float) and not isinstance(value, bool) else "no text"
        raise ValueError(f"A time is {told}. {_TIME_ADVICE}")
    try:
        if _RFC_3339.fullmatch(value):
            return parse_moment_as(AskedMoment, value)
    except ValueError:
        pass
    raise ValueError(f"{value[:_SHOWN_CHARS]!r} is no time. {_TIME_ADVICE}")


def moment_of(moment: Time) -> datetime | None:
    """None: it was not given. The client itself refuses one that has no offset."""
    return None if moment is UNSET else moment


def text_of(found: str, name: str, pointer: str) -> str:
    """What was decoded from %XX: other bytes than UTF-8 would all be the same text. Raises Refused (400)."""
    if not found.isprintable() and any("\ud800" <= char <= "\udfff" for char in found):
        raise Refused(
            400, "bad_argument", f"{name} is no UTF-8. Write its bytes in UTF-8 as %XX.", pointer=pointer
        )
    return found


def or_none(value: Any) -> Any:
    """The client's word for what was not given."""
    return None if value is UNSET else value


def _other(value: object) -> object:
    """What MessagePack has and JSON has not."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "base64": base64.b64encode(value.data).decode()}
    return str(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_other)


def encode(answer: object) -> bytes:
    """An answer as JSON."""
    return _ENCODER.encode(answer) + b"\n"
