"""Headers of 32 KiB pass everywhere, and those of one byte more nowhere."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.daemon_harness import Daemon
from tests.support.stores.bulk import columns
from tickwheel.errors import BadSchedule, HeadersTooLarge, TransactionRefused
from tickwheel.protocol.limits import MAX_HEADERS_BYTES, MAX_TIME_MS
from tickwheel.sync import Client
from tickwheel_broker.documents.schedules import HEADER
from timerlog.bulk.write import Manifest, Plan, write_manifest, write_segments
from timerlog.errors import StoreError
from timerlog.names import PREPARED_HEADER

Send = Callable[[tickwheel.Client, str, dict[str, Any]], Awaitable[Any]]


def headers_of(encoded_bytes: int, **others: Any) -> dict[str, Any]:
    """Headers that take so many bytes, together with ``others``, which are not in them."""
    rest = len(msgspec.msgpack.encode({"h": "x" * 40_000, **others})) - 40_000
    return {"h": "x" * (encoded_bytes - rest)}


FITS, TOO_LARGE = headers_of(MAX_HEADERS_BYTES), headers_of(MAX_HEADERS_BYTES + 1)


async def _send(client: tickwheel.Client, topic: str, headers: dict[str, Any]) -> None:
    await client.send(topic, b"x", headers=headers)


async def _send_many(client: tickwheel.Client, topic: str, headers: dict[str, Any]) -> None:
    (await client.send_many(topic, [b"x"], headers=[headers])).raise_for_errors()


async def _transaction(client: tickwheel.Client, topic: str, headers: dict[str, Any]) -> None:
    async with client.transaction() as transaction:
        transaction.send(topic, b"x", headers=headers)


@pytest.mark.parametrize("send", [_send, _send_many, _transaction])
async def test_through_the_client(daemon: Daemon, send: Send) -> None:
    topic = f"by.{send.__name__.strip('_')}"
    assert len(msgspec.msgpack.encode(FITS)) == 32_768
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(HeadersTooLarge):
            await send(client, topic, TOO_LARGE)
        await send(client, topic, FITS)
        (message,) = await client.fetch(topic, "g", wait=timedelta(seconds=30))
        assert message.headers == FITS


async def test_of_a_prepared_message(daemon: Daemon) -> None:
    """The broker keeps topic and time in a header until it is decided."""
    added = {PREPARED_HEADER: {"topic": "prepares", "deliver_at_ms": 0}}
    async with tickwheel.Client(daemon.url) as client:
        headers = headers_of(MAX_HEADERS_BYTES + 1, **added)
        with pytest.raises(TransactionRefused, match="headers_too_large"):
            await client.prepare("prepares", b"x", headers=headers)
        headers = headers_of(MAX_HEADERS_BYTES, **added)
        prepared = await client.prepare("prepares", b"x", headers=headers)
        await prepared.commit()
        (message,) = await client.fetch("prepares", "g", wait=timedelta(seconds=30))
        assert message.headers == headers


async def test_through_http(daemon: Daemon) -> None:
    app = tickwheel.web.app(daemon.url)
    async with app.router.lifespan_context(app):
        ask = Caller(app)
        answer = await ask("POST", "/v1/topics/http/messages", {"base64": "eA==", "headers": TOO_LARGE})
        assert (answer.status, answer.code) == (400, "headers_too_large")
        answer = await ask("POST", "/v1/topics/http/messages", {"base64": "eA==", "headers": FITS})
        assert answer.status == 201, answer.json
        answer = await ask("GET", f"/v1/messages/{answer.json['id']}")
        assert answer.json["headers"] == FITS


async def test_of_a_schedule(daemon: Daemon) -> None:
    """The broker adds a header to each message: what is asked for has room beside it."""
    added = {HEADER: {"name": "s", "slot_ms": MAX_TIME_MS}}
    async with tickwheel.Client(daemon.url) as client:
        headers = headers_of(MAX_HEADERS_BYTES + 1, **added)
        with pytest.raises(BadSchedule, match="32,769 bytes; 32,768"):
            await client.create_schedule("s", "slots", every=timedelta(seconds=1), headers=headers)
        headers = headers_of(MAX_HEADERS_BYTES, **added)
        await client.create_schedule("s", "slots", every=timedelta(seconds=1), headers=headers)
        (message,) = await client.fetch("slots", "g", wait=timedelta(seconds=30))
        assert message.headers["h"] == headers["h"]
        await client.delete_schedule("s")


def test_of_a_bulk_job(daemon: Daemon) -> None:
    with Client(daemon.url) as client:
        found = client.plan_job(["bulk"])
        plan, directory = msgspec.convert(found.plan, Plan), Path(found.directory)
        assert plan.max_headers_bytes == MAX_HEADERS_BYTES, "as the broker's HELLO_OK says"
        due_ms = int(time.time() * 1_000)

        def write(headers: dict[str, Any]) -> Any:
            some = columns([due_ms], headers=[msgspec.msgpack.encode(headers)])
            return write_segments(plan, "bulk", some, client.reserve_ids, directory, "run")

        with pytest.raises(StoreError, match="headers_too_large"):
            write(TOO_LARGE)
        write_manifest(Manifest(plan=plan, segments=write(FITS)), directory)
        assert client.adopt_job(found.job).messages == 1
        (message,) = client.fetch("bulk", "g", wait=timedelta(seconds=30))
        assert message.headers == FITS
