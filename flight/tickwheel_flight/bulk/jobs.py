"""Bulk jobs of writers who do not see the data directory. The broker judges what it is asked, by the writer's own
token; the files are `Staging`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tickwheel import JobPlan
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.jobs import (
    ADOPT_JOB,
    DROP_JOB,
    PLAN_JOB,
    RESERVE_IDS,
    AdoptAnswer,
    AdoptAsked,
    DropAsked,
    PlanAsked,
    ReserveAsked,
)
from tickwheel.errors import Forbidden
from tickwheel.protocol.grants import Granted
from tickwheel_flight.bulk.staging import Staging
from tickwheel_flight.callers import connected

ACTIONS: Final = {
    PLAN_JOB: "Plan a job of bulk scheduling, and begin a run of it: what `tickwheel.arrow.jobs.PlanAsked` says in.",
    RESERVE_IDS: "Message numbers for a job that is written: how many in, the first out.",
    ADOPT_JOB: "Have the broker take in the run of a job whose manifest was put, all of it or nothing.",
    DROP_JOB: "Remove what a run of a job has put.",
}
_SHOWN_CHARS: Final = 200


class Jobs:
    """Used by many threads at once."""

    def __init__(self, url: str | None, staging: Staging) -> None:
        """``url``: of the broker."""
        self._url = url
        self.staging = staging
        self._actions: dict[str, tuple[type[Any], Callable[[Any, str, str], Any]]] = {
            PLAN_JOB: (PlanAsked, self._plan),
            RESERVE_IDS: (ReserveAsked, self._reserve_ids),
            ADOPT_JOB: (AdoptAsked, self._adopt),
            DROP_JOB: (DropAsked, self._drop),
        }

    def act(self, action: str, packed: bytes, token: str, address: str) -> Any:
        """What an action of `ACTIONS` answers to somebody with this token, who was judged by `check_writer`. Raises
        SourceError, and what the broker says."""
        kind, work = self._actions[action]
        try:
            asked = msgspec.json.decode(packed, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(
                f"What {action} takes cannot be read: {str(error)[:_SHOWN_CHARS]}.",
                advice="Send a JSON object with the fields that docs/how-to/arrow.md lists.",
            ) from None
        return work(asked, token, address)

    def _plan(self, asked: PlanAsked, token: str, address: str) -> JobPlan:
        with connected(self._url, token, address) as client:
            plan = client.plan_job(asked.topics, job=asked.job)
        if asked.run is not None and plan.adopted is None:
            self.staging.begin(asked.job, asked.run)
        return plan

    def _reserve_ids(self, asked: ReserveAsked, token: str, address: str) -> int:
        with connected(self._url, token, address) as client:
            return client.reserve_ids(asked.count)

    def _adopt(self, asked: AdoptAsked, token: str, address: str) -> AdoptAnswer:
        self.staging.complete(asked.job, asked.run)
        with connected(self._url, token, address) as client:
            return AdoptAnswer.of_broker(client, asked)

    def _drop(self, asked: DropAsked, token: str, address: str) -> bool:
        self.staging.drop(asked.job, asked.run)
        return True


def check_writer(granted: Granted) -> None:
    """Raises Forbidden for who may not write the files of a job, which the broker takes as they are."""
    if not granted.may_everywhere("publish"):
        raise Forbidden(
            "The token may not publish to all topics, as bulk jobs need.",
            advice="Have it granted: publish:*.",
        )
