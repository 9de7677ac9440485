"""Requests with an identity: one that is repeated gets the answer that it got, and is not carried out again.

`tickwheel.protocol.identity` says which requests have one. A handler that says by `Asked.expect` what the results
of the store look like as an answer has it written together with the change; of any other, the answer is written when it
is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.requests import FRAME_TYPE_OF_REQUEST, encode_error
from tickwheel.protocol.errors import BadRequest, RequestUncertain, TickwheelError
from tickwheel.protocol.frames import ANSWER_OF, FrameType, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel_broker.errors import ends_the_broker, refusal_of
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.rest import Rest
from timerlog.commitlog.log import CommitLog
from timerlog.engine.state import LogWriter
from timerlog.errors import DiskFull, StoreError
from timerlog.tables.answers import Answer as Known
from timerlog.tables.answers import Answering, RequestName
from timerlog.tables.tables import Tables


class Remembered:
    """Carries requests with an identity out, once each."""

    def __init__(
        self, *, tables: Tables, log: CommitLog, writer: LogWriter, commit: GroupCommit, rest: Rest
    ) -> None:
        self._answers = tables.answers
        self._log = log
        self._writer = writer
        self._commit = commit
        self._rest = rest
        self._at_work: dict[tuple[int, int], trio.Event] = {}
        """By session and number, the requests that are carried out beside what comes next. The event is set when one is
        answered, or its connection is gone."""

    def carry_out(
        self,
        caller: Caller,
        correlation: int,
        request: Request,
        identity: RequestIdentity,
        act: Callable[[], None],
    ) -> bool:
        """Answers a request as it was answered before, or lets `act` carry it out, or go on where it was interrupted;
        whether it did the latter. Raises RequestUncertain, and what `act` raises."""
        answer_type = ANSWER_OF[FRAME_TYPE_OF_REQUEST[type(request)]]
        known = self._answers.find(identity.session, identity.number)
        if known is not None and known.frame_type not in (answer_type, FrameType.ERROR):
            raise BadRequest("The identity of this request is that of another one.")
        if known is not None and known.is_whole:
            frame = encode_frame(known.frame_type, correlation, known.payload)
            self._commit.when_durable(self._log.appended_position, caller.outgoing.promise(), frame)
            return False
        ended = self._at_work.get((identity.session, identity.number))
        if ended is not None:
            caller.answer_after(ended, correlation, request, identity)
            return False
        if known is None:
            self._check_undone(identity)
        self._begin(caller, correlation, _answering(identity, answer_type, known), act)
        return True

    def forget(
        self, caller: Caller, correlation: int, error: StoreError | TickwheelError | None = None
    ) -> None:
        """A request has ended. An error that stays one is its answer, and remembered like any other."""
        answering = caller.answerings.pop(correlation, None)
        if answering is None:
            return
        if error is not None and not ends_the_broker(error):
            refusal = refusal_of(error)
            if not refusal.retryable:
                answering.frame_type = FrameType.ERROR
                self.remember(answering, encode_error(refusal))
        ended = self._at_work.pop(answering.name[:2], None)
        if ended is not None:
            ended.set()

    def remember(self, answering: Answering, payload: bytes) -> None:
        """Writes the whole answer, unless it is written. On a full disk a change has no room either, and what changed
        nothing may be asked again."""
        with suppress(DiskFull):
            self._writer.remember(answering, payload)

    def steps(self, answering: Answering | None) -> Steps:
        """For a request that is carried out in steps."""
        return Steps(self._writer, answering, self._rest)

    def _check_undone(self, identity: RequestIdentity) -> None:
        answers, since = self._answers, identity.since
        # A first try, too: it may come late, over a connection that its client has given up, behind its repetition.
        is_late = answers.is_over(identity.session, identity.number)
        if is_late or (
            since is not None and not answers.is_surely_undone(identity.session, identity.number, since)
        ):
            raise RequestUncertain(
                "The broker does not remember any more whether it carried this request out before."
            )

    def _begin(self, caller: Caller, correlation: int, answering: Answering, act: Callable[[], None]) -> None:
        caller.answerings[correlation] = answering
        try:
            with self._writer.remembering(answering):
                act()
        except (StoreError, TickwheelError) as error:
            self.forget(caller, correlation, error)
            raise
        except BaseException:
            caller.answerings.pop(correlation, None)
            raise
        if correlation in caller.answerings:
            self._at_work[answering.name[:2]] = trio.Event()


def _answering(identity: RequestIdentity, answer_type: FrameType, known: Known | None) -> Answering:
    name = RequestName(identity.session, identity.number, identity.unanswered_from)
    return Answering(name, answer_type, known)


class Steps:
    """A request that is carried out in steps, between which others have their turn. Each step is written with what it
    changes; when the broker or the connection ends in between, a repetition goes on behind the last one."""

    def __init__(self, writer: LogWriter, answering: Answering | None, rest: Rest) -> None:
        """`answering`: None: the request has no identity, and nothing is written of its steps."""
        self._writer = writer
        self._answering = answering
        self.rest = rest
        self.done: list[Any] = []
        """What earlier steps decided; first the plan, if there is one."""
        if self._answering is not None:
            self.done = list(self._answering.done)
            self._answering.expect_steps()

    async def plan(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """What the first try made up before it began: a plain value. It is written with the first step."""
        if self.done:
            return self.done.pop(0)
        return self.take(partial(_as_it_is, await make()))

    def take(self, act: Callable[[], Any], shape: Callable[[Any], Any] | None = None) -> Any:
        """One step. What it returns, or `shape` makes of it, is decided if the store decides nothing."""
        answering = self._answering
        if answering is None:
            return act()
        answering.expect_steps(shape)
        decisions = answering.decisions
        with self._writer.remembering(answering):
            result = act()
            if answering.decisions == decisions:
                answering.decided(result)
        return result


def _as_it_is(value: Any) -> Any:
    return value
