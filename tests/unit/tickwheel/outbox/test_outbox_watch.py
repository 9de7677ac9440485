"""What of the watches needs no server."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from tests.unit.tickwheel.both import on_both
from tickwheel.outbox import open_database
from tickwheel.outbox.statistics_watch import StatisticsWatch
from tickwheel.outbox.watch import FileWatch, PollWatch, channel_of, notify_statements, watch_table


def test_channels_are_short_and_differ() -> None:
    assert channel_of("orders") == "tickwheel_orders"
    long = [channel_of("x" * 60), channel_of("x" * 61), channel_of("ä" * 40)]
    assert len(set(long)) == 3
    assert all(len(one.encode()) <= 63 for one in long)


def test_names_are_quoted() -> None:
    table = sa.Table('it\'s "odd" 5%', sa.MetaData(), sa.Column("id", sa.Integer))
    text = "\n".join(notify_statements(table, "time_next"))
    assert 'on "it\'s ""odd"" 5%" ' in text
    assert "tickwheel_notify('tickwheel_it''s \"odd\" 5%', 'time_next')" in text
    assert "update" not in "\n".join(notify_statements(table, updates=False)[2:])


@on_both
async def test_files_ring_at_the_start_at_changes_and_a_little_later() -> None:
    async with anyio.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        path.write_text("1")
        rings: list[float] = []
        async with anyio.create_task_group() as group:
            group.start_soon(FileWatch(path).run, lambda due: rings.append(anyio.current_time()))
            for number, change in enumerate((path, Path(f"{path}-wal"), path)):
                while len(rings) < 5 * number + 1:
                    await anyio.sleep(0.005)
                if number:
                    change.write_text("2" * (number + 5))
            # A commit that reaches the disk late shows late: it is looked for again for a while.
            last = os.stat(path).st_mtime_ns
            while rings[-1] - rings[0] < 2:
                await anyio.sleep(0.05)
            assert os.stat(path).st_mtime_ns == last
            group.cancel_scope.cancel()


async def test_a_file_that_does_not_change_becomes_quiet() -> None:
    async with anyio.TemporaryDirectory() as folder:
        rings: list[None] = []
        with anyio.move_on_after(3):
            await FileWatch(Path(folder) / "shop.db").run(lambda due: rings.append(None))
        assert 2 <= len(rings) <= 10


@on_both
async def test_drivers_that_cannot_wait_are_polled() -> None:
    rings: list[int | None] = []
    began_s = anyio.current_time()
    async with anyio.create_task_group() as group:

        def ring(due: int | None) -> None:
            rings.append(due)
            if len(rings) == 5:
                group.cancel_scope.cancel()

        group.start_soon(PollWatch().run, ring)
    assert anyio.current_time() - began_s >= 0.99
    assert set(rings) == {None}


def test_each_kind_has_its_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_database(f"sqlite:///{tmp_path / 'shop.db'}") as database:
        assert isinstance(watch_table(database, "t"), FileWatch)
        database.kind = "mariadb"
        assert isinstance(watch_table(database, "t"), PollWatch)
        monkeypatch.setattr(database.engine.dialect, "driver", "pymysql")
        assert isinstance(watch_table(database, "t"), StatisticsWatch)


@on_both
async def test_what_the_first_look_cost_may_be_the_doing_of_others() -> None:
    """Otherwise a commit during a later look, which costs the same together with it, would be taken for our own."""
    watch = Counter(None)  # type: ignore[arg-type]
    rings: list[None] = []
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run, lambda due: rings.append(None))
        await looked(watch, 2, others=27)
        for others in (27, 0, 5):
            known = len(rings)
            while len(rings) == known:
                await anyio.sleep(0.005)
            await looked(watch, 2, others=others)
        known = len(rings)
        while len(rings) == known:
            await anyio.sleep(0.005)
        group.cancel_scope.cancel()


class Counter(StatisticsWatch):
    """A server whose count is said by the test."""

    count = 0

    async def _count(self) -> int:
        await anyio.lowlevel.checkpoint()
        return self.count


async def looked(watch: Counter, own: int, others: int = 0, found: bool = False) -> None:
    async with watch.look() as look:
        watch.count += own + others
        look.found = found


@on_both
async def test_ones_own_looking_is_told_from_what_others_do() -> None:
    watch = Counter(None)  # type: ignore[arg-type]
    rings: list[float] = []
    async with anyio.create_task_group() as group:
        await looked(watch, 6)  # the first look makes a connection
        await looked(watch, 2)
        await looked(watch, 2)
        group.start_soon(watch.run, lambda due: rings.append(anyio.current_time()))
        await anyio.sleep(0.2)
        assert rings == []
        watch.count += 1
        while not rings:
            await anyio.sleep(0.005)
        await looked(watch, 2, others=2)
        known = len(rings)
        while len(rings) == known:  # what others did while we looked may be a message
            await anyio.sleep(0.005)
        await looked(watch, 2)
        while len(rings) < known + 4:  # and what was on its way then may have come later
            await anyio.sleep(0.005)
        group.cancel_scope.cancel()
