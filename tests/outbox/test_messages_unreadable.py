"""A row with a value that Python cannot take holds up no other, and is tried again."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import execute, get_many, message_table

UNREADABLE: dict[str, tuple[sa.Column[Any], str, str]] = {
    "sqlite": (sa.Column("value", sa.JSON), "'no json'", "'[1]'"),
    "postgresql": (sa.Column("value", sa.DateTime), "'infinity'", "'2031-01-01'"),
}


@pytest.mark.parametrize("database_url", UNREADABLE, indirect=True)
async def test_a_row_that_cannot_be_read_holds_up_no_other(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    column, bad, good = UNREADABLE[database_url.partition(":")[0].partition("+")[0]]
    with message_table(database_url, columns=[column]) as table:
        values = ", ".join(f"({bad if number == 3 else good})" for number in range(8))
        execute(table, f"insert into reminders (value) values {values}")
        assert [one.id for one in table.claim(4)] == [1, 2, 3]
        async with table.stream() as stream:
            received = await get_many(stream, 4)
            assert [one.id for one in received] == [5, 6, 7, 8]
            assert "message 4 cannot be read" in caplog.text
            counted = execute(
                table, f"update reminders set value = {good}, time_next = 0 where id = 4 and epoch = 1"
            )
            assert counted == 1
            (mended,) = await get_many(stream, 1)
            assert (mended.id, mended.epoch) == (4, 2)
