"""The spans of what a client sends (extra ``tracing``); ``tickwheel.tracing`` has those of who receives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tickwheel.client.results import SendResult, SendResults
from tickwheel.client.url import Address, TcpAddress
from tickwheel.protocol.errors import TickwheelError, TracingMissing

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ImportError as error:
    raise TracingMissing(f"Traces need {error.name}, which is not installed.") from error

SYSTEM: Final = "tickwheel"

AnyHeaders = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None


class Sending:
    """One producer span, while what it is for is on its way."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._carrier: dict[str, str] = {}
        propagate.inject(self._carrier, trace.set_span_in_context(span))

    def headers(self, headers: AnyHeaders) -> Any:
        """The same headers with the context of the span; one that is there already belongs to a message before."""
        if headers is None or isinstance(headers, Mapping):
            return {**(headers or {}), **self._carrier}
        return [{**(of_one or {}), **self._carrier} for of_one in headers]

    def stored(self, result: SendResult) -> None:
        """The broker has it."""
        self.span.set_attribute("messaging.message.id", str(result.id))
        self.span.set_attribute("tickwheel.duplicate", result.duplicate)

    def stored_all(self, results: SendResults) -> None:
        """The broker has them, but for those that it refused."""
        refused = [item for item in results if isinstance(item, TickwheelError)]
        if refused:
            self.span.record_exception(refused[0])
            self.span.set_attribute("error.type", refused[0].code)
            self.span.set_attribute("tickwheel.refused_count", len(refused))
            self.span.set_status(Status(StatusCode.ERROR, f"{len(refused)} of {len(results)} were refused"))


class Producing:
    """Makes the spans of one client."""

    def __init__(
        self, addresses: Sequence[Address], client_name: str, provider: TracerProvider | None = None
    ) -> None:
        """Without a provider the global one is asked, when a span is made."""
        self._provider = provider
        self._attributes = {"messaging.client.id": client_name, **_server(addresses)}

    @contextmanager
    def sending(
        self,
        topic: str,
        operation: str = "send",
        *,
        count: int | None = None,
        size_bytes: int | None = None,
    ) -> Iterator[Sending]:
        """A span around one send; ``count`` messages if it is a batch. What is raised inside is recorded."""
        kind = "create" if operation == "create" else "send"
        attributes = self._attributes | of_operation(kind, operation, topic)
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        if size_bytes is not None:
            attributes["messaging.message.body.size"] = size_bytes
        with span_around(self._provider, f"{operation} {topic}", SpanKind.PRODUCER, attributes, []) as span:
            yield Sending(span)


@contextmanager
def span_around(
    provider: TracerProvider | None, name: str, kind: SpanKind, attributes: dict[str, Any], links: list[Link]
) -> Iterator[Span]:
    """A span; an exception is recorded and goes on its way."""
    with _tracer(provider).start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            code = error.code if isinstance(error, TickwheelError) else type(error).__qualname__
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise


def _tracer(provider: TracerProvider | None) -> Tracer:
    return (provider or trace.get_tracer_provider()).get_tracer("tickwheel")


def of_operation(kind: str, name: str, topic: str) -> dict[str, Any]:
    """The attributes that all spans have."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": topic,
    }


def _server(addresses: Sequence[Address]) -> dict[str, Any]:
    """Of several nodes none: which one serves may change at any time."""
    if len(addresses) > 1:
        return {}
    address = addresses[0]
    if isinstance(address, TcpAddress):
        return {"server.address": address.host, "server.port": address.port}
    return {"server.address": address.path}
