"""Waiting for messages in a command, until a signal ends it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

B = TypeVar("B", covariant=True)


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
