"""Queries: each runs in a process of its own, so that neither the event loop nor the GIL of the broker works for it.

The process (``timerlog.query``) reads the data directory's files itself and writes the whole answering frame; here it
is only started, waited for, killed when its time is over or the client has left, and passed on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import trio

from tickwheel.protocol.bodies.requests import Query
from tickwheel.protocol.errors import QueryFailed, QueryTimeout, TickwheelError, TooManyQueries
from tickwheel.protocol.frames import HEADER_BYTES, FrameType
from tickwheel_broker import logs
from tickwheel_broker.clock import Clock
from tickwheel_broker.errors import ends_the_broker, error_frame, from_store
from tickwheel_broker.net.outgoing import Outgoing
from timerlog.commitlog.log import CommitLog
from timerlog.errors import StoreError
from timerlog.query.worker import Job
from timerlog.readers.snapshot import describe
from timerlog.tables.tables import Tables

MAX_AT_ONCE = 2
MAX_WAITING = 32
_log = logs.get_logger("query")


class Queries:
    """The queries of all connections, a few at a time."""

    def __init__(
        self,
        log: CommitLog,
        tables: Tables,
        clock: Clock,
        max_frame_bytes: int,
        tell: Callable[[Outgoing, bytes], None],
        refusal: Callable[[int, TickwheelError], bytes] = error_frame,
    ) -> None:
        """`tell` sends an answer as soon as what it may have seen until now is durable; `refusal` counts an error and
        makes its frame, by correlation."""
        self._tell = tell
        self._count_refusal = refusal
        self._log, self._tables, self._clock = log, tables, clock
        self._max_bytes = max_frame_bytes - HEADER_BYTES
        self._turns = trio.CapacityLimiter(MAX_AT_ONCE)

    async def answer(self, outgoing: Outgoing, correlation: int, request: Query) -> None:
        """Answer one query, with its result or an error. Raises only what must end the broker."""
        try:
            frame = await self._run(correlation, request)
        except StoreError as error:
            if ends_the_broker(error):
                raise
            frame = self._refusal(correlation, from_store(error))
        except TickwheelError as error:
            frame = self._refusal(correlation, error)
        self._tell(outgoing, frame)

    async def _run(self, correlation: int, request: Query) -> bytes:
        """Its turn comes within its time, or never."""
        if self._turns.statistics().tasks_waiting >= MAX_WAITING:
            raise TooManyQueries
        with trio.move_on_after(request.timeout_ms / 1_000):
            async with self._turns:
                return await self._run_process(self._job(correlation, request))
        raise QueryTimeout(f"The query was not done after {request.timeout_ms / 1_000:g} s.")

    def _job(self, correlation: int, request: Query) -> Job:
        return Job(
            description=describe(self._log, self._tables, self._clock.now_ms()),
            sql=request.sql,
            parameters=request.parameters,
            limit=request.limit,
            max_bytes=self._max_bytes,
            timeout_s=-(-request.timeout_ms // 1_000),
            correlation=correlation,
            answer_type=FrameType.QUERY_OK,
            error_type=FrameType.ERROR,
        )

    async def _run_process(self, job: Job) -> bytes:
        run = partial(
            trio.run_process,
            # -P: what lies in the working directory is not imported.
            [sys.executable, "-P", "-m", "timerlog.query"],
            stdin=msgspec.msgpack.encode(job),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            deliver_cancel=_kill,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            done = await run()
        except OSError as error:
            raise QueryFailed(
                f"The process of the query did not start: {error.strerror or error}."
            ) from error
        if done.returncode or len(done.stdout) < HEADER_BYTES:
            _log.error(
                "query failed",
                exit_code=done.returncode,
                output=done.stderr[-2_000:].decode(errors="replace"),
            )
            raise QueryFailed(f"The process of the query ended with {done.returncode} and no answer.")
        return bytes(done.stdout)

    def _refusal(self, correlation: int, error: TickwheelError) -> bytes:
        _log.info("query refused", code=error.code, reason=error.message)
        return self._count_refusal(correlation, error)


async def _kill(process: trio.Process) -> None:
    """It holds nothing that it would have to put in order."""
    process.kill()
