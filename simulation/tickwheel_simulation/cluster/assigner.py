"""Which node of a cluster owns the log, by the word of a run or a test: one node, several, or none."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Assigner:
    """Says to one node that it is to own the log, also if it has not joined; see
    `tickwheel_broker.sharedlog.node.Membership`."""

    def __init__(self) -> None:
        self.has_joined = False
        self.others: Callable[[], bool] = lambda: False
        """Whether another node may be chosen."""
        self._is_chosen = self._is_stopping = False
        self._changed = trio.Event()

    def choose(self, is_chosen: bool) -> None:
        """From now on it is told so, or not."""
        self._is_chosen = is_chosen
        self._change()

    def stop(self, is_stopping: bool) -> None:
        """The node is to stop in order: it is not chosen meanwhile."""
        self._is_stopping = is_stopping
        self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    @property
    def _is_owner(self) -> bool:
        return self._is_chosen and not self._is_stopping

    def joined(self) -> None:
        """See `Membership`."""
        self.has_joined = True

    def left(self) -> None:
        """See `Membership`."""
        self.has_joined = False

    async def wait_chosen(self) -> None:
        """See `Membership`."""
        while not self._is_owner:
            await self._changed.wait()

    async def wait_not_chosen(self) -> None:
        """See `Membership`."""
        while self._is_owner:
            await self._changed.wait()

    async def has_others(self) -> bool:
        """See `Membership`."""
        return self.others()
