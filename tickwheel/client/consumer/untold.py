"""Acks that no caller waits for and that were not made, or did not count: a flush and the log tell of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Final

from tickwheel.client.conversation import Conversation
from tickwheel.protocol.errors import AckRefused, ClientClosed, TickwheelError

_REFUSED_REMEMBERED_MAX: Final = 10_000
_WARNED_EVERY_S: Final = 10.0

logger = logging.getLogger("tickwheel")

Refusal = tuple[int, type[AckRefused]]
"""A message's id, and why its ack does not count."""


class Untold:
    """The log has a line for the first of them; of acks that follow within ten seconds it has only the number."""

    def __init__(self, session: Conversation, topic: str, group_name: str) -> None:
        self.refused: dict[int, type[AckRefused]] = {}
        """Acks that did not count, by ids, until a caller has heard of them."""
        self._session = session
        self._place = topic, group_name
        self._lost: TickwheelError | None = None
        """Why acks were not made, until a caller has heard of it."""
        self._refused_count = 0
        self._lost_count = 0
        self._lost_why: TickwheelError | None = None
        self._next_warning = {True: -math.inf, False: -math.inf}
        """By whether they were refused, or else lost."""

    def remember(self, refusals: Iterable[Refusal]) -> None:
        """For the next flush."""
        if len(self.refused) < _REFUSED_REMEMBERED_MAX:
            self.refused.update(refusals)

    def take_lost(self) -> TickwheelError | None:
        """Why acks were not made since it was asked last; None: all were."""
        lost, self._lost = self._lost, None
        return lost

    def refuse(self, refusals: Sequence[Refusal]) -> None:
        """These acks did not count."""
        if not refusals:
            return
        self._refused_count += len(refusals)
        if not self._may_warn(is_refused=True):
            return
        message_id, error = refusals[0]
        rest = self._refused_count - 1
        more = f" (and {rest:,} more acks)" if rest else ""
        told = "the ack of message %d of %r in group %r was refused: %s%s. %s"
        logger.warning(told, message_id, *self._place, error.code, more, error.advice)
        self._refused_count = 0

    def lose(self, count: int, error: TickwheelError) -> None:
        """So many acks were not made."""
        if not count:
            return
        self._lost = self._lost_why = error
        self._lost_count += count
        if self._may_warn(is_refused=False):
            self._warn_of_lost()

    def _may_warn(self, *, is_refused: bool) -> bool:
        """Otherwise the session comes back to it."""
        now = self._session.waits.now()
        if now < self._next_warning[is_refused]:
            self._session.untold[self] = None
            return False
        self._next_warning[is_refused] = now + _WARNED_EVERY_S
        return True

    def _warn_of_lost(self) -> None:
        why = self._lost_why
        is_closed = isinstance(why, ClientClosed) and self._session.is_closed
        text = "the client was closed before the broker had answered" if is_closed else why
        logger.warning("%d acks of %r in group %r were not made: %s", self._lost_count, *self._place, text)
        self._lost_count = 0

    def tell(self, *, is_over: bool = True) -> None:
        """The rest. Unless ``is_over``: if the last line is long enough ago."""
        now = self._session.waits.now()
        if self._refused_count and (is_over or now >= self._next_warning[True]):
            logger.warning("%d more acks of %r in group %r were refused", self._refused_count, *self._place)
            self._refused_count, self._next_warning[True] = 0, now + _WARNED_EVERY_S
        if self._lost_count and (is_over or now >= self._next_warning[False]):
            self._warn_of_lost()
            self._next_warning[False] = now + _WARNED_EVERY_S
        if not self._refused_count and not self._lost_count:
            self._session.untold.pop(self, None)
