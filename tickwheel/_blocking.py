"""An event loop in a thread of its own, for code that blocks.

The thread does not keep the interpreter from ending. A call that is interrupted (Ctrl-C) is cancelled in the loop, and
waited for, so that nothing goes on behind the caller's back.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from tickwheel.client import forks as _forks
from tickwheel.protocol.errors import ClientClosed, ClientForked, TickwheelError

T = TypeVar("T")
_CANCEL_S: Final = 5.0
"""So long a call that was interrupted may take to end."""


class Loop:
    """The loop. Any thread but its own may call into it."""

    def __init__(self) -> None:
        self._over: TickwheelError | None = None
        """Why nothing can be called any more."""
        self._has_ended = False
        self._is_unwanted = False
        """Who made it was interrupted."""
        self._open: set[_Job[Any]] = set()
        """Whose callers wait."""
        ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="tickwheel-client", daemon=True)
        try:
            self._thread.start()
            self._portal = ready.result()
            _forks.tell(self)
        except BaseException:
            self._is_unwanted = True
            if ready.done() and not ready.exception():
                _stop_portal(ready.result())
            raise

    def _run(self, ready: Future[BlockingPortal]) -> None:
        async def main() -> None:
            async with BlockingPortal() as portal:
                ready.set_result(portal)
                if not self._is_unwanted:
                    await portal.sleep_until_stopped()

        try:
            anyio.run(main)
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._over, self._has_ended = self._over or ClientClosed(), True
            for job in list(self._open):
                job.fail(self._over)

    def soon(self, work: Callable[..., object], *arguments: Any) -> Future[Any]:
        """Calls a function in the loop, and does not wait for it. Raises ClientClosed, ClientForked."""
        if self._over is not None:
            raise self._over.copy()
        try:
            future: Future[Any] = self._portal.start_task_soon(work, *arguments)
        except RuntimeError as error:
            if self._thread is threading.current_thread():
                raise
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # it came within a lock, which then could not be given back
            raise ClientClosed from error
        return future

    def _begin(self, job: _Job[Any]) -> None:
        self._open.add(job)
        job.outcome.add_done_callback(lambda _: self._open.discard(job))
        self.soon(job.run)
        if self._has_ended:  # meanwhile: perhaps nothing was left to hear of the call
            job.fail(self._over or ClientClosed())

    def call(
        self,
        work: Callable[..., Awaitable[T]],
        *arguments: Any,
        regret: Callable[[T], object] | None = None,
    ) -> T:
        """The result of a coroutine function.

        ``regret`` gets the result when the caller was interrupted just when it was there. Raises ClientClosed,
        ClientForked.
        """
        job = _Job(work, arguments)
        try:
            self._begin(job)
            return job.outcome.result()
        except CancelledError:  # the loop ended
            raise (self._over or ClientClosed()).copy() from None
        except BaseException as error:
            if not job.has_raised(error):
                self._take_back(job, regret)
            raise

    def _take_back(self, job: _Job[T], regret: Callable[[T], object] | None) -> None:
        with suppress(TickwheelError):
            self.soon(job.cancel)
            wait([job.outcome], timeout=_CANCEL_S)
        if regret is not None and job.outcome.done() and not job.outcome.exception():
            regret(job.outcome.result())

    def hold(self, manager: AbstractAsyncContextManager[Any]) -> Callable[[], None]:
        """Enters it, in a task of its own. What is returned leaves it."""
        entered: Future[None] = Future()
        leaving: list[anyio.Event] = []

        async def held() -> None:
            try:
                async with manager:
                    leaving.append(anyio.Event())
                    entered.set_result(None)
                    await leaving[0].wait()
            except BaseException as error:
                if entered.done() or not isinstance(error, Exception):
                    raise
                entered.set_exception(error)

        job = _Job(held, ())
        try:
            self._begin(job)
            wait([entered, job.outcome], return_when="FIRST_COMPLETED")
            if not entered.done():
                job.outcome.result()
            entered.result()
        except BaseException as error:
            if not (entered.done() and entered.exception() is error):
                self._take_back(job, None)
            raise

        def leave() -> None:
            self.soon(leaving[0].set)
            job.outcome.result()

        return leave

    @property
    def is_forked(self) -> bool:
        """Whether it runs in the parent of this process."""
        return isinstance(self._over, ClientForked)

    def stop(self) -> None:
        """Ends the thread."""
        if self._over is None:
            self._over = ClientClosed()
            _stop_portal(self._portal)
        self._thread.join()

    def forked(self, error: TickwheelError) -> None:
        """See ``_forks``: the thread is the parent's."""
        self._over = error
        _forks.keep(self._portal, self._thread, self._open)
        self._open = set()


class _Job(Generic[T]):
    """A call that can be cancelled."""

    def __init__(self, work: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]) -> None:
        self._work = work
        self._arguments = arguments
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self.outcome: Future[T] = Future()

    async def run(self) -> None:
        """Does it, unless it was cancelled before."""
        if self._is_cancelled:
            return
        try:
            with anyio.CancelScope() as self._scope:
                self.outcome.set_result(await self._work(*self._arguments))
            if not self.outcome.done():
                self.outcome.set_exception(ClientClosed("The call was interrupted."))
        except Exception as error:
            self.outcome.set_exception(error)
        except BaseException:
            self.outcome.cancel()
            raise

    def cancel(self) -> None:
        """Ends it, if that is not too late. Called in the loop."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        elif not self.outcome.done():  # it was not begun
            self.outcome.set_exception(ClientClosed("The call was interrupted."))

    def fail(self, error: TickwheelError) -> None:
        """The loop has ended."""
        with suppress(InvalidStateError):
            self.outcome.set_exception(error.copy())

    def has_raised(self, error: BaseException) -> bool:
        """Whether the error is that of the call."""
        outcome = self.outcome
        return outcome.done() and not outcome.cancelled() and outcome.exception() is error


def _stop_portal(portal: BlockingPortal) -> None:
    with suppress(RuntimeError):
        portal.start_task_soon(portal.stop, True)  # cancelling what is left
