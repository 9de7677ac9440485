"""Requests about disk space: purge what is done, and drop messages that are kept elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import trio

from tickwheel.protocol.bodies.admin import Drop, DropOk, Purge, PurgeOk
from tickwheel_broker.background.purge import Purging
from tickwheel_broker.requests.answers import Answers
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import Steps
from timerlog.commitlog.log import CommitLog
from timerlog.engine.change import Change, Dropped
from timerlog.layout import UInt64Array

_STEP: Final = 8_192


class SpaceRequests:
    """Some messages at a time, beside everything else; purging frees the space of those that were dropped."""

    def __init__(
        self,
        change: Change,
        log: CommitLog,
        data_dir: str,
        purging: Purging,
        publish: Callable[[], None],
        answers: Answers,
    ) -> None:
        self._change = change
        self._log = log
        self._data_dir = data_dir
        self._purging = purging
        self._publish = publish
        self._answers = answers

    def purge(self, caller: Caller, correlation: int, request: Purge) -> None:
        """PURGE: starts a run, or waits for one."""
        answering = caller.answerings.get(correlation)
        name = None if answering is None else answering.name[:2]
        run = request.run or self._purging.begin(dry_run=request.dry_run, name=name)

        async def work() -> PurgeOk:
            return await self._purging.wait(run, request.wait_ms)

        caller.answer_later(correlation, request, work)

    def drop(self, caller: Caller, correlation: int, request: Drop) -> None:
        """DROP."""
        if request.runs:
            self._change.check_log(int(request.log_id, 16))

        directory = os.path.realpath(self._data_dir)
        steps = self._answers.steps(caller, correlation)

        async def work() -> DropOk:
            async with self._answers.bulk:
                return await self._drop(request, directory, steps)

        caller.answer_later(correlation, request, work)

    async def _drop(self, request: Drop, directory: str, steps: Steps) -> DropOk:
        ids = _ids(request.runs)
        parts = list(steps.done)
        for start in range(len(parts) * _STEP, len(ids), _STEP):
            drop_some = partial(self._change.drop, ids[start : start + _STEP], request.done_before_ms)
            parts.append(_as_step(steps.take(drop_some, _as_step)))
            self._publish()
            await trio.lowlevel.checkpoint()
        kept = b"".join(part[2] for part in parts)
        return DropOk(
            log_id=f"{self._log.log_id:016x}",
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
