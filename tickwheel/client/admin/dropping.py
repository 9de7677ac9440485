"""Dropping messages that are done and kept elsewhere, as the archive asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tickwheel.client.checks import listed, one_id, shown, whole
from tickwheel.client.requests import Requests
from tickwheel.client.times import Moment, moment_ms
from tickwheel.protocol.bodies.admin import Drop, DropOk
from tickwheel.protocol.errors import BadArgument
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST


class LogPlace(msgspec.Struct, frozen=True):
    """The broker's log: its number (16 hexadecimal digits), and the data directory, as its machine names it."""

    log_id: str
    directory: str


class DropResult(msgspec.Struct, frozen=True):
    """How many messages were dropped now, how many were gone already, and (first id, count) of those that stay: some
    group is not done with them, or was done too late."""

    dropped: int
    gone: int
    kept: list[tuple[int, int]]


def _checked_runs(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    for index, run in enumerate(listed(runs, "runs", "[(17, 3)]")):
        if not isinstance(run, tuple | list) or len(run) != 2:
            raise BadArgument(
                f"runs[{index}] is {shown(run)}.", advice="Give a first id and a count: (17, 3)."
            )
        name = f"runs[{index}]"
        found.append((one_id(run[0], name), whole(run[1], name, 1, MAX_IDS_A_REQUEST)))
    return found


class DropRequests(Requests):
    async def log_place(self) -> LogPlace:
        """Which log the broker has, and where."""
        found = await self._answer(Drop(runs=[]), DropOk)
        return LogPlace(found.log_id, found.directory)

    async def drop(self, log_id: str, runs: Sequence[tuple[int, int]], *, done_before: Moment) -> DropResult:
        """Forgets messages for good that every group was done with before a time, whatever ``purge_after`` says: they
        are gone for all groups, and the next purge gives their space back. ``runs``: first id and count, at most
        100,000 ids together. ``log_id``: of the log that they are in; another broker refuses them. Asking again changes
        nothing. Raises OtherLog, BadArgument, DiskFull."""
        runs = _checked_runs(runs)
        if sum(count for _, count in runs) > MAX_IDS_A_REQUEST:
            raise BadArgument(
                f"More than {MAX_IDS_A_REQUEST:,} messages at once.", advice="Drop them in parts."
            )
        request = Drop(log_id=log_id, runs=list(runs), done_before_ms=moment_ms(done_before, "done_before"))
        found = await self._answer(request, DropOk)
        return DropResult(found.dropped, found.gone, found.kept)
