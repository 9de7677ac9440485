"""A function that is called for each message of a topic, and how many at once, for how long, how often."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread
import sniffio

from tickwheel.client.checks import escaped, seconds, shown, whole
from tickwheel.client.columns import check_name
from tickwheel.client.consumer.holding import DEFAULT_MAX_HOLD_S
from tickwheel.client.consumer.message import BaseMessage
from tickwheel.client.consumer.subscription import Start, max_hold_s, start_of_group
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.errors import BadArgument
from tickwheel.protocol.limits import MAX_CREDIT
from tickwheel.worker.outcomes import DONE, GiveUp, Kind, Outcome, Retry
from tickwheel.worker.retry_policy import RetryPolicy, retry_policy, wait_ms

Function: TypeAlias = Callable[[Any], Any]
"""Takes a message. A coroutine function runs in the event loop, any other one in a thread."""
Middleware: TypeAlias = Callable[[Any, Callable[[Any], Any]], Any]
"""Takes a message, and what to call with it; returns, or raises, what the handler is to have returned or raised. A
coroutine function if the handler is one."""

DEFAULT_CONCURRENCY: Final = 10
MOST_AT_ONCE: Final = MAX_CREDIT // 2

_log = logging.getLogger("tickwheel.worker")


@dataclass(frozen=True, slots=True)
class Options:
    """As ``Client.work`` takes them."""

    group: str = "default"
    concurrency: int | None = None
    retry: RetryPolicy | int | None = None
    timeout: Delay | None = None
    middlewares: Sequence[Middleware] = ()
    prefetch: int | None = None
    start: Start = "earliest"
    shard: str | None = None
    max_hold: timedelta | float = DEFAULT_MAX_HOLD_S


class Handler:
    """A function with its options, which are judged here: no worker begins that could not go on."""

    def __init__(self, topic: str, function: Function, options: Options) -> None:
        """Raises BadArgument, BadName, BadTime."""
        check_name(topic)
        check_name(options.group, "group")
        self.topic, self.options = topic, options
        self.group = options.group
        if not callable(function):
            raise BadArgument(
                f"The handler of {topic!r} is {shown(function)}, which cannot be called.",
                advice="Give a function that takes a message.",
            )
        if _is_generator_function(function):
            raise BadArgument(
                f"The handler of {topic!r} is {shown(function)}, a generator: calling it runs nothing of it.",
                advice="Give a function without yield.",
            )
        self.is_async = is_coroutine_function(function)
        self.function = function
        self.concurrency = (
            DEFAULT_CONCURRENCY
            if options.concurrency is None
            else whole(options.concurrency, "concurrency", 1, MOST_AT_ONCE)
        )
        self.prefetch = (
            None
            if options.prefetch is None
            else whole(options.prefetch, "prefetch", 0, MAX_CREDIT - self.concurrency)
        )
        self._retry = retry_policy(options.retry)
        self._timeout_s = self._checked_timeout(options.timeout)
        start_of_group(options.start)
        max_hold_s(options.max_hold)
        self._call = self._with_middlewares(function, options.middlewares)
        self._threads: anyio.CapacityLimiter | None = None

    def __repr__(self) -> str:
        return f"<Handler of {self.topic!r} in group {self.group!r}>"

    @property
    def credit(self) -> int | None:
        """For the subscription; None: it finds out by itself."""
        return None if self.prefetch is None else self.concurrency + self.prefetch

    def _checked_timeout(self, timeout: Delay | None) -> float | None:
        if timeout is None:
            return None
        if not self.is_async:
            raise BadArgument(
                f"The handler of {self.topic!r} runs in a thread, which cannot be interrupted after a timeout.",
                advice="Make it a coroutine function, or have what it calls time out.",
            )
        timeout_s = duration_ms(timeout, "timeout") / 1_000
        return seconds(timeout_s, "timeout")

    def _with_middlewares(self, function: Function, middlewares: Sequence[Middleware]) -> Function:
        for middleware in reversed(list(middlewares)):
            if not callable(middleware) or is_coroutine_function(middleware) != self.is_async:
                kind = "a coroutine function" if self.is_async else "a function without async"
                raise BadArgument(
                    f"A middleware of {self.topic!r} is {shown(middleware)}, and has to be {kind}, as its handler.",
                    advice="Write it as `async def middleware(message, call_next)` for coroutine functions.",
                )
            function = functools.partial(_call, middleware, function)
        return function

    async def handle(self, message: BaseMessage) -> Outcome:
        """Calls the function. Whatever it raises is an outcome, too, but Ctrl-C and the cancellation of this call."""
        attempt = message.attempt
        try:
            said = await self._in_time(message)
        except _TimedOut:
            reason = f"the handler took longer than {self._timeout_s:g} s"
            _log.warning("message %d of %r: %s", message.id, self.topic, reason)
            return self._again(Kind.TIMED_OUT, attempt, None, reason)
        except BaseException as error:
            if self._is_the_end(error):
                raise
            _take_back(error)
            return self._raised(message, attempt, error)
        return self._said(message, attempt, said)

    def _is_the_end(self, error: BaseException) -> bool:
        """Whether it is not of the function's making: Ctrl-C, the end of the loop, or that this call was cancelled."""
        if isinstance(error, Exception):
            return False
        if self.is_async and isinstance(error, KeyboardInterrupt | GeneratorExit):
            return True
        return anyio.current_effective_deadline() == -math.inf

    def handle_here(self, message: Any) -> Outcome:
        """The same in the calling thread, for a function without async."""
        attempt = message.attempt
        try:
            said = self._call(message)
        except BaseException as error:  # of a thread, which has no Ctrl-C, and ends with what is raised here
            return self._raised(message, attempt, error)
        return self._said(message, attempt, said)

    def _raised(self, message: Any, attempt: int, error: BaseException) -> Outcome:
        if isinstance(error, Retry | GiveUp):
            return self._said(message, attempt, error)
        return self._failed(message, attempt, error)

    def _said(self, message: Any, attempt: int, said: Any) -> Outcome:
        if isinstance(said, type) and issubclass(said, Retry | GiveUp):
            said = said()
        if isinstance(said, GiveUp):
            return Outcome(Kind.GIVEN_UP, reason=said.reason)
        if isinstance(said, Retry):
            if not said.counted:
                return Outcome(Kind.RETRY, said.after_ms, counted=False)
            return self._again(Kind.RETRY, attempt, said.after_ms, said.reason)
        if inspect.isawaitable(said) or inspect.isgenerator(said) or inspect.isasyncgen(said):
            if inspect.iscoroutine(said):
                said.close()  # or Python says that it was not awaited
            return self._failed(message, attempt, NotRun(type(said).__name__))
        return DONE

    async def _in_time(self, message: BaseMessage) -> Any:
        if not self.is_async:
            if self._threads is None:
                self._threads = anyio.CapacityLimiter(self.concurrency)
            (said,) = await anyio.to_thread.run_sync(
                self._wrapped, message, limiter=self._threads, abandon_on_cancel=True
            )
            return said
        call: Awaitable[Any] = self._call(message)
        if self._timeout_s is None:
            return await call
        with anyio.move_on_after(self._timeout_s) as scope:
            return await call
        assert scope.cancelled_caught
        raise _TimedOut

    def _wrapped(self, message: BaseMessage) -> tuple[Any]:
        """As a tuple, since trio refuses a coroutine in words of its own."""
        return (self._call(message),)

    def _failed(self, message: BaseMessage, attempt: int, error: BaseException) -> Outcome:
        reason = _reason_of(error)
        given_up = self._retry.ends_with(attempt, error)
        _log.warning(
            "attempt %d of message %d of %r has failed%s",
            attempt,
            message.id,
            self.topic,
            ", and was the last one" if given_up else "",
            exc_info=error,
        )
        if given_up:
            return Outcome(Kind.GIVEN_UP, reason=reason)
        return self._again(Kind.FAILED, attempt, None, reason)

    def _again(self, kind: Kind, attempt: int, after_ms: int | None, reason: str) -> Outcome:
        if self._retry.ends_with(attempt):
            return Outcome(Kind.GIVEN_UP, reason=reason)
        return Outcome(kind, wait_ms(self._retry, attempt) if after_ms is None else after_ms, reason)


def _take_back(error: BaseException) -> None:
    """A handler that has cancelled its own task has not cancelled what is done with its message afterwards."""
    if isinstance(error, asyncio.CancelledError) and sniffio.current_async_library() == "asyncio":
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()


def _reason_of(error: BaseException) -> str:
    try:
        return escaped(f"{type(error).__name__}: {error}")
    except Exception:  # its text is made by the program
        return type(error).__name__


class NotRun(TypeError):
    """The handler has returned what would still have to be run."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the handler returned a {kind}, and has not run it; make it a coroutine function")


class _TimedOut(Exception):
    """The time of a handler is over."""


def _call(middleware: Middleware, call_next: Function, message: Any) -> Any:
    return middleware(message, call_next)


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it gives a coroutine: also of an object that is called, and of what functools has wrapped."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def _is_generator_function(function: Any) -> bool:
    return any(
        inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _called(function)
    )


def _called(function: Any) -> tuple[Any, Any]:
    """What runs when it is called: one of these."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004
