"""The endpoints of transactions and prepared messages."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.shapes import JSON
from tickwheel_web.transactions import prepared, transactions
from tickwheel_web.transactions.shapes import (
    Committed,
    Decided,
    Prepare,
    PreparedId,
    PreparedMessages,
    PreparedQuery,
    Transaction,
)

_SEND: Final = "publish:{topic}"

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="POST",
        path="/v1/transactions",
        answering=transactions.commit_transaction,
        summary="Send, cancel, reschedule and ack together: all of it happens, or nothing",
        right=f"{_SEND} of each, for acks consume:{{topic}}",
        answers={200: Committed},
        problems=(404, 408, 409, 413, 415),
        requests={JSON: Transaction},
        headers={"Idempotency-Key": "The transaction's id, where it says none itself."},
        example={
            "id": "order-17",
            "sends": [{"topic": "invoices", "body": {"order": 17}}],
        },
    ),
    Endpoint(
        method="POST",
        path="/v1/prepared",
        answering=prepared.prepare_message,
        summary="Store a message that waits to be committed or aborted",
        right=_SEND,
        answers={201: PreparedId, 200: PreparedId},
        problems=(404, 408, 409, 413, 415),
        requests={JSON: Prepare},
        headers={"Idempotency-Key": "The message's key, where it says none itself."},
        leads_to=(prepared.commit_prepared, prepared.abort_prepared),
        example={"topic": "shipments", "text": "order 17", "key": "shipment-17"},
    ),
    Endpoint(
        method="GET",
        path="/v1/prepared",
        answering=prepared.list_prepared,
        summary="Look at the prepared messages of a topic that wait for a decision",
        right="query:{topic}",
        answers={200: PreparedMessages},
        problems=(404,),
        query=PreparedQuery,
    ),
    Endpoint(
        method="POST",
        path="/v1/prepared/{id}/commit",
        answering=prepared.commit_prepared,
        summary="Let a prepared message be delivered at its time",
        right=_SEND,
        answers={200: Decided},
        problems=(404, 409),
    ),
    Endpoint(
        method="POST",
        path="/v1/prepared/{id}/abort",
        answering=prepared.abort_prepared,
        summary="Drop a prepared message",
        right=_SEND,
        answers={200: Decided},
        problems=(404, 409),
    ),
)
