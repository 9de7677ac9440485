"""The pieces of programs on the page about key spaces, run as they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa

from tests.outbox.test_outbox_pages import TABLES, blocks, letters, orders, run
from tickwheel import outbox

PAGE = "outbox-keys"


async def test_key_spaces(tmp_path: Path) -> None:
    setup, reap, failed, services = blocks(PAGE, "python")
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url)
    TABLES.create_all(engine)
    engine.dispose()
    around: dict[str, Any] = {"orders": orders, "letters": letters}
    await run(PAGE, setup.replace("sqlite:///shop.db", url), around)
    space: outbox.KeySpace = around["space"]

    async def work() -> None:
        with anyio.fail_after(60):
            while space.stats().deliverable_messages or space.stats().executable_messages:
                await anyio.sleep(0.01)

    around["work"] = work
    await run(PAGE, services, around)
    await run(PAGE, reap, around)
    await run(PAGE, failed, around)
    with space.database.begin() as connection:
        assert space.get(connection, "orders paid") == b"1"
        assert connection.execute(sa.select(letters.c.text)).scalars().all() == ["thanks for order 17"]
        assert connection.execute(sa.select(orders.c.id)).scalars().all() == [17]
    space.close()
