"""OpenTelemetry traces across the delay (extra ``tracing``).

A client with ``tracing=True`` makes a producer span of each ``send``, ``send_many``, ``prepare`` and part of a
transaction, and puts its context into the headers of the messages (W3C ``traceparent``, or what the global propagator
writes). A consumer handles a message inside ``process``::

    async for message in subscription:
        with tickwheel.tracing.process(message):
            await handle(message.body)
            await message.ack()

Its span is *linked* to the producer's, and is no child of it: a trace of a message for next year would otherwise last
a year. Attributes follow OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.tracing import SYSTEM, Producing, Sending, of_operation, span_around
from tickwheel.protocol.errors import RemoteProtocolError

# After the module above, which says what is missing.
from opentelemetry import propagate, trace  # isort: skip
from opentelemetry.context import Context  # isort: skip
from opentelemetry.trace import Link, Span, SpanKind, TracerProvider  # isort: skip

__all__ = ["MAX_LINKS", "SYSTEM", "Producing", "Sending", "process"]

MAX_LINKS: Final = 128
"""Of the span of a batch; SDKs drop more."""


@contextmanager
def process(
    delivered: BaseMessage | BaseBatch[Any], *, tracer_provider: TracerProvider | None = None
) -> Iterator[Span]:
    """A consumer span around the handling of a message or a batch, linked to the spans that sent them. An exception is
    recorded and goes on its way."""
    attributes = of_operation("process", "process", delivered.topic)
    attributes["messaging.consumer.group.name"] = delivered.acks.group_name
    if isinstance(delivered, BaseBatch):
        attributes["messaging.batch.message_count"] = len(delivered)
        links = _links(list(delivered))
    else:
        attributes |= _of_message(delivered)
        links = _links([delivered])
    with span_around(
        tracer_provider, f"process {delivered.topic}", SpanKind.CONSUMER, attributes, links
    ) as span:
        yield span


def _of_message(message: BaseMessage) -> dict[str, Any]:
    return {
        "messaging.message.id": str(message.id),
        "messaging.message.body.size": len(message.body),
        "tickwheel.delivery.epoch": message.epoch,
        "tickwheel.deliver_at_ms": message.deliver_at_ms,
        "tickwheel.created_ms": message.created_ms,
    }


def _links(messages: list[BaseMessage]) -> list[Link]:
    """To each span that sent any of them, once; its attributes name the first message of it."""
    found: dict[tuple[int, int], Link] = {}
    for message in messages:
        try:
            headers = {name: value for name, value in message.headers.items() if isinstance(value, str)}
        except RemoteProtocolError:
            continue  # the handler gets this error when it reads the headers
        context = trace.get_current_span(propagate.extract(headers, Context())).get_span_context()
        key = context.trace_id, context.span_id
        if context.is_valid and key not in found:
            found[key] = Link(context, {"messaging.message.id": str(message.id)})
            if len(found) == MAX_LINKS:
                break
    return list(found.values())
