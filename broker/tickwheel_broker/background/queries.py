"""Queries, histories of messages, and what happens: each runs in a process of its own, so that neither the event loop
nor the GIL of the broker works for it.

The process (``timerlog.query``) reads the data directory's files itself and writes the whole answering frame; here it
is only started, waited for, killed when its time is over or the client has left, and passed on. Of messages that it
found damaged it gives the numbers, for a cluster to heal them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import trio

from tickwheel.protocol.bodies.endpoints import GetAttempts
from tickwheel.protocol.bodies.groups import GetHistory
from tickwheel.protocol.bodies.operations import GetEvents
from tickwheel.protocol.bodies.requests import FRAME_TYPE_OF_REQUEST, Query
from tickwheel.protocol.errors import QueryFailed, QueryTimeout, TickwheelError, TooManyQueries
from tickwheel.protocol.frames import ANSWER_OF, HEADER_BYTES, FrameType
from tickwheel_broker import logs
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.errors import error_frame, refusal_of
from tickwheel_broker.net.outgoing import Outgoing
from timerlog.commitlog.log import CommitLog
from timerlog.errors import StoreError
from timerlog.layout import UInt64Array
from timerlog.query.worker import Follow, Job, Life, Sql, Tried
from timerlog.readers.snapshot import describe
from timerlog.readers.tail import Place, resumed, told_in
from timerlog.tables.tables import Tables

MAX_AT_ONCE = 2
MAX_WAITING = 32
_log = logs.get_logger("query")


class Queries:
    """The queries of all connections, a few at a time."""

    def __init__(
        self,
        *,
        log: CommitLog,
        tables: Tables,
        clock: Clock,
        max_frame_bytes: int,
        tell: Callable[[Outgoing, bytes], None],
        heal: Callable[[UInt64Array], None],
        refusal: Callable[[int, TickwheelError], bytes] = error_frame,
    ) -> None:
        """`tell` sends an answer as soon as what it may have seen until now is durable; `heal` gets messages that a
        query found damaged; `refusal` counts an error and makes its frame, by correlation."""
        self._tell, self._heal = tell, heal
        self._refusal = refusal
        self._log, self._tables, self._clock = log, tables, clock
        self._max_bytes = max_frame_bytes - HEADER_BYTES
        self._turns = trio.CapacityLimiter(MAX_AT_ONCE)

    @property
    def end(self) -> int:
        """Up to where events are told: what lies before it stays, whatever happens."""
        return self._log.durable_position

    def place(self, position: int, told: int) -> tuple[Place, bool]:
        """Where to go on with what a client was told last, perhaps by a log with another past; whether there is a
        gap."""
        return resumed(Place(position, told), self._tables.timeline, self._tables.timeline_position)

    def told(self, position: int) -> Place:
        """A place of which nothing is told."""
        return Place(position, told_in(self._tables.timeline, 0))

    async def answer(
        self,
        outgoing: Outgoing,
        correlation: int,
        request: Query | GetHistory | GetEvents | GetAttempts,
        tried: Tried | None = None,
    ) -> None:
        """Answer one query, with the result or an error; or tell the history of the message with an id, what has
        happened since a place, or what was `tried` of an endpoint. Raises only what must end the broker."""
        try:
            frame = await self._run(correlation, request, tried)
        except (StoreError, TickwheelError) as error:
            refusal = refusal_of(error)
            _log.info("query refused", code=refusal.code, reason=refusal.message)
            frame = self._refusal(correlation, refusal)
        self._tell(outgoing, frame)

    async def _run(
        self, correlation: int, request: Query | GetHistory | GetEvents | GetAttempts, tried: Tried | None
    ) -> bytes:
        """Its turn comes within its time, or never."""
        if self._turns.statistics().tasks_waiting >= MAX_WAITING:
            raise TooManyQueries
        with trio.move_on_after(request.timeout_ms / 1_000):
            async with self._turns:
                return await self._run_process(self._job(correlation, request, tried))
        raise QueryTimeout(f"The query was not done after {request.timeout_ms / 1_000:g} s.")

    def _job(
        self, correlation: int, request: Query | GetHistory | GetEvents | GetAttempts, tried: Tried | None
    ) -> Job:
        description = describe(self._log, self._tables, self._clock.now_ms())
        work: Sql | Life | Follow | Tried
        if isinstance(request, Query):
            work = Sql(request.sql, request.limit, request.parameters, request.stream)
        elif isinstance(request, GetHistory):
            assert request.id is not None
            work = Life(request.id, self._log.appended_position, request.limit)
        elif isinstance(request, GetAttempts):
            assert tried is not None
            work = tried
        else:
            assert not isinstance(request.start, str)
            place, has_gap = self.place(*request.start)
            work = Follow(place, self.end, request.limit, has_gap)
        return Job(
            description=description,
            work=work,
            max_bytes=self._max_bytes,
            timeout_s=-(-request.timeout_ms // 1_000),
            correlation=correlation,
            answer_type=ANSWER_OF[FRAME_TYPE_OF_REQUEST[type(request)]],
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
        end = HEADER_BYTES + int.from_bytes(done.stdout[:4], "little")
        if len(done.stdout) > end:
            self._heal(np.frombuffer(done.stdout, "<u8", offset=end))
        return bytes(done.stdout[:end])


async def _kill(process: trio.Process) -> None:
    """It holds nothing that it would have to put in order."""
    process.kill()
