"""The pieces of programs on the page about queues, run as they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from tickwheel import outbox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "outbox-queue.md"
PATIENCE_S = 60.0


async def test_the_programs_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables = sa.MetaData()
    orders = sa.Table("orders", tables, sa.Column("number", sa.Integer))
    letters = sa.Table("letters_written", tables, sa.Column("text", sa.String(50)))
    sent: list[bytes] = []

    async def send_mail(body: bytes) -> None:
        sent.append(body)
        if len(sent) == 3:
            around["consumer"].stop()

    around: dict[str, Any] = {
        "orders": orders,
        "letters": letters,
        "send_mail": send_mail,
        "timedelta": timedelta,
    }
    with outbox.Queue("sqlite:///shop.db", "letters") as queue:
        with queue.database.begin() as connection:
            tables.create_all(connection)
        first, consume, exactly_once, blocking = re.findall(
            r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        with anyio.fail_after(PATIENCE_S):
            await run(first, around)
            await run(consume, around)
            assert sent == [b"order 17 is confirmed", b"one", b"two"]
            around["queue"].database.run(lambda connection: queue.put_many(connection, ["a", "b"]))
            around["batch"] = queue.claim()
            await run(exactly_once, around)
            await run(blocking, around)
        assert queue.stats().oldest_age_s is None
        with queue.database.reading() as connection:
            assert connection.execute(sa.select(letters.c.text)).scalars().all() == ["a", "b"]
        around["queue"].close()


async def run(piece: str, around: dict[str, Any]) -> None:
    code = compile(piece, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, around)
    if isinstance(result, Awaitable):
        await result
