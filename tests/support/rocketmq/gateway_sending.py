"""Messages as RocketMQ's producers send them, and what a gateway's handlers need to take them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.clients.in_time import InTime
from tests.support.native.driver import NOW_MS
from tests.support.rocketmq.gateway_call import CALLER, OpenCall, batch, read
from tickwheel import Client
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_gateway.calls.sending import Sending
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused

MILLISECONDS = ("delivery_timestamp", "orphaned_transaction_recovery_duration", "born_timestamp")


def message(
    message_id: str = "01AB",
    body: bytes = b"{}",
    topic: str = "orders",
    properties: dict[str, str] | None = None,
    **system: Any,
) -> Any:
    """A Message. ``system``: its SystemProperties by name; times in milliseconds."""
    made = schema.Message(body=body, user_properties=properties or {})
    made.topic.name = topic
    made.system_properties.message_id = message_id
    for name, value in system.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name in MILLISECONDS:
            schema.set_milliseconds(getattr(made.system_properties, name), value)
        else:
            setattr(made.system_properties, name, value)
    return made


def transaction(message_id: str = "01AB", **fields: Any) -> Any:
    """A Message that waits for a decision."""
    return message(message_id, message_type=schema.TRANSACTION, **fields)


def of(client_id: str) -> Caller:
    """Another client."""
    return replace(CALLER, client_id=client_id)


class Producer:
    """A client of RocketMQ that sends through a gateway's handler."""

    def __init__(
        self, client: Client, registry: Registry | None = None, caller: Caller = CALLER, **options: Any
    ) -> None:
        """Made with the broker, whose clock it shares."""
        self.clock = TrioClock(NOW_MS)
        self.registry = registry or Registry()
        self.caller = caller
        self.client = client
        limits = (
            {"max_pending_bytes": options.pop("max_pending_bytes")} if "max_pending_bytes" in options else {}
        )
        self.sending = Sending(Config(**options), self.registry, now_ms=self.clock.now_ms, **limits)

    async def send(self, *messages: Any, call: OpenCall | None = None) -> Any:
        """The answer. Raises Refused when it is no more than that."""
        request = schema.SendMessageRequest(messages=messages)
        call = call or OpenCall()
        call.request = request.SerializeToString()
        await batch(self.client, "SendMessage", self.sending.send, [call], self.caller)
        (answer,) = read(schema.SendMessageResponse, call)
        if answer.status.code != Code.OK and not answer.entries:
            raise Refused(Code(answer.status.code), answer.status.message)
        return answer


def cut_off(there: InTime) -> None:
    """The broker is gone, and stays away."""
    there.network.faults = replace(there.network.faults, refused=1.0)
    while there.network.cut_one():
        pass


def come_back(there: InTime) -> None:
    """It can be reached again."""
    there.network.faults = replace(there.network.faults, refused=0.0)
