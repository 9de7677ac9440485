"""Requests about disk space: purge what is done, and drop messages that are kept elsewhere."""

from __future__ import annotations

import os
from functools import partial
from typing import Final

import numpy as np

from tickwheel.protocol.bodies.admin import Drop, DropOk, Purge
from tickwheel_broker.background.purge import Purging
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.remembered import Steps
from timerlog.commitlog.log import CommitLog
from timerlog.engine.change import Change, Dropped
from timerlog.layout import UInt64Array

_STEP: Final = 8_192


class SpaceRequests:
    """Some messages at a time, beside everything else; purging frees the space of those that were dropped."""

    def __init__(
        self,
        *,
        change: Change,
        log: CommitLog,
        settings: Settings,
        purging: Purging,
    ) -> None:
        self._change = change
        self._log = log
        self._settings = settings
        self._purging = purging

    def purge(self, request: Purge, asked: Asked) -> Work:
        """PURGE: starts a run, or waits for one."""
        name = None if asked.answering is None else asked.answering.name[:2]
        run = request.run or self._purging.begin(dry_run=request.dry_run, name=name)
        return partial(self._purging.wait, run, request.wait_ms)

    def drop(self, request: Drop, asked: Asked) -> Work:
        """DROP."""
        if request.runs:
            self._change.check_log(int(request.log_id, 16))
        directory = os.path.realpath(self._settings.data_dir)
        return asked.bulk(partial(self._drop, request, directory, asked.steps()))

    async def _drop(self, request: Drop, directory: str, steps: Steps) -> DropOk:
        ids = _ids(request.runs)
        parts = list(steps.done)
        for start in range(len(parts) * _STEP, len(ids), _STEP):
            drop_some = partial(self._change.drop, ids[start : start + _STEP], request.done_before_ms)
            parts.append(_as_step(steps.take(drop_some, _as_step)))
            await steps.rest()
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
