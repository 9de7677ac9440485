"""Topics, dead letters, and looking inside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Unpack

import msgspec

from tickwheel.client.admin.changes import Where, filter_fields
from tickwheel.client.admin.groups import StoredMessage, standing
from tickwheel.client.admin.vitess import parse_vitess
from tickwheel.client.checks import flag, listed, many_ids, one_id, shown, text, whole, whole_or_none
from tickwheel.client.columns import check_name
from tickwheel.client.options import TopicSettings
from tickwheel.client.requests import Requests
from tickwheel.client.times import duration_ms, whole_ms
from tickwheel.protocol.bodies.admin import (
    Browse,
    DeleteTopic,
    DeleteTopicOk,
    GetTopic,
    Purge,
    PurgeOk,
    ReplayDead,
    ReplayDeadOk,
    SetTopic,
)
from tickwheel.protocol.bodies.requests import GetStats, GetTopics, GetWheel
from tickwheel.protocol.errors import BadArgument, BadTopicSettings
from tickwheel.protocol.limits import MAX_HORIZONS, MAX_ID, MAX_TIME_MS
from tickwheel.stats import PurgeResult, Stats, TopicInfo, Topics, TopicStats, Wheel

DURATIONS: Final = ("ack_wait", "min_backoff", "max_backoff", "purge_after", "retention", "spread")
_PURGE_WAIT_MS: Final = 2_000
NUMBERS: Final = ("max_attempts", "batch_size", "cache_size", "priority", "rate", "max_body_bytes")


class BrowsedMessage(StoredMessage, frozen=True, kw_only=True):
    """A message as it lies in its topic."""

    groups: list[dict[str, Any]]

    @property
    def standing(self) -> str:
        """As ``MessageInfo.standing``."""
        return standing(self.state, [one["state"] for one in self.groups])


class _Browsed(msgspec.Struct, frozen=True):
    messages: list[BrowsedMessage]


def wire_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their wire names: durations become ms. Raises BadTopicSettings, BadTime."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in DURATIONS:
            found[f"{name}_ms"] = duration_ms(value, name, in_ms=f"{name}_ms")
        elif name.removesuffix("_ms") in DURATIONS:
            found[name] = whole_ms(value, name)
        elif name in NUMBERS:
            found[name] = _number(value, name)
        else:
            known = ", ".join((*DURATIONS, *NUMBERS))
            raise BadTopicSettings(f"A topic has no setting {name!r}.", advice=f"Use {known}.")
    return found


def _number(value: Any, name: str) -> int | float:
    number = value if type(value) is float else whole_or_none(value)
    if number is None or not abs(number) <= MAX_ID:  # NaN is not
        raise BadTopicSettings(f"{name} is {shown(value)}.", advice="Use a number.")
    return number


def _wire_names(unset: Sequence[str]) -> list[str]:
    names = [text(name, "unset") for name in listed(unset, "unset", '["rate"]')]
    return [f"{name}_ms" if name in DURATIONS else name for name in names]


class TopicRequests(Requests):
    """Topics, dead letters, statistics."""

    async def create_topic(
        self, name: str, /, *, shards: int = 0, vitess: str | None = None, **settings: Unpack[TopicSettings]
    ) -> TopicInfo:
        """Creates a topic. Raises TopicExists, BadTopicSettings, BadTopicName, TooManyTopics.

        To create a topic that is there with exactly these settings succeeds and changes nothing; if somebody has paused
        it, it stays paused.

        Durations (a timedelta, or with _ms behind the name an int): ack_wait, min_backoff, max_backoff, purge_after,
        retention, spread. Numbers: max_attempts, batch_size, cache_size, priority, rate (deliveries a second to each
        group), max_body_bytes.
        ``vitess``: the comment of a Vitess message table; settings that are given as well have precedence.
        ``shards``: 2 to 256 parts by the hash of the key; it cannot be changed later.
        """
        return await self._set(name, vitess, {**settings}, create=True, shards=shards)

    async def set_topic(
        self,
        name: str,
        /,
        *,
        unset: Sequence[str] = (),
        vitess: str | None = None,
        **settings: Unpack[TopicSettings],
    ) -> TopicInfo:
        """Changes settings of a topic, all or none, at once. Those of ``unset`` are the broker's again.

        Raises UnknownTopic, BadTopicSettings.
        """
        return await self._set(name, vitess, {**settings}, unset=_wire_names(unset))

    async def pause_topic(self, name: str) -> TopicInfo:
        """Delivers nothing of the topic until ``resume_topic``; messages still come in and become due."""
        return await self._set(name, None, {}, paused=True)

    async def resume_topic(self, name: str) -> TopicInfo:
        """Ends ``pause_topic``."""
        return await self._set(name, None, {}, paused=False)

    async def _set(
        self, name: str, vitess: str | None, settings: dict[str, Any], **options: Any
    ) -> TopicInfo:
        check_name(name)
        values = {**(parse_vitess(vitess) if vitess is not None else {}), **wire_settings(settings)}
        return await self._ask(SetTopic(topic=name, settings=values, **options), TopicInfo)

    async def topic(self, name: str) -> TopicInfo:
        """A topic's settings, its own and those that hold. Raises UnknownTopic."""
        check_name(name)
        return await self._ask(GetTopic(topic=name), TopicInfo)

    async def delete_topic(self, name: str) -> int:
        """Deletes a topic with all its messages and groups; how many messages it had. Raises UnknownTopic,
        TopicInUse."""
        check_name(name)
        return (await self._answer(DeleteTopic(topic=name), DeleteTopicOk)).messages

    async def browse(
        self,
        topic: str,
        *,
        after_id: int = 0,
        limit: int = 100,
        max_body_bytes: int = 65_536,
        soonest: bool = False,
        after_ms: int = 0,
        **where: Unpack[Where],
    ) -> list[BrowsedMessage]:
        """Messages of a topic in order of their ids, without taking them: at most ``limit``, and as many as fit into
        one answer. Those behind the last one come with its id as ``after_id``, until there are none.

        ``soonest``: in order of their times, for which the broker looks at the whole topic; those behind the last one
        come with its ``deliver_at_ms`` as ``after_ms`` and its id as ``after_id``. A broker from before refuses it.

        The filter is that of ``cancel_where``. Bodies are cut to ``max_body_bytes``.
        """
        check_name(topic)
        after_ms = whole(after_ms, "after_ms", 0, MAX_TIME_MS)
        after_id = one_id(after_id, "after_id")
        request = Browse(
            topic=topic,
            after_id=[after_ms, after_id] if flag(soonest, "soonest") else after_id,
            limit=limit,
            max_body_bytes=max_body_bytes,
            **filter_fields(where),
        )
        return (await self._ask(request, _Browsed)).messages

    async def replay_dead(
        self, topic: str, *, ids: Sequence[int] | None = None, limit: int = 10_000
    ) -> dict[str, int]:
        """Gives dead letters of ``topic`` back to the groups that gave them up: all, or those with these ``ids`` (in
        ``<topic>.dead``). Counts of ``replayed``, ``sent_again`` (the original was purged), ``not_dead`` (its group has
        it again, or is done with it: only the letter goes), ``ended`` (it was cancelled or has expired: the letter
        stays) and ``not_found``.
        """
        check_name(topic)
        chosen = None if ids is None else many_ids(ids)
        return (await self._answer(ReplayDead(topic=topic, ids=chosen, limit=limit), ReplayDeadOk)).results

    async def purge(self, *, dry_run: bool = False, wait: bool = True) -> PurgeResult:
        """Gives the disk space of messages that are done back now: acked or dead in every group for ``purge_after``,
        cancelled, expired, or of deleted topics. The broker does it by itself when it is worth it. ``dry_run``: only
        says what would be purged. Without ``wait`` it goes on after the answer. Raises DiskFull."""
        wait_ms = _PURGE_WAIT_MS if flag(wait, "wait") or flag(dry_run, "dry_run") else 0
        found = await self._answer(Purge(dry_run=dry_run, wait_ms=wait_ms), PurgeOk)
        while wait_ms and not found.is_done:
            found = await self._answer(Purge(run=found.run, wait_ms=wait_ms), PurgeOk)
        return PurgeResult(**msgspec.structs.asdict(found))

    async def stats(self) -> Stats:
        """The broker's counters."""
        return await self._ask(GetStats(), Stats)

    async def topics(self) -> list[TopicStats]:
        """The topics and their groups."""
        return (await self._ask(GetTopics(), Topics)).topics

    async def wheel(self, *, horizons: Sequence[timedelta] | None = None) -> Wheel:
        """What is due when, counted exactly: within a second, a minute, an hour, a day, a week, a month, and at all; or
        within each of ``horizons``, up to 64 timedeltas from now."""
        if horizons is None:
            return await self._ask(GetWheel(), Wheel)
        return await self._ask(GetWheel(horizons=horizons_ms(horizons)), Wheel)


def horizons_ms(horizons: Sequence[timedelta]) -> list[int]:
    """As they go on the wire. Raises BadArgument, BadTime."""
    given = listed(horizons, "horizons", "[timedelta(hours=24)]")
    found = [duration_ms(one, f"horizons[{index}]") for index, one in enumerate(given)]
    if not 1 <= len(found) <= MAX_HORIZONS:
        raise BadArgument(f"There are {len(found):,} horizons.", advice=f"Give 1 to {MAX_HORIZONS}.")
    return found
