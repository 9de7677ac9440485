"""RecallMessage: a scheduled message is taken back before its time."""

from __future__ import annotations

from typing import Any, Final

from tickwheel import CancelResult
from tickwheel_gateway.calls.answers import tell
from tickwheel_gateway.calls.deadlines import InTime
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.clients.rights import PUBLISH, check_right
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import decode_recall
from tickwheel_gateway.wire.names import topic_of

_RECALLED: Final = (CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED)
_TOO_LATE: Final = {
    CancelResult.STOPPED: "it was delivered already",
    CancelResult.ALREADY_DELIVERED: "it was delivered already",
    CancelResult.ALREADY_ACKED: "it was consumed already",
    CancelResult.EXPIRED: "its time is over",
}


class Recalling:
    """Answers RecallMessage."""

    async def recall(self, asked: Asked, request: Any) -> Any:
        """A RecallMessageResponse."""
        topic = topic_of(request.topic.name)
        handle = decode_recall(request.recall_handle)
        if handle.topic != request.topic.name:
            raise Refused(Code.BAD_REQUEST, "the recall handle is of a message of another topic")
        check_right(asked.client, PUBLISH, [topic])  # by its id the broker says only that there is none
        with InTime(asked.call, asked.client):
            result = await asked.client.cancel(id=handle.id)
        if result == CancelResult.NOT_FOUND:
            # Not 40401: RocketMQ's client for Python takes that for success.
            raise Refused(Code.NOT_FOUND, "there is no such message any more")
        if result not in _RECALLED:
            raise Refused(
                Code.BAD_REQUEST, f"the message cannot be recalled: {_TOO_LATE.get(result, result)}"
            )
        response = schema.RecallMessageResponse(message_id=handle.message_id)
        tell(response.status, Code.OK)
        return response
