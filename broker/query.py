"""QUERY: hands a query to a process of its own, and its answer back."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from broker.query_worker import INSTALL
from broker.query_worker import Request as WorkerRequest
from broker.replying import Caller
from tickwheel.protocol.errors import BadQuery, QueryTooSlow
from tickwheel.protocol.query import Query
from timerlog.snapshot import describe

if TYPE_CHECKING:
    from broker.core import Broker

AT_ONCE: Final = 2
"""Queries that run at the same time; others wait."""

_limiters: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("queries")


def query(caller: Caller, correlation: int, request: Query) -> None:
    """QUERY."""
    broker = caller.broker

    async def work() -> bytes:
        async with _limiter():
            return await _ask(broker, request)

    caller.answer_later(correlation, request, work)


def _limiter() -> trio.CapacityLimiter:
    try:
        return _limiters.get()
    except LookupError:
        limiter = trio.CapacityLimiter(AT_ONCE)
        _limiters.set(limiter)
        return limiter


async def _ask(broker: Broker, request: Query) -> bytes:
    shape = describe(broker.store, broker.clock.now_ms())
    stdin = msgspec.msgpack.encode(WorkerRequest(shape, request.sql, request.limit))
    command = [sys.executable, "-m", "broker.query_worker"]
    with trio.move_on_after(request.timeout_ms / 1_000):
        done = await trio.run_process(
            command, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False, deliver_cancel=_kill
        )
        return _checked(done)
    raise QueryTooSlow(f"The query took longer than {request.timeout_ms:,} ms.")


def _checked(done: subprocess.CompletedProcess[bytes]) -> bytes:
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it was killed"]
        raise BadQuery(f"The query ended without an answer: {last[0][:300]}.")
    answer: dict[str, Any] = msgspec.msgpack.decode(done.stdout)
    if "error" in answer:
        if answer["error"] == INSTALL:
            raise BadQuery("The broker lacks DuckDB.", advice=f"{INSTALL}, where the broker runs.")
        raise BadQuery(answer["error"])
    return done.stdout


async def _kill(process: trio.Process) -> None:
    process.kill()
