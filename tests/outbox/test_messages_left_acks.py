"""Acks whose callers were cancelled go their way, and the log tells of those that were not made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.outbox.messages import NEVER_MS, PATIENCE_S, eventually, get, message_table, send
from tests.unit.tickwheel.both import on_both
from tickwheel.outbox import DatabaseUnavailable
from tickwheel.outbox.messages import acks, hub


async def ack_and_leave(*messages: Any) -> None:
    """Cancelled while the answer is waited for."""
    async with anyio.create_task_group() as group:
        for message in messages:
            group.start_soon(message.ack)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


def has(caplog: pytest.LogCaptureFixture, text: str) -> Callable[[], bool]:
    return lambda: text in caplog.text


@on_both
async def test_a_lease_that_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with message_table(f"sqlite:///{tmp_path / 'db'}", ack_wait_ms=300, min_backoff_ms=NEVER_MS) as table:
        send(table, "a")
        async with table.stream() as stream:
            first = await get(stream)
            second = await get(stream)
            with anyio.move_on_after(0):
                await first.ack()
            await eventually(
                has(caplog, "1 acks whose callers were cancelled were not made: Delivered again")
            )
            await second.ack()


@on_both
async def test_a_database_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_free = threading.Event()

    def fail(*_: Any) -> None:
        is_free.wait(PATIENCE_S)
        raise DatabaseUnavailable("It is away.")

    monkeypatch.setattr(acks, "_ATTEMPTS", 1)
    monkeypatch.setattr(acks, "ack_alone", fail)
    with message_table(f"sqlite:///{tmp_path / 'db'}", ack_wait_ms=NEVER_MS) as table:
        send(table, "a", "b")
        async with table.stream() as stream:
            messages = [await get(stream), await get(stream)]
            await ack_and_leave(messages[0])
            await ack_and_leave(messages[1])  # behind the first
            is_free.set()
            told = "1 acks whose callers were cancelled were not made: It is away."
            await eventually(lambda: caplog.text.count(told) == 2)


@on_both
async def test_a_hub_that_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_free = threading.Event()
    monkeypatch.setattr(hub, "_CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(acks, "ack_alone", lambda *_: is_free.wait(PATIENCE_S) and [])
    with message_table(f"sqlite:///{tmp_path / 'db'}", ack_wait_ms=NEVER_MS) as table:
        send(table, "a", "b")
        async with table.stream() as stream:
            await ack_and_leave(await get(stream))
            await ack_and_leave(await get(stream))  # behind the first, which is made
            threading.Timer(1.0, is_free.set).start()
    assert "1 acks whose callers were cancelled were not made: The hub was closed" in caplog.text
