"""Nothing may depend on anything but the seed: not on the order of a scheduler, not on the system's randomness."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import trio

_RUN = getattr(trio._core, "_run", None)


class CannotRepeat(RuntimeError):
    """This version of trio cannot run tasks in a repeatable order. Use another one for simulations."""


def stream(seed: int, purpose: str) -> random.Random:
    """Randomness for one purpose: that more of it is used elsewhere changes nothing here."""
    return random.Random(f"{seed}/{purpose}")


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Inside, all tasks run in an order that the seed decides, and all randomness comes from it."""
    if not hasattr(_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING") or not hasattr(_RUN, "_r"):
        raise CannotRepeat(f"trio {trio.__version__} has no repeatable scheduling.")
    system = stream(seed, "system")
    random_bytes: Callable[[int], bytes] = system.randbytes
    scheduler: Any = _RUN
    before = random.getstate()
    random.seed(f"{seed}/global")
    try:
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True))
            patches.enter_context(mock.patch.object(scheduler, "_r", stream(seed, "scheduler")))
            patches.enter_context(mock.patch.object(os, "urandom", random_bytes))
            patches.enter_context(mock.patch.object(random, "_urandom", random_bytes))
            patches.enter_context(_no_threads())
            patches.enter_context(_quiet())
            yield
    finally:
        random.setstate(before)


@contextmanager
def _no_threads() -> Iterator[None]:
    """Simulated time would jump ahead while a thread works, because no task is awake."""

    async def refuse(*_args: object, **_options: object) -> None:
        raise AssertionError("there are no threads in a simulation")

    with mock.patch.object(trio.to_thread, "run_sync", refuse):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """What broker and clients log about faults is no news here."""
    loggers = [logging.getLogger("tickwheel"), logging.getLogger("tickwheel.broker")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
