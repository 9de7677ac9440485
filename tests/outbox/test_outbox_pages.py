"""The commands and pieces of programs on the pages about the outbox, run as they are written, with a database.

The page on queues has a test of its own: `test_queue_page.py`."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

import tickwheel
from tests.support.processes.cli_harness import Shell
from tickwheel import outbox

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PATIENCE_S = 60.0

TABLES = sa.MetaData()
orders = sa.Table(
    "orders", TABLES, sa.Column("id", sa.Integer, primary_key=True), sa.Column("paid", sa.Boolean)
)
letters = sa.Table("letters", TABLES, sa.Column("text", sa.String(100)))


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


async def run(page: str, piece: str, around: dict[str, Any]) -> None:
    code = compile(piece, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, around)
    if isinstance(result, Awaitable):
        await result


@pytest.mark.parametrize("page", ["outbox", "outbox-message-tables", "outbox-relay", "outbox-keys"])
def test_the_commands_of_a_page(page: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    lines = "".join(blocks(page, "sh")).splitlines()
    for line in lines:
        if line.startswith("tickwheel "):
            shell.run(*shlex.split(line)[1:])


async def test_message_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url)
    TABLES.create_all(engine)
    around: dict[str, Any] = {"engine": engine, "orders": orders, "letters": letters, "timedelta": timedelta}
    first, second, blocking = blocks("outbox-message-tables", "python")
    assert "postgresql://app@localhost/shop" in first
    await run("first", first.replace("postgresql://app@localhost/shop", url), around)
    table: outbox.MessageTable = around["table"]
    # The second piece goes on until it is stopped.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, "second", second, around)
        with anyio.fail_after(PATIENCE_S):
            while table.stats().acked == 0:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    with engine.connect() as connection:
        assert connection.execute(sa.select(letters.c.text)).scalars().all() == ["thanks for order 17"]
    assert table.stats().waiting == 1
    with engine.begin() as connection:
        table.send(connection, message="for who claims")
    await run("blocking", blocking, around)
    assert [one["message"] for one in around["batch"]] == ["for who claims"]
    assert table.stats().acked == 2
    table.close()
    engine.dispose()


def test_asyncio(tmp_path: Path) -> None:
    """The piece for who has an AsyncEngine, and what it says of the other side."""
    pytest.importorskip("greenlet", reason="SQLAlchemy's asynchronous layer needs it")
    pytest.importorskip("aiosqlite", reason="one of the drivers that need an AsyncEngine")
    from sqlalchemy.ext.asyncio import create_async_engine

    path = tmp_path / "shop.db"
    (piece,) = blocks("outbox", "python")

    async def main() -> None:
        async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        with pytest.raises(outbox.BadDatabase, match="blocking"):
            outbox.MessageTable(async_engine, "mails")  # type: ignore[arg-type]
        with outbox.MessageTable(f"sqlite:///{path}", "mails") as table:
            table.create()
            async with async_engine.begin() as connection:
                await connection.run_sync(TABLES.create_all)
            around = {"async_engine": async_engine, "table": table, "orders": orders}
            await run("outbox", piece, around)
            async with table.stream() as stream:
                message = await anext(stream)
                async with async_engine.begin() as connection:
                    await connection.run_sync(message.ack_in)
            assert (message["message"], table.stats().acked) == ("thanks for order 17", 1)
        await async_engine.dispose()

    anyio.run(main, backend="asyncio")


async def test_relay_and_inbox(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    TABLES.create_all(engine)
    with outbox.MessageTable(engine, "mails") as table:
        table.create()
        async with (
            tickwheel.embedded(tmp_path / "data") as broker,
            broker.client() as client,
            client.subscribe("shop") as subscription,
        ):
            around: dict[str, Any] = {
                "engine": engine,
                "orders": orders,
                "table": table,
                "client": client,
                "outbox": outbox,
                "inbox": outbox.inbox,
                "timedelta": timedelta,
            }
            with anyio.fail_after(PATIENCE_S):
                for piece in blocks("outbox-relay", "python"):
                    if "process(message" in piece:
                        around["message"] = await anext(subscription)
                    await run("outbox-relay", piece, around)
        assert (around["moved"], around["first"]) == (2, False)
        with engine.connect() as connection:
            assert connection.execute(sa.select(orders.c.id)).scalars().all() == [17, 18]
    engine.dispose()
