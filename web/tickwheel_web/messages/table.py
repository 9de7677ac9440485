"""The endpoints of messages."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.messages import browsing, changing, sending
from tickwheel_web.messages.shapes import (
    BrowseQuery,
    CancelQuery,
    Change,
    ChangeAll,
    Changed,
    ChangedAll,
    Events,
    EventsQuery,
    Listed,
    Message,
    Redelivery,
    Send,
    SendQuery,
    SentBatch,
)
from tickwheel_web.shapes import JSON, NDJSON, Sent

_IDEMPOTENCY: Final = {
    "Idempotency-Key": "The message's key, where it says none itself. A repeat answers 200 with `duplicate`."
}
_BY_ID: Final = "/v1/messages/{id}"
_BY_KEY: Final = "/v1/topics/{topic}/keys/{key}"
_SEND: Final = "publish:{topic}"
_LOOK: Final = "query:{topic}"
_EXAMPLE: Final = {"text": "tea is ready", "delay": "4m", "key": "tea-17"}

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="POST",
        path="/v1/topics/{topic}/messages",
        answering=sending.send_message,
        summary="Send a message, for now or for a time; the answer comes when it is safe on the broker's disk",
        right=_SEND,
        answers={201: Sent, 200: Sent},
        problems=(408, 413, 415),
        query=SendQuery,
        requests={JSON: Send, "*/*": None},
        headers=_IDEMPOTENCY,
        example=_EXAMPLE,
        leads_to=(
            changing.get_message,
            changing.get_events,
            changing.change_message,
            changing.cancel_message,
        ),
    ),
    Endpoint(
        method="POST",
        path="/v1/topics/{topic}/messages/batch",
        answering=sending.send_batch,
        summary="Send up to 10,000 messages; each has a result of its own",
        right=_SEND,
        answers={200: SentBatch},
        problems=(408, 413, 415),
        requests={JSON: [Send], **dict.fromkeys(NDJSON, Send)},
        example=[_EXAMPLE, {"body": {"order": 17}, "deliver_at": "2031-05-01T09:00:00+02:00"}],
    ),
    Endpoint(
        method="GET",
        path="/v1/topics/{topic}/messages",
        answering=browsing.list_messages,
        summary="Look at messages of a topic, in order of their ids, without taking them",
        right=_LOOK,
        answers={200: Listed},
        problems=(404,),
        query=BrowseQuery,
    ),
    Endpoint(
        method="POST",
        path="/v1/topics/{topic}/changes",
        answering=browsing.change_messages,
        summary="Cancel, reschedule or redeliver all messages of a topic that a filter means, or only count them",
        right=f"{_SEND}, to redeliver consume:{{topic}}",
        answers={200: ChangedAll},
        problems=(404, 408, 413, 415),
        requests={JSON: ChangeAll},
        example={"action": "cancel", "filter": {"due_from": "2031-05-01T00:00:00Z"}, "dry_run": True},
    ),
    Endpoint(
        method="GET",
        path=_BY_ID,
        answering=changing.get_message,
        summary="Look at a message",
        right=_LOOK,
        answers={200: Message},
        problems=(404,),
    ),
    Endpoint(
        method="GET",
        path=f"{_BY_ID}/events",
        answering=changing.get_events,
        summary="What has happened to a message, from its sending on",
        right=_LOOK,
        answers={200: Events},
        problems=(404,),
        query=EventsQuery,
    ),
    Endpoint(
        method="DELETE",
        path=_BY_ID,
        answering=changing.cancel_message,
        summary="Cancel a message that is not delivered yet",
        right=_SEND,
        answers={200: Changed},
        problems=(404, 409),
        query=CancelQuery,
    ),
    Endpoint(
        method="PATCH",
        path=_BY_ID,
        answering=changing.change_message,
        summary="Give a message that is not delivered yet another time, priority, body or headers",
        right=_SEND,
        answers={200: Changed},
        problems=(404, 408, 409, 413, 415),
        requests={JSON: Change},
        example={"delay": "1h"},
    ),
    Endpoint(
        method="POST",
        path=f"{_BY_ID}/run",
        answering=changing.run_message,
        summary="Make a message that is not delivered yet due now",
        right=_SEND,
        answers={200: Changed},
        problems=(404, 409),
    ),
    Endpoint(
        method="POST",
        path=f"{_BY_ID}/redeliver",
        answering=changing.redeliver_message,
        summary="Deliver a message again that was delivered, or given up",
        right="consume:{topic}",
        answers={200: Changed},
        problems=(404, 408, 409, 413, 415),
        requests={JSON: Redelivery},
        example={"group": "default"},
    ),
    Endpoint(
        method="GET",
        path=_BY_KEY,
        answering=changing.get_message_by_key,
        summary="Look at a message",
        right=_LOOK,
        answers={200: Message},
        problems=(404,),
    ),
    Endpoint(
        method="DELETE",
        path=_BY_KEY,
        answering=changing.cancel_message_by_key,
        summary="Cancel a message that is not delivered yet",
        right=_SEND,
        answers={200: Changed},
        problems=(404, 409),
        query=CancelQuery,
    ),
    Endpoint(
        method="PATCH",
        path=_BY_KEY,
        answering=changing.change_message_by_key,
        summary="Give a message that is not delivered yet another time, priority, body or headers",
        right=_SEND,
        answers={200: Changed},
        problems=(404, 408, 409, 413, 415),
        requests={JSON: Change},
        example={"deliver_at": "2031-05-01T09:00:00Z"},
    ),
    Endpoint(
        method="POST",
        path=f"{_BY_KEY}/run",
        answering=changing.run_message_by_key,
        summary="Make a message that is not delivered yet due now",
        right=_SEND,
        answers={200: Changed},
        problems=(404, 409),
    ),
    Endpoint(
        method="POST",
        path=f"{_BY_KEY}/redeliver",
        answering=changing.redeliver_message_by_key,
        summary="Deliver a message again that was delivered, or given up",
        right="consume:{topic}",
        answers={200: Changed},
        problems=(404, 408, 409, 413, 415),
        requests={JSON: Redelivery},
        example={"group": "default"},
    ),
)
