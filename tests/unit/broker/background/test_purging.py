"""The broker's purge: runs that are asked for, runs by itself, a disk that is full, and one that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
import trio
import trio.testing

from tests.support.stores.purging import LATER_MS, content, mixed
from tickwheel.protocol.errors import BadRequest, TickwheelError
from tickwheel_broker.background.steps import KEPT
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.group_commit import InPlace, SyncFailed
from timerlog.errors import DiskFull
from timerlog.files.disk import FileDisk
from timerlog.files.mapped_file import Region
from timerlog.recovery.checkpoint import NAME

FULL = DiskFull("full")


@asynccontextmanager
async def purging_broker(directory: Path, durability: str = "always") -> AsyncIterator[Broker]:
    """A broker whose group commit and purge run; a day after its messages were acked."""
    store = mixed(directory)
    clock = ManualClock(datetime.fromtimestamp(LATER_MS / 1_000, UTC))
    settings = Settings(data_dir=str(directory), durability=durability)  # type: ignore[arg-type]
    try:
        async with trio.open_nursery() as nursery:
            broker = Broker(settings=settings, store=store, clock=clock, runner=InPlace(), nursery=nursery)
            nursery.start_soon(broker.commit.run)
            nursery.start_soon(broker.purging.run)
            yield broker
            nursery.cancel_scope.cancel()
    finally:
        store.close(clean=False)


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
async def test_a_run_is_made_and_told(tmp_path: Path, durability: str) -> None:
    async with purging_broker(tmp_path, durability) as broker:
        before = content(broker.store)
        forecast = await broker.purging.wait(broker.purging.begin(dry_run=True), 60_000)
        assert content(broker.store) == before
        run = broker.purging.begin(dry_run=False)
        begun = await broker.purging.wait(run, 0)
        assert (begun.run, begun.is_done) == (run, False)
        done = await broker.purging.wait(run, 60_000)
        assert done.is_done
        assert (
            done.purged_messages
            == forecast.purged_messages
            == len(before) - len(content(broker.store))
            > 8_000
        )
        assert broker.store.log.durable_position >= broker.store.log.segments[0]


async def test_a_segment_goes_only_when_the_disk_has_what_was_moved(tmp_path: Path) -> None:
    """In this order: what was moved and forgotten is synced, a checkpoint that says so is durable, the segment goes."""
    replace, remove = FileDisk.replace, FileDisk.remove_segment
    steps: list[int | str] = []
    async with purging_broker(tmp_path) as broker:
        store = broker.store

        def save(disk: FileDisk, name: str, content: bytes, *, durable: bool) -> None:
            assert durable
            assert store.log.durable_position >= store.purger._written > 0
            replace(disk, name, content, durable=durable)
            steps.append(name)

        def drop(disk: FileDisk, base: int) -> None:
            positions = store.tables.rows["position"][: store.tables.next_id]
            states = store.tables.rows["state"][: store.tables.next_id]
            in_it = (positions >= base) & (positions < base + store.log.segment_bytes) & (states != 0)
            assert not in_it.any(), "a message is still in it"
            remove(disk, base)
            steps.append(base)

        segments = store.log.segments
        with (
            mock.patch.object(FileDisk, "replace", save),
            mock.patch.object(FileDisk, "remove_segment", drop),
        ):
            await broker.purging.wait(broker.purging.begin(dry_run=False), 60_000)
    assert [step for step in steps if step != NAME] == segments
    assert all(steps[steps.index(base) - 1] == NAME for base in segments)


async def test_runs_that_are_not_known(tmp_path: Path) -> None:
    async with purging_broker(tmp_path) as broker:
        with pytest.raises(BadRequest, match="no purge 7"):
            await broker.purging.wait(7, 0)
        runs = [broker.purging.begin(dry_run=True) for _ in range(KEPT + 1)]
        with pytest.raises(BadRequest, match=f"no purge {runs[0]}"):
            await broker.purging.wait(runs[0], 0)
        assert (await broker.purging.wait(runs[-1], 60_000)).is_done


async def test_a_disk_too_full_to_move_anything_ends_the_run_and_not_the_broker(tmp_path: Path) -> None:
    async with purging_broker(tmp_path) as broker:
        needed = {i: v for i, v in content(broker.store).items() if v[1] == 1}
        log = type(broker.store.log)
        with (
            mock.patch.object(log, "make_room", side_effect=FULL),
            mock.patch.object(log, "make_message_room", side_effect=FULL),
            mock.patch.object(log, "ensure_room", side_effect=FULL),
        ):
            with pytest.raises(TickwheelError) as refused:
                await broker.purging.wait(broker.purging.begin(dry_run=False), 60_000)
            assert refused.value.code == "disk_full"
        after = content(broker.store)
        assert {i: after[i] for i in needed} == needed
        assert (await broker.purging.wait(broker.purging.begin(dry_run=False), 60_000)).purged_messages > 0


async def test_a_checkpoint_that_has_no_room_is_tried_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with purging_broker(tmp_path) as broker:
        segments = broker.store.log.segments
        failures = [FULL, FULL]
        replace = FileDisk.replace

        def sometimes(disk: FileDisk, name: str, content: bytes, *, durable: bool) -> None:
            if failures:
                raise failures.pop()
            replace(disk, name, content, durable=durable)

        with mock.patch.object(FileDisk, "replace", sometimes):
            report = await broker.purging.wait(broker.purging.begin(dry_run=False), 60_000)
        assert not failures
        assert report.is_done
        assert not set(broker.store.log.segments) & set(segments)


async def purge_until_the_end(directory: Path) -> None:
    async with purging_broker(directory) as broker:
        broker.purging.begin(dry_run=False)
        await trio.sleep_forever()


@pytest.mark.parametrize("broken", [(FileDisk, "remove_segment"), (Region, "punch")])
async def test_a_disk_that_fails_ends_the_broker(tmp_path: Path, broken: tuple[type, str]) -> None:
    with (
        mock.patch.object(*broken, side_effect=OSError(5, "broken")),
        pytest.raises(BaseExceptionGroup) as ended,
    ):
        await purge_until_the_end(tmp_path)
    assert ended.group_contains(SyncFailed, match="broken", depth=1)


async def test_it_purges_by_itself_when_it_is_worth_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with purging_broker(tmp_path) as broker:
        kept = {i for i, v in content(broker.store).items() if v[1] == 1}
        before_bytes = broker.store.log.disk_bytes()
        with trio.fail_after(600):
            while broker.store.log.disk_bytes() > before_bytes / 2:
                await trio.sleep(1)
        assert kept <= content(broker.store).keys()
