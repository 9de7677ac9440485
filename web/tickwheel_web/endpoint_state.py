"""What becomes of the messages of a push endpoint, as endpoints and groups tell it."""

from __future__ import annotations

from tickwheel import stats
from tickwheel.protocol.endpoint_states import StateName
from tickwheel_web.answers import Answer, answer


@answer(
    stats.EndpointState,
    fields=("name", "reason", "since", "next_try"),
    nullable=("reason",),
    sources={"next_try": "next"},
    kinds={"name": StateName},
)
class EndpointState(Answer, frozen=True):
    """What becomes of an endpoint's messages now; tests do not count. `delivering`: its last answer was a success, or
    there was none yet; `failing`: its last answer was a failure (`reason`), the first of those in a row at `since`, and
    it is tried again at `next_try`; `not_served`: nothing is sent to it, for a `reason`; `paused`: it is disabled."""
