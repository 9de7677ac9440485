"""Messages that are kept elsewhere are dropped, some at a time beside everything else; purging frees their space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from broker.replying import Caller
from tickwheel.protocol.admin import Drop, DropOk

if TYPE_CHECKING:
    from broker.core import Broker
    from timerlog.core import UInt64Array

_STEP: Final = 8_192


def drop(caller: Caller, correlation: int, request: Drop) -> None:
    """DROP."""
    broker = caller.broker
    if request.runs:
        broker.store.check_log(int(request.log_id, 16))

    directory = os.path.realpath(broker.settings.data_dir)

    async def work() -> DropOk:
        async with broker.bulk:
            return await _drop(broker, request, directory)

    caller.answer_later(correlation, request, work)


async def _drop(broker: Broker, request: Drop, directory: str) -> DropOk:
    ids = _ids(request.runs)
    dropped = gone = 0
    kept: list[UInt64Array] = []
    for start in range(0, len(ids), _STEP):
        done = broker.store.drop(ids[start : start + _STEP], request.done_before_ms)
        dropped, gone = dropped + done.dropped, gone + done.gone
        kept.append(done.kept)
        broker.after_change()
        await trio.lowlevel.checkpoint()
    return DropOk(
        log_id=f"{broker.store.log.log_id:016x}",
        directory=directory,
        dropped=dropped,
        gone=gone,
        kept=_runs(np.concatenate(kept)) if kept else [],
    )


def _ids(runs: list[tuple[int, int]]) -> UInt64Array:
    """In order, each once."""
    parts = [np.arange(first, first + count, dtype=np.uint64) for first, count in runs]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)


def _runs(ids: UInt64Array) -> list[tuple[int, int]]:
    parts = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return [(int(part[0]), len(part)) for part in parts if len(part)]
