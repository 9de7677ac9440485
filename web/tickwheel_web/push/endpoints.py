"""Endpoints: set, look at, switch on and off, test, delete. Their version is the entity tag of HTTP."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import UNSET, Struct
from starlette.responses import Response

from tickwheel import Endpoint as Found
from tickwheel.errors import BadArgument, EndpointChanged, UnknownEndpoint
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.paging import before_of, page, place_cursor
from tickwheel_web.push.shapes import (
    Attempt,
    Attempts,
    ChangedEndpoint,
    DeletedEndpoint,
    Endpoint,
    Endpoints,
    NewEndpoint,
    TestSent,
)
from tickwheel_web.shapes import PageQuery, duration_of, moment_of, or_none

IF_MATCH: Final = "If-Match"
IF_NONE_MATCH: Final = "If-None-Match"
CONDITIONS: Final = {
    IF_MATCH: 'Only if its ETag is still this one: "3".',
    IF_NONE_MATCH: "*: only if there is none of this name.",
}
_TAG: Final = re.compile(r'"(\d{1,18})"')
_UNSETTABLE: Final = [
    name for name in ChangedEndpoint.__struct_fields__ if name not in ("secrets", "may_hold")
]


async def list_endpoints(asked: Asked) -> Response:
    """Those that the token sees."""
    found = await asked.client.endpoints(or_none(asked.query.topic))
    rows, following = page(found, lambda row: row.name, PageQuery(asked.query.limit, asked.query.after))
    return json(Endpoints([Endpoint.of(row) for row in rows], following))


async def get_endpoint(asked: Asked) -> Response:
    """As far as the token may see it."""
    return _answer(await asked.client.endpoint(asked.path("endpoint")))


async def put_endpoint(asked: Asked) -> Response:
    """201: there was none of this name; 200: it says this now, all of it, and keeps its secrets if none are given."""
    name, given = asked.path("endpoint"), reading.decode(NewEndpoint, asked.body)
    if given.start is not UNSET and given.start_at is not UNSET:
        raise BadArgument("Both start and start_at were given.", advice="Give one of them.")
    start = moment_of(given.start_at) or ("latest" if given.start is UNSET else given.start)
    expected = _expected_version(asked)
    is_new = await _is_new(asked, name)
    arguments = _arguments(given)
    unset = [field for field in _UNSETTABLE if field not in arguments]
    found = await asked.client.set_endpoint(
        name, topic=given.topic, unset=unset, start=start, expected_version=expected, **arguments
    )
    return _answer(found, 201 if is_new and found.version == 1 else 200)


async def change_endpoint(asked: Asked) -> Response:
    """All that is given, or nothing."""
    given = reading.decode(ChangedEndpoint, asked.body)
    expected = _expected_version(asked)
    if expected == 0:
        raise BadArgument(f"{IF_NONE_MATCH} is for PUT: what is to change is there.", advice="Leave it out.")
    arguments = _arguments(given)
    unset = [name for name, value in arguments.items() if value is None]
    kept = {name: value for name, value in arguments.items() if value is not None}
    name = asked.path("endpoint")
    await asked.client.endpoint(name)
    return _answer(await asked.client.set_endpoint(name, unset=unset, expected_version=expected, **kept))


async def enable_endpoint(asked: Asked) -> Response:
    """It goes on with what waits for it."""
    return _answer(
        await asked.client.enable_endpoint(asked.path("endpoint"), expected_version=_expected_version(asked))
    )


async def disable_endpoint(asked: Asked) -> Response:
    """Nothing is sent to it until it is enabled."""
    return _answer(
        await asked.client.disable_endpoint(
            asked.path("endpoint"), asked.query.reason, expected_version=_expected_version(asked)
        )
    )


async def delete_endpoint(asked: Asked) -> Response:
    """With its group, unless that is to be kept."""
    name = asked.confirmed("endpoint")
    backlog = await asked.client.delete_endpoint(
        name, keep_group=bool(asked.query.keep_group), expected_version=_expected_version(asked)
    )
    return json(DeletedEndpoint(name, backlog))


async def test_endpoint(asked: Asked) -> Response:
    """`tickwheel push` sends it; nothing else gets it."""
    message_id = await asked.client.test_endpoint(asked.path("endpoint"))
    return json(TestSent(str(message_id)), 201, {"Location": f"/v1/messages/{message_id}"})


async def list_attempts(asked: Asked) -> Response:
    """From the broker's log."""
    found = await asked.client.endpoint_attempts(
        asked.path("endpoint"), limit=asked.query.limit, before=before_of(asked.query.after)
    )
    following = None if found.next is None else place_cursor(found.next)
    return json(Attempts([Attempt.of(one) for one in found.attempts], following, found.missing))


async def _is_new(asked: Asked, name: str) -> bool:
    try:
        await asked.client.endpoint(name)
    except UnknownEndpoint:
        return True
    return False


def _arguments(given: Struct) -> dict[str, Any]:
    """What is given, as the client takes it. Raises BadTime."""
    found = {name: getattr(given, name) for name in ChangedEndpoint.__struct_fields__}
    found = {name: value for name, value in found.items() if value is not UNSET}
    if found.get("timeout") is not None:
        found["timeout"] = duration_of(found["timeout"], "timeout")
    if found.get("retry_delays") is not None:
        found["retry_delays"] = [duration_of(delay, "retry_delays") for delay in found["retry_delays"]]
    return found


def _expected_version(asked: Asked) -> int | None:
    """What the conditions say. Raises BadArgument, EndpointChanged."""
    match = asked.request.headers.get(IF_MATCH.lower())
    none_match = asked.request.headers.get(IF_NONE_MATCH.lower())
    if none_match is not None:
        if none_match != "*" or match is not None:
            raise BadArgument(f"{IF_NONE_MATCH} is {none_match[:40]!r}.", advice="Use * alone.")
        return 0
    if match is None:
        return None
    tag = _TAG.fullmatch(match)
    if tag is None:
        raise BadArgument(f"{IF_MATCH} is {match[:40]!r}.", advice='Use the ETag that was answered: "3".')
    if int(tag[1]) == 0:
        raise EndpointChanged("No endpoint has version 0.")
    return int(tag[1])


def _answer(found: Found, status: int = 200) -> Response:
    answer: Struct = Endpoint.of(found)
    return json(answer, status, {"ETag": f'"{found.version}"'})
