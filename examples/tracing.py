"""A trace that goes on after the delay. Run: python examples/tracing.py (needs pip install 'tickwheel[tracing]' and
opentelemetry-sdk).

An order schedules a reminder. The program that handles it later has a trace of its own, which is linked to the order's.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tickwheel
import tickwheel.tracing


def name_of(spans: tuple[ReadableSpan, ...], span_id: int) -> str:
    """Of the span with this id."""
    return next(span.name for span in spans if span.context is not None and span.context.span_id == span_id)


def main() -> None:
    exporter = InMemorySpanExporter()  # yours sends them to a collector
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("shop")

    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory) as broker,
        broker.sync_client(tracing=provider) as client,
    ):
        with tracer.start_as_current_span("order 17"):
            client.send("reminders", b"pay order 17", delay=timedelta(milliseconds=200))
        with client.subscribe("reminders") as subscription:
            for message in subscription:
                with tickwheel.tracing.process(message, tracer_provider=provider):
                    message.ack(confirm=True)
                break

    spans = exporter.get_finished_spans()
    producer = next(span for span in spans if span.name == "send reminders")
    consumer = next(span for span in spans if span.name == "process reminders")
    assert producer.parent is not None
    print(f"{producer.name}: a child of {name_of(spans, producer.parent.span_id)}")
    print(f"{consumer.name}: linked to {name_of(spans, consumer.links[0].context.span_id)}")
    print(f"a trace of its own: {consumer.parent is None}")
    assert producer.end_time is not None
    assert consumer.start_time is not None
    print(f"the delay lies between them: {consumer.start_time - producer.end_time > 150_000_000}")


if __name__ == "__main__":
    main()
