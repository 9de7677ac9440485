"""How a message is given back: after which delay, why, and whether that was an attempt, or the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tickwheel.client.checks import flag, text
from tickwheel.client.times import Delay, wait_ms
from tickwheel.protocol.bodies.settling import Nack
from tickwheel.protocol.errors import BadArgument

_ERROR_CHARS: Final = 500


class GiveBack(NamedTuple):
    """What a nack says, whatever messages it is for."""

    delay_ms: int | None
    error: str
    give_up: bool
    uncounted: bool

    def request(self, group_id: int, ids: Sequence[int], epochs: Sequence[int]) -> Nack:
        """The request for these messages of a group."""
        return Nack(
            group_id=group_id,
            ids=list(ids),
            epochs=list(epochs),
            delay_ms=self.delay_ms,
            error=self.error,
            give_up=self.give_up,
            uncounted=self.uncounted,
        )


def give_back(
    delay: Delay | None = None,
    error: str = "",
    delay_ms: int | None = None,
    *,
    give_up: bool = False,
    uncounted: bool = False,
) -> GiveBack:
    """The arguments of a nack. Raises BadTime, BadArgument."""
    given_ms = wait_ms(delay, delay_ms)
    error = text(error, "error")[:_ERROR_CHARS]
    give_up, uncounted = flag(give_up, "give_up"), flag(uncounted, "uncounted")
    if give_up and (uncounted or given_ms is not None):
        raise BadArgument(
            "give_up goes with no delay and not with uncounted: the message is not delivered again.",
            advice="Leave give_up out, or the others.",
        )
    if uncounted and error:
        raise BadArgument(
            "uncounted goes with no error: what was no attempt has not failed.",
            advice="Leave one of them out.",
        )
    return GiveBack(given_ms, error, give_up, uncounted)
