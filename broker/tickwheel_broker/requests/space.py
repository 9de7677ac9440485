"""Messages that are kept elsewhere are dropped, some at a time beside everything else; purging frees their space."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from tickwheel.protocol.bodies.admin import Drop, DropOk
from tickwheel_broker.requests import remembered as remembering
from tickwheel_broker.requests.answers import Caller
from timerlog.engine.drop import Dropped

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker
    from timerlog.layout import UInt64Array

_STEP: Final = 8_192


def drop(caller: Caller, correlation: int, request: Drop) -> None:
    """DROP."""
    broker = caller.broker
    if request.runs:
        broker.store.check_log(int(request.log_id, 16))

    directory = os.path.realpath(broker.settings.data_dir)
    steps = remembering.Steps(caller, correlation)

    async def work() -> DropOk:
        async with broker.bulk:
            return await _drop(broker, request, directory, steps)

    caller.answer_later(correlation, request, work)


async def _drop(broker: Broker, request: Drop, directory: str, steps: remembering.Steps) -> DropOk:
    ids = _ids(request.runs)
    parts = list(steps.done)
    for start in range(len(parts) * _STEP, len(ids), _STEP):
        drop_some = partial(broker.store.drop, ids[start : start + _STEP], request.done_before_ms)
        parts.append(_as_step(steps.take(drop_some, _as_step)))
        broker.after_change()
        await trio.lowlevel.checkpoint()
    kept = b"".join(part[2] for part in parts)
    return DropOk(
        log_id=f"{broker.store.log.log_id:016x}",
        directory=directory,
        dropped=sum(part[0] for part in parts),
        gone=sum(part[1] for part in parts),
        kept=_runs(np.frombuffer(kept, np.uint64)),
    )


def _as_step(done: Dropped) -> tuple[int, int, bytes]:
    return done.dropped, done.gone, done.kept.tobytes()


def _ids(runs: list[tuple[int, int]]) -> UInt64Array:
    """In order, each once."""
    parts = [np.arange(first, first + count, dtype=np.uint64) for first, count in runs]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)


def _runs(ids: UInt64Array) -> list[tuple[int, int]]:
    parts = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return [(int(part[0]), len(part)) for part in parts if len(part)]
