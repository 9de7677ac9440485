"""Waiting for messages in a command, until a signal ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from tickwheel_cli.shared.failures import TIMED_OUT, CommandError
from tickwheel_cli.shared.options import parsed_by
from tickwheel_cli.shared.times import parse_duration

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

B = TypeVar("B", covariant=True)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def waiting_options(command: _Command) -> _Command:
    """`--count` and `--timeout`: when to stop."""
    with_timeout = click.option(
        "--timeout",
        metavar="DURATION",
        callback=parsed_by(parse_duration),
        help="Stop when no message came for so long: 10s.",
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


class Source(Protocol[B]):
    """Where batches come from: a subscription of a topic, or the stream of a message table."""

    async def receive_batch(self) -> B | None:
        """The next batch; None at the end."""


class Waiting:
    """Waiting for messages, which Ctrl-C and SIGTERM end in good order: the acks still go out. A second one does not
    wait for that.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._scope: anyio.CancelScope | None = None

    async def next_batch(self, source: Source[B], timeout_s: float | None) -> B | None:
        """The next batch; None when none came in time, or at a signal."""
        import anyio

        with anyio.move_on_after(timeout_s) as self._scope:
            return None if self.stopped else await source.receive_batch()
        return None

    async def watch(self, everything: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        """Waits for signals."""
        import anyio

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self.stopped:
                    everything.cancel()
                self.stopped = True
                if self._scope is not None:
                    self._scope.cancel()

    def check_count(self, received: int, count: int | None, timeout_s: float | None) -> None:
        """Raises CommandError when fewer messages came than were asked for, unless a signal ended the wait."""
        if count is not None and received < count and not self.stopped:
            raise CommandError(
                "timed_out",
                f"{received} of {count} messages came before {timeout_s:g} s passed without one",
                exit_code=TIMED_OUT,
            )
