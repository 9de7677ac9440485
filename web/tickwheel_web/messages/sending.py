"""Send messages: one, or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tickwheel import SendResult
from tickwheel.client.times import AT_ONCE
from tickwheel.errors import (
    BadArgument,
    BadTime,
    BadTopicName,
    Forbidden,
    HeadersTooLarge,
    NaiveDatetime,
    TickwheelError,
)
from tickwheel.protocol.bodies.wording import of_json
from tickwheel_web import reading
from tickwheel_web.bodies import CONTENT_TYPE, body_of, headers_of
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.large.aside import aside
from tickwheel_web.large.pieces import PIECE_BYTES, lines_of, pieces_of
from tickwheel_web.messages.raw import headers_beside, need_none_beside, need_raw
from tickwheel_web.messages.shapes import Item, Send, SendQuery, SentBatch
from tickwheel_web.problems import Refused, detail_of
from tickwheel_web.repeated import repeated_name
from tickwheel_web.shapes import JSON, MAX_BATCH, NDJSON, Sent, duration_of, moment_of, or_none, read_other

_SEND: Final = msgspec.json.Decoder(Send, dec_hook=read_other)
_SENDS: Final = msgspec.json.Decoder(list[Send], dec_hook=read_other)
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MANY: Final = 1_000
"""So many results are put into an answer while others are served."""


class Ready(NamedTuple):
    """A message as the client takes it."""

    body: bytes
    arguments: dict[str, Any]
    """All but the body, by name; None: not given."""


_Parts: TypeAlias = dict[tuple[bool, bool], list[tuple[int, Ready]]]


def made_ready(message: Send) -> Ready:
    """Raises BadArgument, BadTime."""
    body, content_type = body_of(message)
    return Ready(body, _arguments(message, headers_of(message.headers, content_type)))


def _arguments(given: Send | SendQuery, headers: dict[str, Any] | None) -> dict[str, Any]:
    """Raises BadTime."""
    return {
        "key": or_none(given.key),
        "headers": headers,
        "priority": or_none(given.priority),
        "order_key": or_none(given.order_key),
        "deliver_at": moment_of(given.deliver_at),
        "delay": duration_of(given.delay, "delay"),
    }


def _raw(request: Request, query: SendQuery, body: bytes) -> Ready:
    """A message whose body is the request's. Raises BadTime, Refused (400, 415)."""
    need_raw(request, body)
    headers: dict[str, Any] = {**headers_beside(request)}
    if given := request.headers.get("content-type"):
        headers.setdefault(CONTENT_TYPE, given)
    return Ready(body, _arguments(query, headers or None))


async def send_message(asked: Asked) -> Response:
    """201: stored; 200: its key was there."""
    if reading.media_type(asked.request) == JSON:
        if asked.request.query_params:
            raise Refused(
                400,
                "bad_argument",
                "Query parameters are for bodies that are no JSON. Write them as fields.",
                pointer=f"?{next(iter(asked.request.query_params))}",
            )
        need_none_beside(asked.request)
        ready = made_ready(await reading.decode_large(Send, asked.body))
    else:
        ready = _raw(asked.request, asked.query, asked.body)
    if ready.arguments["key"] is None:
        ready.arguments["key"] = reading.idempotency_key(asked.request)
    sent = await asked.client.send(asked.path("topic"), ready.body, **ready.arguments)
    answer = Sent(str(sent.id), sent.duplicate, sent.differs)
    return json(answer, 200 if sent.duplicate else 201, {"Location": f"/v1/messages/{sent.id}"})


# Many --------------------------------------------------------------------------------------------


async def send_batch(asked: Asked) -> Response:
    """Each message has a result of its own. What is refused does not keep the others back."""
    if reading.idempotency_key(asked.request) is not None:
        raise BadArgument(
            "Idempotency-Key would be the key of many messages.", advice="Give each message a key of its own."
        )
    need_none_beside(asked.request)
    content_type = reading.media_type(asked.request)
    if len(asked.body) > PIECE_BYTES:  # others are served meanwhile
        results, parts = await aside(_sorted, asked.body, content_type)
    else:
        results, parts = _sorted(asked.body, content_type)
    for part in parts.values():
        for (index, _), result in zip(part, await _send_part(asked, part), strict=True):
            results[index] = result
    if len(results) > _MANY:
        return await aside(_answer, results)
    return _answer(results)


def _answer(results: dict[int, SendResult | TickwheelError | Refused]) -> Response:
    items = [_item(results[index]) for index in range(len(results))]
    stored = sum(isinstance(result, SendResult) for result in results.values())
    return json(SentBatch(items, stored, len(items) - stored))


