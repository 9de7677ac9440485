"""Dead letters: what groups have given up, by topic and error; and single ones."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from tickwheel import BrowsedMessage, Client
from tickwheel.errors import UnknownTopic
from tickwheel.protocol.limits import DEAD_SUFFIX, dead_topic
from tickwheel_web.consuming.letters import letter_of
from tickwheel_web.consuming.shapes import DeadLetter
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.shapes import encode

PART: Final = 200
"""Letters asked for at once, and shown on a page."""
MAX_TOPICS: Final = 20
MAX_LETTERS: Final = 1_000
"""That one action is about."""
_MAX_BODY_BYTES: Final = 64 * 1024


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Of one topic, and of those with one error; without a topic, all that there are."""

    topic: str = ""
    error: str = ""
    """Its number, as ``number_of`` has it."""
    after: str = ""


class Kind(NamedTuple):
    """Letters of one topic with the same error."""

    topic: str
    error: str
    number: str
    letters: int
    first: datetime
    last: datetime
    groups: list[str]

    @property
    def address(self) -> str:
        """Of the page with them."""
        return f"/dead?{urlencode({'topic': self.topic, 'error': self.number})}"


def number_of(error: str) -> str:
    """Errors may be long, and have any characters."""
    return hashlib.sha256(error.encode("utf-8", "surrogatepass")).hexdigest()[:16]


async def dead(viewed: Viewed) -> Response:
    """All topics that have some, or one of them."""
    topic = viewed.query.topic
    if topic:
        return await _of_topic(viewed, topic)
    found = [
        one.name.removesuffix(DEAD_SUFFIX)
        for one in await viewed.client.topics()
        if one.name.endswith(DEAD_SUFFIX) and viewed.rights.sees(f"query:{one.name}")
    ]
    kinds: list[Kind] = []
    cut: list[str] = []
    for name in found[:MAX_TOPICS]:
        letters = await part(viewed.client, name)
        kinds += kinds_of(name, letters)
        cut += [name] if await _has_more(viewed.client, name, letters) else []
    kinds.sort(key=lambda one: one.last, reverse=True)
    return viewed.page(
        "messages/dead.html", kinds=kinds, cut=cut, part=PART, others=max(0, len(found) - MAX_TOPICS)
    )


async def _of_topic(viewed: Viewed, topic: str) -> Response:
    after, number = whole(viewed.query.after or "0", "after"), viewed.query.error
    letters = await part(viewed.client, topic, after)
    kinds = kinds_of(topic, letters)
    shown = [one for one in letters if not number or number_of(one.error) == number]
    asked = {"topic": topic, **({"error": number} if number else {})}
    is_full = await _has_more(viewed.client, topic, letters)
    return viewed.page(
        "messages/letters.html",
        topic=topic,
        letters=shown,
        kinds=kinds,
        number=number,
        error=next((one.error for one in kinds if one.number == number), ""),
        following=f"/dead?{urlencode({**asked, 'after': letters[-1].id})}" if is_full else None,
        is_first=not after,
        most=MAX_LETTERS,
        may_change=viewed.rights.may(f"consume:{topic}"),
        twin=f"/v1/topics/{quote(topic, safe='')}/dead",
    )


async def _has_more(client: Client, topic: str, found: Sequence[DeadLetter]) -> bool:
    """Whether there are more behind these: an answer has as many as have room in it."""
    if not found:
        return False
    after_id = int(found[-1].id)
    return bool(await client.browse(dead_topic(topic), after_id=after_id, limit=1, max_body_bytes=0))


def kinds_of(topic: str, letters: Sequence[DeadLetter]) -> list[Kind]:
    """Those that there are most of come first."""
    by_error: dict[str, list[DeadLetter]] = {}
    for one in letters:
        by_error.setdefault(one.error, []).append(one)
    found = [
        Kind(
            topic=topic,
            error=error,
            number=number_of(error),
            letters=len(those),
            first=min(one.dead_at for one in those),
            last=max(one.dead_at for one in those),
            groups=sorted({one.group or "" for one in those} - {""}),
        )
        for error, those in by_error.items()
    ]
    return sorted(found, key=lambda one: -one.letters)


async def part(
    client: Client, topic: str, after_id: int = 0, *, max_body_bytes: int | None = None
) -> list[DeadLetter]:
    """In order of their ids. None of a topic that never had one. Raises UnknownTopic."""
    try:
        found: Sequence[BrowsedMessage] = await client.browse(
            dead_topic(topic), after_id=after_id, limit=PART, max_body_bytes=max_body_bytes or 0
        )
    except UnknownTopic:
        await client.topic(topic)
        return []
    whole = [max_body_bytes is not None and len(one.body) == one.body_bytes for one in found]
    return [letter_of(one, has_body=has_body) for one, has_body in zip(found, whole, strict=True)]


async def export(viewed: Viewed) -> Response:
    """All of them, a line of JSON for each; bodies only where they may be shown, and up to 64 KiB."""
    topic, hiding = viewed.query.topic, viewed.site.hiding
    max_body_bytes = None if hiding.bodies else _MAX_BODY_BYTES
    first = await part(viewed.client, topic, max_body_bytes=max_body_bytes)

    async def lines() -> AsyncIterator[bytes]:
        """What goes wrong on the way breaks the download off: a part of it never looks like all of it."""
        letters = first
        while letters:
            for one in letters:
                headers = None if one.headers is None else hiding.shown(one.headers)
                yield encode(msgspec.structs.replace(one, headers=headers))
            letters = await part(viewed.client, topic, int(letters[-1].id), max_body_bytes=max_body_bytes)

    return viewed.download(lines(), "dead-letters.ndjson")
