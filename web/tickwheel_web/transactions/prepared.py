"""Prepared messages: stored at once, delivered only when they are committed."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tickwheel.errors import MessageNotFound, TransactionRefused, UnknownTopic
from tickwheel.protocol.limits import PREPARED_SUFFIX
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.messages.sending import made_ready
from tickwheel_web.paging import MAX_BODY_BYTES, cursor_of, id_of
from tickwheel_web.problems import Refused
from tickwheel_web.shapes import duration_of
from tickwheel_web.transactions.shapes import Decided, Prepare, PreparedId, PreparedMessages, prepared_of

_NOT: Final = {
    "already_committed": "It was committed before.",
    "already_rolled_back": "It was aborted before.",
    "refused": "Its topic was deleted, or its time or size is not allowed any more.",
}


async def prepare_message(asked: Asked) -> Response:
    """201: stored; 200: one with its key waits already."""
    wanted = await reading.decode_large(Prepare, asked.body)
    message = made_ready(wanted)
    if message.arguments["key"] is None:
        message.arguments["key"] = reading.idempotency_key(asked.request)
    try:
        prepared = await asked.client.prepare(
            wanted.topic,
            message.body,
            check_after=duration_of(wanted.check_after, "check_after"),
            **message.arguments,
        )
    except TransactionRefused as error:
        if error.reason != "duplicate" or error.id is None:
            raise
        return json(PreparedId(str(error.id), duplicate=True))
    return json(PreparedId(str(prepared.id), duplicate=False), 201)


async def list_prepared(asked: Asked) -> Response:
    """Those of a topic without a decision."""
    topic, query = asked.query.topic, asked.query
    try:
        found = await asked.client.browse(
            topic + PREPARED_SUFFIX,
            after_id=id_of(query.after),
            limit=query.limit,
            max_body_bytes=MAX_BODY_BYTES,
        )
    except UnknownTopic:
        await asked.client.topic(topic)  # nothing was ever prepared for it
        found = []
    following = cursor_of(str(found[-1].id)) if len(found) == query.limit else None
    return json(PreparedMessages([prepared_of(one, topic) for one in found], following))


async def commit_prepared(asked: Asked) -> Response:
    """It is delivered at its time."""
    ((result, became),) = await asked.client.commit_prepared([asked.id])
    return _answer(result, ("committed", "already_committed"), became)


async def abort_prepared(asked: Asked) -> Response:
    """It is never delivered."""
    (result,) = await asked.client.rollback_prepared([asked.id])
    return _answer(result, ("rolled_back", "already_rolled_back"), 0)


def _answer(result: str, done: tuple[str, str], became: int) -> Response:
    if result == "not_found":
        raise MessageNotFound
    if result not in done:
        raise Refused(409, result, f"{_NOT[result]} Nothing was changed.")
    return json(Decided(result, str(became) if became else None))  # type: ignore[arg-type]