def _sorted(
    data: bytes, content_type: str
) -> tuple[dict[int, SendResult | TickwheelError | Refused], _Parts]:
    """Why each message that is refused is, and the others, each with its place in the request. One call of the client
    has one kind of time, and a priority for all or for none. Raises Refused."""
    results: dict[int, SendResult | TickwheelError | Refused] = {}
    parts: _Parts = {}
    for index, message in enumerate(_messages(data, content_type)):
        try:
            if isinstance(message, Exception):
                raise message
            ready = made_ready(message)
            _check(ready.arguments)
        except (Refused, TickwheelError) as error:
            results[index] = error
            continue
        kind = ready.arguments["delay"] is not None, ready.arguments["priority"] is not None
        parts.setdefault(kind, []).append((index, ready))
    return results, parts


def _messages(data: bytes, content_type: str) -> Sequence[Send | Refused | HeadersTooLarge]:
    """The messages of a batch, each by itself or why not. Raises Refused (400) for what is no list at all, and for one
    that is too long."""
    is_lines = content_type in NDJSON
    pieces = list(lines_of(data) if is_lines else pieces_of(data))
    counts = [_count(piece, is_lines=is_lines, is_all=len(pieces) == 1) for piece in pieces]
    total = sum(counts)
    if not 1 <= total <= MAX_BATCH:
        raise Refused(
            400, "bad_argument", f"There are {total:,} messages. Send 1 to {MAX_BATCH:,}.", pointer=""
        )
    found: list[Send | Refused | HeadersTooLarge] = []
    for piece in pieces:
        found += _of_piece(piece, len(found), is_lines=is_lines)
    return found


def _count(piece: bytes, *, is_lines: bool, is_all: bool) -> int:
    """How many messages, whatever they are; `is_all`: there is no other piece. Raises Refused (400)."""
    if is_lines:
        return sum(map(bool, map(bytes.strip, piece.split(b"\n"))))
    try:
        return len(_RAWS.decode(piece))
    except msgspec.ValidationError:
        detail = f"The batch is no list. A single message goes to …/messages, lines are {NDJSON[0]}."
        raise Refused(400, "bad_json", detail, pointer="") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        detail = of_json(error) if is_all else "This is no JSON."  # a piece does not know its place
        raise Refused(400, "bad_json", detail, pointer="") from None


def _of_piece(piece: bytes, first: int, *, is_lines: bool) -> Sequence[Send | Refused | HeadersTooLarge]:
    """Its messages; `first`: the place of the first of them in the request."""
    if len(piece) <= 4 * PIECE_BYTES:  # else there is a large one among them, which is looked at before
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # usually all are well
            found = _SEND.decode_lines(piece) if is_lines else _SENDS.decode(piece)
            if repeated_name(piece, is_lines=is_lines) is None:
                return found
    lines = [line for line in piece.split(b"\n") if line.strip()] if is_lines else _RAWS.decode(piece)
    return [_one(line, first + index) for index, line in enumerate(lines)]


def _one(line: bytes | msgspec.Raw, index: int) -> Send | Refused | HeadersTooLarge:
    try:
        return reading.decode(Send, line, f"/{index}")
    except (Refused, HeadersTooLarge) as refused:
        return refused


def _check(arguments: dict[str, Any]) -> None:
    """What would refuse the whole call of the client refuses its own message only."""
    deliver_at = arguments["deliver_at"]
    if deliver_at is not None and arguments["delay"] is not None:
        raise BadTime("Both deliver_at and a delay were given.", advice="Give one of them.")
    if deliver_at is not None and deliver_at.utcoffset() is None:
        raise NaiveDatetime(
            f"{deliver_at.isoformat()} has no time zone, so it does not say which moment it means."
        )
    for name in ("key", "order_key"):
        if arguments[name] == "":
            raise BadArgument(f"{name} is empty.", advice="Leave it out, or give a text.")


async def _send_part(
    asked: Asked, part: Sequence[tuple[int, Ready]]
) -> Sequence[SendResult | TickwheelError]:
    def column(name: str) -> list[Any]:
        return [ready.arguments[name] for _, ready in part]

    keys, order_keys, priorities, headers, delays = map(
        column, ("key", "order_key", "priority", "headers", "delay")
    )
    times: dict[str, Any]
    if delays[0] is not None:
        times = {"delay": delays}
    else:
        times = {"deliver_at": [AT_ONCE if one is None else one for one in column("deliver_at")]}
    # What all have in common is given once.
    is_one = all(one is headers[0] for one in headers)
    try:
        return await asked.client.send_many(
            asked.path("topic"),
            [ready.body for _, ready in part],
            keys=keys if any(keys) else None,
            headers=headers[0] if is_one else headers,
            order_keys=order_keys if any(order_keys) else None,
            priority=None if priorities[0] is None else priorities,
            auto_key=True,
            **times,
        )
    except TickwheelError as error:
        if isinstance(error, BadArgument | BadTopicName | Forbidden):  # of all messages
            raise
        return [error] * len(part)


def _item(result: SendResult | TickwheelError | Refused) -> Item:
    if isinstance(result, SendResult):
        return Item(id=str(result.id), duplicate=result.duplicate, differs=result.differs)
    detail = detail_of(result) if isinstance(result, TickwheelError) else result.detail
    return Item(code=result.code, detail=detail)
