"""EndTransaction: what becomes of a prepared message."""

from __future__ import annotations

from typing import Any, Final

from tickwheel.protocol.limits import MAX_KEY_BYTES
from tickwheel_gateway.calls.answers import tell
from tickwheel_gateway.calls.deadlines import InTime
from tickwheel_gateway.calls.service import Asked, required
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.names import topic_of

_WHY: Final = {
    "already_committed": "it was committed before",
    "already_rolled_back": "it was rolled back before",
    "refused": "its topic is gone, or its time or size is not allowed any more",
    "not_found": "it was never there, was rolled back, or has waited for too long",
}


class Deciding:
    """Answers EndTransaction."""

    async def end(self, asked: Asked, request: Any) -> Any:
        """An EndTransactionResponse. A producer that does not know yet changes nothing: it is asked again."""
        topic = topic_of(request.topic.name)
        name = required(request.transaction_id, "the id of the transaction", Code.INVALID_TRANSACTION_ID)
        if len(name.encode()) > MAX_KEY_BYTES:
            raise Refused(Code.INVALID_TRANSACTION_ID, "the id of the transaction is none of this server")
        response = schema.EndTransactionResponse()
        tell(response.status, Code.OK)
        if request.resolution not in (schema.COMMIT, schema.ROLLBACK):
            return response
        with InTime(asked.call, asked.client):
            if request.resolution == schema.COMMIT:
                ((result, _),) = await asked.client.commit_prepared(topic=topic, keys=[name])
                verb, done = "committed", "committed"
            else:
                (result,) = await asked.client.rollback_prepared(topic=topic, keys=[name])
                verb, done = "rolled back", "rolled_back"
        if result not in (done, f"already_{done}"):
            why = _WHY.get(result, result)
            raise Refused(Code.INTERNAL_SERVER_ERROR, f"the message cannot be {verb}: {why}")
        return response
