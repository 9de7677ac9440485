"""All methods that are served. Those that are not here are not known to the gateway: status 12 of gRPC."""

from __future__ import annotations

from dataclasses import dataclass

from tickwheel_gateway.calls.deciding import Deciding
from tickwheel_gateway.calls.presence import Presence
from tickwheel_gateway.calls.recalling import Recalling
from tickwheel_gateway.calls.receiving import Receiving
from tickwheel_gateway.calls.routes import Routes
from tickwheel_gateway.calls.sending import Sending
from tickwheel_gateway.calls.service import Service
from tickwheel_gateway.calls.settling import Settling
from tickwheel_gateway.calls.telemetry import NAME as TELEMETRY
from tickwheel_gateway.calls.telemetry import Telemetry
from tickwheel_gateway.transport.call import AnyMethod, Method
from tickwheel_gateway.wire import schema


@dataclass(frozen=True, slots=True)
class Handlers:
    """What answers."""

    routes: Routes
    presence: Presence
    telemetry: Telemetry
    sending: Sending
    deciding: Deciding
    recalling: Recalling
    receiving: Receiving
    settling: Settling


def methods(service: Service, by: Handlers) -> dict[str, AnyMethod]:
    """By whole path."""
    return dict[str, AnyMethod](
        [
            service.unary("QueryRoute", by.routes.route),
            service.unary("QueryAssignment", by.routes.assignment),
            service.unary("Heartbeat", by.presence.heartbeat),
            service.unary("NotifyClientTermination", by.presence.terminate),
            service.batched("SendMessage", by.sending.send),
            service.unary("EndTransaction", by.deciding.end),
            service.unary("RecallMessage", by.recalling.recall),
            service.streaming("ReceiveMessage", by.receiving.receive),
            service.batched("AckMessage", by.settling.ack),
            service.unary("ChangeInvisibleDuration", by.settling.change),
            service.unary("ForwardMessageToDeadLetterQueue", by.settling.forward),
            (schema.SERVICE + TELEMETRY, Method(by.telemetry.serve, takes_stream=True)),
        ]
    )
