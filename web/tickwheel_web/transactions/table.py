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
        "POST",
        "/v1/transactions",
        transactions.commit_transaction,
        "Send, cancel, reschedule and ack together: all of it happens, or nothing",
        f"{_SEND} of each, for acks consume:{{topic}}",
        {200: Committed},
        (404, 408, 409, 413, 415),
        requests={JSON: Transaction},
        headers={"Idempotency-Key": "The transaction's id, where it says none itself."},
        example={
            "id": "order-17",
            "sends": [{"topic": "invoices", "body": {"order": 17}}],
        },
    ),
    Endpoint(
        "POST",
        "/v1/prepared",
        prepared.prepare_message,
        "Store a message that waits to be committed or aborted",
        _SEND,
        {201: PreparedId, 200: PreparedId},
        (404, 408, 409, 413, 415),
        requests={JSON: Prepare},
        headers={"Idempotency-Key": "The message's key, where it says none itself."},
        leads_to=(prepared.commit_prepared, prepared.abort_prepared),
        example={"topic": "shipments", "text": "order 17", "key": "shipment-17"},
    ),
    Endpoint(
        "GET",
        "/v1/prepared",
        prepared.list_prepared,
        "Look at the prepared messages of a topic that wait for a decision",
        "query:{topic}",
        {200: PreparedMessages},
        (404,),
        query=PreparedQuery,
    ),
    Endpoint(
        "POST",
        "/v1/prepared/{id}/commit",
        prepared.commit_prepared,
        "Let a prepared message be delivered at its time",
        _SEND,
        {200: Decided},
        (404, 409),
    ),
    Endpoint(
        "POST",
        "/v1/prepared/{id}/abort",
        prepared.abort_prepared,
        "Drop a prepared message",
        _SEND,
        {200: Decided},
        (404, 409),
    ),
)
