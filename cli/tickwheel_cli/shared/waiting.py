"""Waiting for messages in a command, until a signal ends it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tickwheel_cli.shared.failures import TIMED_OUT, CommandError
from tickwheel_cli.shared.options import DURATION

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

B = TypeVar("B")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def waiting_options(command: _Command) -> _Command:
    """`--count` and `--timeout`: when to stop."""
    with_timeout = click.option(
        "--timeout", type=DURATION, help="Stop when no message came for so long: 10s."
    )(command)
    return click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")(
        with_timeout
    )


async def run_until_signal(*services: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Runs services until Ctrl-C or SIGTERM."""
    import anyio

    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            for service in services:
                tasks.start_soon(service)
            async for _ in signals:
                tasks.cancel_scope.cancel()
                return


class Waiting:
    """Waiting for messages, which Ctrl-C and SIGTERM end in good order: the acks still go out. A second one does not
    wait for that.

    `count` and `timeout` are what `waiting_options` give; the command counts `received` up.
    """

    def __init__(self, count: int | None, timeout: timedelta | None) -> None:
        self.count = count
        self.received = 0
        self._timeout_s = timeout.total_seconds() if timeout else None
        self._stopped = False
        self._scope: anyio.CancelScope | None = None

    @property
    def fulfilled(self) -> bool:
        """As many messages as were asked for."""
        return self.count is not None and self.received >= self.count

    def wanted(self, most: int) -> int:
        """How many more messages are wanted, up to `most`."""
        return most if self.count is None else min(self.count - self.received, most)

    async def next_batch(
        self, receive: Callable[[], Awaitable[B | None]], timeout_s: float | None = None
    ) -> B | None:
        """What `receive` returns; None when it took longer than `--timeout` or `timeout_s`, or at a signal."""
        import anyio

        with anyio.move_on_after(self._timeout_s if timeout_s is None else timeout_s) as self._scope:
            return None if self._stopped else await receive()
        return None

    @asynccontextmanager
    async def signals(self) -> AsyncIterator[None]:
        """A block that signals stop."""
        import anyio

        async with anyio.create_task_group() as tasks:
            await tasks.start(self._watch, tasks.cancel_scope)
            yield
            tasks.cancel_scope.cancel()

    async def _watch(self, everything: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        import anyio

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self._stopped:
                    everything.cancel()
                self._stopped = True
                if self._scope is not None:
                    self._scope.cancel()

    def check_count(self) -> None:
        """Raises CommandError when fewer messages came than were asked for, unless a signal ended the wait."""
        if self.count is not None and not self.fulfilled and not self._stopped:
            raise CommandError(
                "timed_out",
                f"{self.received} of {self.count} messages came before {self._timeout_s:g} s passed without one",
                exit_code=TIMED_OUT,
            )
