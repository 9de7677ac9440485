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
        method="POST",
        path=f"{_GROUP}/receive",
        answering=receiving.receive_messages,
        summary="Receive up to 1,000 messages, or wait for some for up to 60 s; "
        "topic and group are made when they are new",
        right=_CONSUME,
        answers={200: Received},
        problems=(408, 413, 415),
        requests={JSON: Receive},
        example={"max": 10, "wait": "20s", "lease": "5m"},
    ),
    Endpoint(
        method="POST",
        path=f"{_GROUP}/settle",
        answering=settling.settle_deliveries,
        summary="Ack, give back and extend what was received, by its receipts; each has a result of its own",
        right=_CONSUME,
        answers={200: Settled},
        problems=(408, 413, 415),
        requests={JSON: Settle},
        example={"ack": [_RECEIPT], "nack": [], "extend": []},
    ),
    Endpoint(
        method="GET",
        path=f"{_GROUP}/stream",
        answering=streaming.stream_messages,
        summary="Stream messages as they become due, as server-sent events; they are settled by other requests",
        right=_CONSUME,
        answers={200: Delivery},
        problems=(),
        query=StreamQuery,
        media_type=EVENTS,
    ),
    Endpoint(
        method="GET",
        path=_DEAD,
        answering=letters.list_dead_letters,
        summary="Look at the dead letters of a topic: who gave them up, after how many attempts, and why",
        right="query:{topic}",
        answers={200: DeadLetters},
        problems=(404,),
        query=LettersQuery,
    ),
    Endpoint(
        method="POST",
        path=f"{_DEAD}/replay",
        answering=letters.replay_dead_letters,
        summary="Give dead letters back to the groups that gave them up",
        right=_CONSUME,
        answers={200: Replayed},
        problems=(404, 408, 413, 415),
        requests={JSON: Replay},
        example={"limit": 1_000},
    ),
    Endpoint(
        method="DELETE",
        path=_DEAD,
        answering=letters.drop_dead_letters,
        summary="Drop all dead letters of a topic for good",
        right=_CONSUME,
        answers={200: Dropped},
        problems=(404,),
        query=ConfirmQuery,
    ),
)
