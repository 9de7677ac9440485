"""Traces over a real broker: spans of producers and consumers, linked across the delay."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import sync
from tickwheel.errors import BodyTooLarge, TransactionRefused
from tickwheel.tracing import MAX_LINKS, process

TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]")
MAX_BODY_BYTES = 100


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Bodies are small."""
    return {"max_body_bytes": MAX_BODY_BYTES}


class Spans:
    """A provider whose finished spans can be looked at."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the user's program")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def receive(
    subscription: tickwheel.Subscription[tickwheel.Message, tickwheel.Batch],
) -> tickwheel.Message:
    with trio.fail_after(PATIENCE_S):
        message = await subscription.receive()
    assert message is not None
    return message


async def test_spans_are_linked_across_the_delay(daemon: Daemon, topic: str, spans: Spans) -> None:
    async with tickwheel.Client(daemon.url, name="shop", tracing=spans.provider) as client:
        with spans.tracer.start_as_current_span("an order comes in"):
            sent = await client.send(topic, b"17", delay=timedelta(milliseconds=300), headers={"mine": 1})
        async with client.subscribe(topic, "billing") as subscription:
            message = await receive(subscription)
            with process(message, tracer_provider=spans.provider) as span:
                await message.ack(confirm=True)
                span.set_attribute("mine", "too")
    order, producer, consumer = (
        spans.one(name) for name in ("an order comes in", f"send {topic}", f"process {topic}")
    )
    assert producer.parent is not None
    assert (producer.parent.trace_id, producer.parent.span_id) == ids(order)
    assert consumer.parent is None
    assert links(consumer) == [ids(producer)]
    assert ids(consumer)[0] != ids(producer)[0]
    assert (producer.kind, consumer.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert producer.end_time is not None
    assert consumer.start_time is not None
    assert producer.start_time is not None
    assert consumer.start_time - producer.start_time >= 299e6, "the delay lies between them"
    assert consumer.start_time > producer.end_time
    host, port = daemon.url.removeprefix("tickwheel://").split(":")
    assert dict(producer.attributes or {}) == {
        "messaging.system": "tickwheel",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": topic,
        "messaging.client.id": "shop",
        "messaging.message.id": str(sent.id),
        "messaging.message.body.size": 2,
        "server.address": host,
        "server.port": int(port),
        "tickwheel.duplicate": False,
    }
    assert dict(consumer.attributes or {}) == {
        "messaging.system": "tickwheel",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": str(sent.id),
        "messaging.message.body.size": 2,
        "tickwheel.delivery.epoch": 1,
        "tickwheel.deliver_at_ms": message.deliver_at_ms,
        "tickwheel.created_ms": message.created_ms,
        "mine": "too",
    }
    assert message.headers["mine"] == 1
    assert TRACEPARENT.fullmatch(message.headers["traceparent"])


async def test_what_goes_wrong_is_recorded(daemon: Daemon, topic: str, spans: Spans) -> None:
    async with tickwheel.Client(daemon.url, tracing=spans.provider) as client:
        with pytest.raises(BodyTooLarge):
            await client.send(topic, bytes(MAX_BODY_BYTES + 1))
        await client.send(topic, b"x")
        async with client.subscribe(topic) as subscription:
            message = await receive(subscription)
            with pytest.raises(ZeroDivisionError), process(message, tracer_provider=spans.provider):
                print(1 / 0)
            await message.nack(0)
            again = await receive(subscription)
            with process(again, tracer_provider=spans.provider):
                await again.ack()
    refused, sent = spans.named(f"send {topic}")
    failed, worked = spans.named(f"process {topic}")
    for span, code in ((refused, "body_too_large"), (failed, "ZeroDivisionError")):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == code
        assert [event.name for event in span.events] == ["exception"]
    assert sent.status.status_code is not StatusCode.ERROR
    assert links(failed) == links(worked) == [ids(sent)]
    assert [(span.attributes or {})["tickwheel.delivery.epoch"] for span in (failed, worked)] == [1, 2]


async def test_a_batch_is_one_span(daemon: Daemon, topic: str, spans: Spans) -> None:
    async with tickwheel.Client(daemon.url, tracing=spans.provider) as client:
        bodies = iter([b"a", b"b", bytes(MAX_BODY_BYTES + 1)])  # read once only
        results = await client.send_many(topic, bodies, headers=[{"n": 1}, None, None])
        assert [isinstance(item, tickwheel.TickwheelError) for item in results] == [False, False, True]
        await client.send_many(topic, [b"c", b"d"])
        async with client.subscribe(topic, batch=10) as subscription:
            handled = 0
            with trio.fail_after(PATIENCE_S):
                async for batch in subscription.batches():
                    with process(batch, tracer_provider=spans.provider):
                        await batch.ack()
                    handled += len(batch)
                    if handled == 4:
                        break
    first, second = spans.named(f"send {topic}")
    assert (first.attributes or {})["messaging.batch.message_count"] == 3
    assert (first.attributes or {})["tickwheel.refused_count"] == 1
    assert first.status.description == "1 of 3 were refused"
    assert second.status.status_code is not StatusCode.ERROR
    processed = spans.named(f"process {topic}")
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in processed) == 4  # type: ignore[misc]
    assert {link for span in processed for link in links(span)} == {ids(first), ids(second)}
    assert all(len(links(span)) == len(set(links(span))) for span in processed)


async def test_a_batch_has_no_more_links_than_a_span_can_hold(
    daemon: Daemon, topic: str, spans: Spans
) -> None:
    async with tickwheel.Client(daemon.url, tracing=spans.provider) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_LINKS + 20):
                nursery.start_soon(client.send, topic, b"x")
        async with client.subscribe(topic, credit=500) as subscription:
            with trio.fail_after(PATIENCE_S):
                batch = await subscription.receive_batch()
            assert batch is not None
            with process(batch, tracer_provider=spans.provider):
                pass
    assert len(batch) == MAX_LINKS + 20
    assert len(links(spans.one(f"process {topic}"))) == MAX_LINKS


async def test_a_header_of_the_message_before_is_replaced(daemon: Daemon, topic: str, spans: Spans) -> None:
    """Who sends on what it received hands on its headers as well."""
    stale = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    async with tickwheel.Client(daemon.url, tracing=spans.provider) as client:
        await client.send(topic, b"x", headers={"traceparent": stale, "tenant": "a"})
        async with client.subscribe(topic) as subscription:
            message = await receive(subscription)
    assert message.headers["tenant"] == "a"
    assert message.headers["traceparent"].split("-")[1] == f"{ids(spans.one(f'send {topic}'))[0]:032x}"


async def test_a_message_of_somebody_without_traces(daemon: Daemon, topic: str, spans: Spans) -> None:
    """No link, no header, and no span of a client that was not told to make some."""
    async with tickwheel.Client(daemon.url) as client:
        await client.send(topic, b"x")
        await client.send(topic, b"y", headers={"traceparent": 17, "tracestate": "?"})
        async with client.subscribe(topic) as subscription:
            for headers in ({}, {"traceparent": 17, "tracestate": "?"}):
                message = await receive(subscription)
                assert message.headers == headers
                with (
                    spans.tracer.start_as_current_span("around it"),
                    process(message, tracer_provider=spans.provider),
                ):
                    pass
    assert spans.named(f"send {topic}") == []
    assert [links(span) for span in spans.named(f"process {topic}")] == [[], []]


async def test_transactions_and_prepared_messages(daemon: Daemon, topic: str, spans: Spans) -> None:
    async with tickwheel.Client(daemon.url, tracing=spans.provider) as client:
        async with client.transaction() as transaction:
            transaction.send(topic, b"1", headers={"n": 1})
            transaction.send_many(topic, [b"2", b"3"])
        prepared = await client.prepare(topic, b"4", key="k")
        with pytest.raises(TransactionRefused):
            await client.prepare(topic, b"4", key="k")
        await prepared.commit()
        async with client.subscribe(topic) as subscription:
            found = [await receive(subscription) for _ in range(4)]
    single, many = spans.named(f"create {topic}")
    first, refused = spans.named(f"prepare {topic}")
    assert refused.status.status_code is StatusCode.ERROR
    sent_by = [message.headers["traceparent"].split("-")[2] for message in found]
    assert sent_by == [f"{ids(span)[1]:016x}" for span in (single, many, many, first)]
    assert found[0].headers["n"] == 1


def test_the_blocking_client(daemon: Daemon, topic: str, spans: Spans) -> None:
    """The span of the thread that calls is the parent, though another one sends."""
    with sync.Client(daemon.unix_url, tracing=spans.provider) as client:
        with spans.tracer.start_as_current_span("the request"):
            client.send(topic, b"x")
        with client.subscribe(topic) as subscription:
            for message in subscription:
                with process(message, tracer_provider=spans.provider):
                    message.ack()
                break
    producer = spans.one(f"send {topic}")
    assert producer.parent is not None
    assert producer.parent.span_id == ids(spans.one("the request"))[1]
    assert links(spans.one(f"process {topic}")) == [ids(producer)]
    assert str((producer.attributes or {})["server.address"]).endswith(".sock")


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_it_is_imported_without_being_asked_for() -> None:
    program = "import sys, tickwheel; tickwheel.Client(); print('opentelemetry' in sys.modules)"
    assert run_python(program).strip() == "False"


@pytest.mark.parametrize("use", ["tickwheel.Client(tracing=True)", "tickwheel.tracing"])
def test_without_the_extra(use: str) -> None:
    program = f"""
import sys, tickwheel
sys.modules['opentelemetry'] = None
try:
    {use}
except tickwheel.TickwheelError as error:
    print(error.code, error.advice)
"""
    assert "extra_missing" in (said := run_python(program))
    assert "tickwheel[tracing]" in said


def test_the_global_provider_is_asked_when_a_span_is_made(daemon: Daemon, tmp_path: Path) -> None:
    """`tracing=True`: whoever sets the provider up may do so after the client was made."""
    program = f"""
import tickwheel.sync
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
client = tickwheel.sync.Client({daemon.url!r}, tracing=True)
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
with client:
    client.send("global", b"x")
print([span.name for span in exporter.get_finished_spans()])
"""
    assert run_python(program).strip() == "['send global']"
