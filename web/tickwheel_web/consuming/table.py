"""The endpoints of consuming."""

from __future__ import annotations

from typing import Final

from tickwheel_web.consuming import letters, receiving, settling, streaming
from tickwheel_web.consuming.shapes import (
    DeadLetters,
    Delivery,
    Dropped,
    LettersQuery,
    Receive,
    Received,
    Replay,
    Replayed,
    Settle,
    Settled,
    StreamQuery,
)
from tickwheel_web.endpoints import Endpoint
from tickwheel_web.shapes import EVENTS, JSON, ConfirmQuery

_GROUP: Final = "/v1/topics/{topic}/groups/{group}"
_DEAD: Final = "/v1/topics/{topic}/dead"
_CONSUME: Final = "consume:{topic}"
_RECEIPT: Final = "AQcAAAASBAAAAAAAAAEAAACS-qZ6"

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "POST",
        f"{_GROUP}/receive",
        receiving.receive_messages,
        "Receive up to 1,000 messages, or wait for some for up to 60 s; topic and group are made when they are new",
        _CONSUME,
        {200: Received},
        (408, 413, 415),
        requests={JSON: Receive},
        example={"max": 10, "wait": "20s", "lease": "5m"},
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/settle",
        settling.settle_deliveries,
        "Ack, give back and extend what was received, by its receipts; each has a result of its own",
        _CONSUME,
        {200: Settled},
        (408, 413, 415),
        requests={JSON: Settle},
        example={"ack": [_RECEIPT], "nack": [], "extend": []},
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/stream",
        streaming.stream_messages,
        "Stream messages as they become due, as server-sent events; they are settled by other requests",
        _CONSUME,
        {200: Delivery},
        (),
        query=StreamQuery,
        media_type=EVENTS,
    ),
    Endpoint(
        "GET",
        _DEAD,
        letters.list_dead_letters,
        "Look at the dead letters of a topic: who gave them up, after how many attempts, and why",
        "query:{topic}",
        {200: DeadLetters},
        (404,),
        query=LettersQuery,
    ),
    Endpoint(
        "POST",
        f"{_DEAD}/replay",
        letters.replay_dead_letters,
        "Give dead letters back to the groups that gave them up",
        _CONSUME,
        {200: Replayed},
        (404, 408, 413, 415),
        requests={JSON: Replay},
        example={"limit": 1_000},
    ),
    Endpoint(
        "DELETE",
        _DEAD,
        letters.drop_dead_letters,
        "Drop all dead letters of a topic for good",
        _CONSUME,
        {200: Dropped},
        (404,),
        query=ConfirmQuery,
    ),
)
