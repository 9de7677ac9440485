"""The endpoints of messages."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.messages import browsing, changing, events, sending
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
        "POST",
        "/v1/topics/{topic}/messages",
        sending.send_message,
        "Send a message, for now or for a time; the answer comes when it is safe on the broker's disk",
        _SEND,
        {201: Sent, 200: Sent},
        (408, 413, 415),
        query=SendQuery,
        requests={JSON: Send, "*/*": None},
        headers=_IDEMPOTENCY,
        example=_EXAMPLE,
        leads_to=(changing.get_message, events.get_events, changing.change_message, changing.cancel_message),
    ),
    Endpoint(
        "POST",
        "/v1/topics/{topic}/messages/batch",
        sending.send_batch,
        "Send up to 10,000 messages; each has a result of its own",
        _SEND,
        {200: SentBatch},
        (408, 413, 415),
        requests={JSON: [Send], **dict.fromkeys(NDJSON, Send)},
        example=[_EXAMPLE, {"body": {"order": 17}, "deliver_at": "2031-05-01T09:00:00+02:00"}],
    ),
    Endpoint(
        "GET",
        "/v1/topics/{topic}/messages",
        browsing.list_messages,
        "Look at messages of a topic, in order of their ids, without taking them",
        _LOOK,
        {200: Listed},
        (404,),
        query=BrowseQuery,
    ),
    Endpoint(
        "POST",
        "/v1/topics/{topic}/changes",
        browsing.change_messages,
        "Cancel, reschedule or redeliver all messages of a topic that a filter means, or only count them",
        f"{_SEND}, to redeliver consume:{{topic}}",
        {200: ChangedAll},
        (404, 408, 413, 415),
        requests={JSON: ChangeAll},
        example={"action": "cancel", "filter": {"due_from": "2031-05-01T00:00:00Z"}, "dry_run": True},
    ),
    Endpoint("GET", _BY_ID, changing.get_message, "Look at a message", _LOOK, {200: Message}, (404,)),
    Endpoint(
        "GET",
        f"{_BY_ID}/events",
        events.get_events,
        "What has happened to a message, from its sending on",
        _LOOK,
        {200: Events},
        (404,),
        query=EventsQuery,
    ),
    Endpoint(
        "DELETE",
        _BY_ID,
        changing.cancel_message,
        "Cancel a message that is not delivered yet",
        _SEND,
        {200: Changed},
        (404, 409),
        query=CancelQuery,
    ),
    Endpoint(
        "PATCH",
        _BY_ID,
        changing.change_message,
        "Give a message that is not delivered yet another time, priority, body or headers",
        _SEND,
        {200: Changed},
        (404, 408, 409, 413, 415),
        requests={JSON: Change},
        example={"delay": "1h"},
    ),
    Endpoint(
        "POST",
        f"{_BY_ID}/run",
        changing.run_message,
        "Make a message that is not delivered yet due now",
        _SEND,
        {200: Changed},
        (404, 409),
    ),
    Endpoint(
        "POST",
        f"{_BY_ID}/redeliver",
        changing.redeliver_message,
        "Deliver a message again that was delivered, or given up",
        "consume:{topic}",
        {200: Changed},
        (404, 408, 409, 413, 415),
        requests={JSON: Redelivery},
        example={"group": "default"},
    ),
    Endpoint("GET", _BY_KEY, changing.get_message_by_key, "Look at a message", _LOOK, {200: Message}, (404,)),
    Endpoint(
        "DELETE",
        _BY_KEY,
        changing.cancel_message_by_key,
        "Cancel a message that is not delivered yet",
        _SEND,
        {200: Changed},
        (404, 409),
        query=CancelQuery,
    ),
    Endpoint(
        "PATCH",
        _BY_KEY,
        changing.change_message_by_key,
        "Give a message that is not delivered yet another time, priority, body or headers",
        _SEND,
        {200: Changed},
        (404, 408, 409, 413, 415),
        requests={JSON: Change},
        example={"deliver_at": "2031-05-01T09:00:00Z"},
    ),
    Endpoint(
        "POST",
        f"{_BY_KEY}/run",
        changing.run_message_by_key,
        "Make a message that is not delivered yet due now",
        _SEND,
        {200: Changed},
        (404, 409),
    ),
    Endpoint(
        "POST",
        f"{_BY_KEY}/redeliver",
        changing.redeliver_message_by_key,
        "Deliver a message again that was delivered, or given up",
        "consume:{topic}",
        {200: Changed},
        (404, 408, 409, 413, 415),
        requests={JSON: Redelivery},
        example={"group": "default"},
    ),
)
