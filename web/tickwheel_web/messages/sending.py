"""Send messages: one, or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tickwheel import SendResult
from tickwheel.errors import BadArgument, BadTime, BadTopicName, Forbidden, NaiveDatetime, TickwheelError
from tickwheel_web import reading
from tickwheel_web.bodies import CONTENT_TYPE, body_of, headers_of
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.messages.raw import need_raw
from tickwheel_web.messages.shapes import Item, Send, SentBatch
from tickwheel_web.problems import Refused, detail_of
from tickwheel_web.repeated import repeated_name
from tickwheel_web.shapes import JSON, MAX_BATCH, NDJSON, Sent, duration_of, moment_of, or_none, read_other
from tickwheel_web.wording import of_json

HEADER_PREFIX: Final = "tw-header-"
_AT_ONCE: Final = datetime.fromtimestamp(0, UTC)
_SEND: Final = msgspec.json.Decoder(Send, dec_hook=read_other)
_SENDS: Final = msgspec.json.Decoder(list[Send], dec_hook=read_other)


class Ready(NamedTuple):
    """A message as the client takes it; None: not given."""

    body: bytes
    key: str | None
    headers: dict[str, Any] | None
    priority: int | None
    order_key: str | None
    deliver_at: datetime | None
    delay: timedelta | None

    @property
    def arguments(self) -> dict[str, Any]:
        """All but the body, by name."""
        found = self._asdict()
        del found["body"]
        return found


def made_ready(message: Send) -> Ready:
    """Raises BadArgument, BadTime."""
    body, content_type = body_of(message)
    return Ready(
        body,
        or_none(message.key),
        headers_of(message.headers, content_type),
        or_none(message.priority),
        or_none(message.order_key),
        moment_of(message.deliver_at),
        duration_of(message.delay, "delay"),
    )


def _raw(request: Request, query: Any, body: bytes) -> Ready:
    """A message whose body is the request's. Raises BadTime, Refused (415)."""
    need_raw(request, body)
    headers: dict[str, Any] = {
        name[len(HEADER_PREFIX) :]: reading.header_text(value)
        for name, value in request.headers.items()
        if name.startswith(HEADER_PREFIX)
    }
    if given := request.headers.get("content-type"):
        headers.setdefault(CONTENT_TYPE, given)
    return Ready(
        body,
        or_none(query.key),
        headers or None,
        or_none(query.priority),
        or_none(query.order_key),
        moment_of(query.deliver_at),
        duration_of(query.delay, "delay"),
    )


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
        ready = made_ready(reading.decode(Send, asked.body))
    else:
        ready = _raw(asked.request, asked.query, asked.body)
    if ready.key is None:
        ready = ready._replace(key=reading.idempotency_key(asked.request))
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
    content_type = reading.media_type(asked.request)
    results: dict[int, SendResult | TickwheelError | Refused] = {}
    # One call of the client has one kind of time, and a priority for all or for none.
    parts: dict[tuple[bool, bool], list[tuple[int, Ready]]] = {}
    for index, message in enumerate(_messages(asked.body, content_type)):
        try:
            if isinstance(message, Refused):
                raise message
            ready = made_ready(message)
            _check_times(ready)
        except (Refused, TickwheelError) as error:
            results[index] = error
            continue
        kind = ready.delay is not None, ready.priority is not None
        parts.setdefault(kind, []).append((index, ready))
    for part in parts.values():
        for (index, _), result in zip(part, await _send_part(asked, part), strict=True):
            results[index] = result
    items = [_item(results[index]) for index in range(len(results))]
    stored = sum(isinstance(result, SendResult) for result in results.values())
    return json(SentBatch(items, stored, len(items) - stored))


def _messages(data: bytes, content_type: str) -> Sequence[Send | Refused]:
    """The messages of a batch, each by itself or why not. Raises Refused (400) for what is no list at all."""
    try:  # usually all are well
        found = _SEND.decode_lines(data) if content_type in NDJSON else _SENDS.decode(data)
        name = repeated_name(data, is_lines=content_type in NDJSON)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _one_by_one(data, content_type)
    if name is not None:
        return _one_by_one(data, content_type)
    _check_count(len(found))
    return found


def _one_by_one(data: bytes, content_type: str) -> list[Send | Refused]:
    if content_type in NDJSON:
        lines: list[Any] = [line for line in data.split(b"\n") if line.strip()]
    else:
        try:
            lines = msgspec.json.decode(data, type=list[msgspec.Raw])
        except msgspec.ValidationError:
            detail = f"The batch is no list. A single message goes to …/messages, lines are {NDJSON[0]}."
            raise Refused(400, "bad_json", detail, pointer="") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(400, "bad_json", of_json(error), pointer="") from None
    _check_count(len(lines))
    return [_one(line, index) for index, line in enumerate(lines)]


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_BATCH:
        raise Refused(
            400, "bad_argument", f"There are {count:,} messages. Send 1 to {MAX_BATCH:,}.", pointer=""
        )


def _one(line: bytes | msgspec.Raw, index: int) -> Send | Refused:
    try:
        return reading.decode(Send, line, f"/{index}")
    except Refused as refused:
        return refused


def _check_times(ready: Ready) -> None:
    """What would refuse the whole call of the client refuses its own message only."""
    deliver_at = ready.deliver_at
    if deliver_at is not None and ready.delay is not None:
        raise BadTime("Both deliver_at and a delay were given.", advice="Give one of them.")
    if deliver_at is not None and deliver_at.utcoffset() is None:
        raise NaiveDatetime(
            f"{deliver_at.isoformat()} has no time zone, so it does not say which moment it means."
        )
    if ready.key == "" or ready.order_key == "":
        name = "key" if ready.key == "" else "order_key"
        raise BadArgument(f"{name} is empty.", advice="Leave it out, or give a text.")


async def _send_part(
    asked: Asked, part: Sequence[tuple[int, Ready]]
) -> Sequence[SendResult | TickwheelError]:
    bodies, keys, headers, priorities, order_keys, moments, delays = zip(
        *(ready for _, ready in part), strict=True
    )
    times: dict[str, Any]
    if delays[0] is not None:
        times = {"delay": delays}
    else:
        times = {"deliver_at": [_AT_ONCE if one is None else one for one in moments]}
    # What all have in common is given once.
    is_one = all(one is headers[0] for one in headers)
    try:
        return await asked.client.send_many(
            asked.path("topic"),
            list(bodies),
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
