"""What becomes of endpoints' messages now, as the processes of `tickwheel push` tell it while they are connected.

Nothing of it is kept on disk: who has told it is gone with the broker, and tells it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Final, get_args

from tickwheel.protocol.bodies.endpoints import Endpoint
from tickwheel.protocol.endpoint_states import EndpointState, StateName, ToldName, ToldState

NOBODY: Final = EndpointState(name="not_served", reason="no `tickwheel push` sends to it")
_DELIVERING: Final = EndpointState(name="delivering")
_WORST: Final[tuple[ToldName, ...]] = ("failing", "delivering", "not_served")
"""Of what several processes tell of an endpoint the first of these counts: who never had to ask it does not know that
it fails, and what one of them refuses another may send."""
STATES: Final[tuple[StateName, ...]] = get_args(StateName)


class EndpointStates:
    """By who has told them."""

    def __init__(self) -> None:
        self._told: dict[Hashable, dict[str, EndpointState]] = {}

    def knows(self, teller: Hashable) -> bool:
        """Whether it has told anything."""
        return teller in self._told

    def tell(self, teller: Hashable, states: Iterable[ToldState]) -> None:
        """What it has told of other endpoints stays."""
        told = self._told.setdefault(teller, {})
        for one in states:
            told[one.endpoint] = EndpointState(
                name=one.name, reason=one.reason, since_ms=one.since_ms, next_ms=one.next_ms
            )

    def forget(self, teller: Hashable) -> None:
        """It is gone."""
        self._told.pop(teller, None)

    def forget_endpoint(self, name: str) -> None:
        """It is deleted: nothing of it holds for an endpoint that has its name later."""
        for states in self._told.values():
            states.pop(name, None)

    def of(self, endpoint: Endpoint, *, is_read: bool) -> EndpointState:
        """The one state of an endpoint. `is_read`: somebody takes messages out of its group, perhaps an older process
        that tells nothing."""
        if not endpoint.enabled:
            return EndpointState(
                name="paused", reason=endpoint.disabled_reason, since_ms=endpoint.disabled_ms
            )
        told = [states[endpoint.name] for states in self._told.values() if endpoint.name in states]
        if not told:
            return _DELIVERING if is_read else NOBODY
        return min(told, key=lambda state: (_WORST.index(state.name), state.since_ms))


def counted(states: Iterable[EndpointState]) -> dict[str, float]:
    """How many endpoints there are in each state."""
    counts = Counter(state.name for state in states)
    return {name: float(counts[name]) for name in STATES}
