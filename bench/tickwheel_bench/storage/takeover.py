"""How long a follower takes to become the owner, without what the shared log takes; and a start from the log alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.messages import SendColumns, encode_send
from tickwheel_bench.load.messages import BATCH, BODY, DAY_MS
from timerlog.files.disk import FileDisk
from timerlog.recovery.checkpoint import Place
from timerlog.recovery.derived import find_keys
from timerlog.replication.follower import Follower, open_follower
from timerlog.replication.genesis import Genesis, genesis_of
from timerlog.replication.origin import Origin
from timerlog.replication.record import Writer, fence
from timerlog.settings import StoreSettings
from timerlog.store import Store

LOG_ID = 1


class _Watch:
    """Seconds by the clock and of the processor."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        result = work()
        self.figures[name] = {
            "seconds": round(time.perf_counter() - wall_s, 3),
            "processor_seconds": round(time.process_time() - cpu_s, 3),
        }
        return result


def takeover(directory: Path, scale: float) -> dict[str, Any]:
    """With a key for each message, due in a day."""
    count = int(1_000_000 * scale) // BATCH * BATCH
    settings, now_ms = StoreSettings(), int(time.time() * 1_000)
    genesis = genesis_of("bench", 0, LOG_ID, settings)
    owner, follower = (_open(directory / name, genesis, now_ms) for name in ("owner", "follower"))
    for one in (owner, follower):
        one.take(1, fence(1, 1, now_ms))
    watch = _Watch()
    _fill(Store.of(owner.promote(), FileDisk(directory / "owner"), settings, now_ms), follower, count, now_ms)
    follower.take(follower.offset + 1, fence(2, 2, now_ms))
    opened = watch.time("promote", follower.promote)
    disk = FileDisk(directory / "follower")
    store: Store = watch.time("open_store", lambda: Store.of(opened, disk, settings, now_ms))
    watch.time("finding_the_keys_anew_would_take", lambda: find_keys(store.tables))
    state = store.look.state_hash()
    store.close(clean=False)
    for derived in ("checkpoint", "messages.table", "keys.index", "places"):
        (directory / "follower" / derived).unlink(missing_ok=True)
    shutil.rmtree(directory / "follower" / "topics")
    store = watch.time("start_from_the_log_alone", lambda: Store.open(disk.directory, settings, now_ms))
    is_same = store.look.state_hash() == state
    store.close(clean=False)
    return {"messages": count, "same_state": is_same} | watch.figures


def _open(directory: Path, genesis: Genesis, now_ms: int) -> Follower:
    directory.mkdir()
    start = Place(64, 0, 0, 0, 0, 0)
    return open_follower(
        directory, FileDisk(directory), StoreSettings(), Origin(genesis, start, start.offset + 1), now_ms
    )


def _fill(store: Store, follower: Follower, count: int, now_ms: int) -> None:
    """Each batch is a group commit, and followed at once."""
    topic, writer = store.topics.open("keyed", now_ms), Writer(1, 1, 0)
    for first in range(0, count, BATCH):
        keys = [b"key-%d" % number for number in range(first, first + BATCH)]
        columns = SendColumns([BODY] * BATCH, now_ms + DAY_MS, keys=keys)
        store.produce.ingest(encode_frame(FrameType.SEND, 1, encode_send(topic, columns)), now_ms)
        ticket = store.begin_sync()
        assert ticket is not None, "messages were sent"
        for record in writer.data(ticket.pieces, now_ms):
            follower.take(follower.offset + 1, record)
        store.finish_sync(ticket)
    store.close(clean=False)
