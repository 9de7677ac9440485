"""Which bodies are messages as they are.

A client that was told no content type writes its own or none at all, and such a body is mostly JSON: stored as it is,
it would be another message at another time.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from starlette.requests import Request

from tickwheel_web import reading
from tickwheel_web.bodies import FORMS
from tickwheel_web.messages.shapes import Send
from tickwheel_web.problems import Refused
from tickwheel_web.shapes import JSON, NDJSON

BYTES: Final = "application/octet-stream"
_MEDIA_TYPE: Final = re.compile(r"[\w!#$%&'+.^`|~-]+/[\w!#$%&'+.^`|~-]+", re.ASCII)
"""Without ``*``: of ``Accept``, where it is a range, and not of a body."""
_NOT_MEANT: Final = (
    "application/x-www-form-urlencoded",  # what curl -d, wget and urllib write by themselves
    "multipart/form-data",
    "text/json",
    "text/x-json",
    "application/x-json",
)
_FIELDS: Final = frozenset(Send.__struct_encode_fields__)
_ADVICE: Final = (
    f"Use {JSON} for a message with its fields, or {BYTES} for a body that is stored as it is "
    f"(curl: -H 'Content-Type: {JSON}')."
)


HEADER_PREFIX: Final = "tw-header-"
_OURS: Final = "tw-"


def headers_beside(request: Request) -> dict[str, str]:
    """The message's headers that are headers of the request. Raises Refused (400): a time that was given so would be
    passed over."""
    found = {}
    for name, value in request.headers.items():
        if name.startswith(_OURS):
            if not name.startswith(HEADER_PREFIX):
                raise Refused(
                    400,
                    "bad_argument",
                    f"There is no header {name!r}. Beside a body that is stored as it is, delay, deliver_at, priority "
                    f"and order_key are query parameters, and each header {HEADER_PREFIX}NAME is one of the message.",
                )
            found[name.removeprefix(HEADER_PREFIX)] = reading.header_text(value)
    return found


def need_none_beside(request: Request) -> None:
    """JSON says everything itself. Raises Refused (400)."""
    for name in request.headers:
        if name.startswith(_OURS):
            raise Refused(
                400,
                "bad_argument",
                f"The header {name!r} is for bodies that are no JSON. Write what it says as a field of the message.",
            )


def need_raw(request: Request, body: bytes) -> None:
    """That the request's body is the message's. Raises Refused (415)."""
    found = reading.media_type(request)
    if found in NDJSON:
        advice = f"Send many messages to {request.url.path}/batch, and a single message as {JSON}."
    elif found in _NOT_MEANT or not (_MEDIA_TYPE.fullmatch(found) if found else not body):
        advice = _ADVICE
    elif found.startswith("text/") or found.endswith(
        "+json"
    ):  # fetch of JavaScript writes text/plain by itself
        if not _is_send(body):
            return
        advice = f"The body has the fields of a message. {_ADVICE}"
    else:
        return
    raise reading.other_type(found, advice, (JSON, BYTES))


def _is_send(body: bytes) -> bool:
    """Whether it is a request in JSON: a body, and at least one more field of a message."""
    if not body.lstrip().startswith(b"{"):
        return False
    try:
        names = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return len(names) > 1 and not names.isdisjoint(FORMS) and names <= _FIELDS
