"""Give dead letters back to the groups that gave them up, at once or one after the other; or drop them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from starlette.responses import Response

from tickwheel import Client
from tickwheel.errors import BadArgument, TickwheelError
from tickwheel.protocol.limits import dead_topic
from tickwheel.protocol.units import format_duration
from tickwheel_web.consuming.shapes import DeadLetter
from tickwheel_web.dashboard.acting import need_typed, told
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.messages.changing import MAX_UNTYPED
from tickwheel_web.dashboard.messages.letters import MAX_LETTERS, PART, number_of, part
from tickwheel_web.dashboard.notices import Tone, command
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.problems import detail_of
from tickwheel_web.shapes import duration_of

_MAX_RATE: Final = 1_000_000
_MAX_NAMED: Final = 20
"""Ids that a command names; of more it says how many."""
_GONE: Final = ("redelivered", "waiting", "already_acked")
"""Of an original: its letter has no use any more."""
_MS: Final = timedelta(milliseconds=1)


async def act(viewed: Viewed) -> Response:
    """The field ``action`` says what. Raises BadArgument."""
    topic, action = viewed.field("topic"), viewed.field("action")
    if not topic or action not in ("replay", "drop"):
        raise BadArgument("There is no topic, or no such action.")
    return await (_drop if action == "drop" else _replay)(viewed, topic)


async def _drop(viewed: Viewed, topic: str) -> Response:
    need_typed(viewed, topic)
    found = await viewed.client.cancel_where(dead_topic(topic), stop=True)
    text = f"{sum(found.results.values()):,} dropped."
    return viewed.done("/dead", text, ["dead", "purge", topic, "--yes"], topic=topic)


async def _replay(viewed: Viewed, topic: str) -> Response:
    delay = duration_of(viewed.field("delay") or "0", "The delay") or timedelta(0)
    per_s = whole(viewed.field("rate"), "The rate", 1, _MAX_RATE) if viewed.field("rate") else 0
    letters, has_more = await _chosen(viewed, topic)
    asked = {"topic": topic, **({"error": viewed.field("error")} if viewed.field("error") else {})}
    if not letters:
        text = "No letter is selected, or none is left. Nothing was changed."
        return viewed.done("/dead", text, tone="warn", **asked)
    count, ids = str(len(letters)), [one.id for one in letters]
    if len(letters) > MAX_UNTYPED and viewed.field("typed").replace(",", "") != count:
        return viewed.page(
            "messages/replay.html",
            status=400 if viewed.field("typed") else 200,
            asked_for={**asked, "delay": viewed.field("delay"), "rate": viewed.field("rate")},
            topic=topic,
            count=len(letters),
            has_more=has_more,
            ids=ids,
        )
    more = f" There are more: {MAX_LETTERS:,} are replayed at once." if has_more else ""
    if delay or per_s:
        text, line, tone = await later(viewed.client, letters, delay, per_s)
        return viewed.done("/dead", text + more, line, tone, **asked)
    results = await viewed.client.replay_dead(topic, ids=[int(one) for one in ids], limit=MAX_LETTERS)
    words = ids if len(ids) <= _MAX_NAMED else ["--limit", count]
    text, tone = told(results)
    return viewed.done("/dead", f"{text}.{more}", ["dead", "replay", topic, *words], tone, **asked)


async def _chosen(viewed: Viewed, topic: str) -> tuple[list[DeadLetter], bool]:
    """Those that were selected, or all, or all with an error, up to a bound; and whether there are more."""
    is_all, number = viewed.field("scope") == "all", viewed.field("error")
    wanted = {whole(one, "One of the selected ids") for one in viewed.fields("letter")}
    if not is_all and not wanted:
        return [], False
    after = 0 if is_all else max(0, min(wanted) - 1)
    found: list[DeadLetter] = []
    while letters := await part(viewed.client, topic, after):
        if is_all:
            found += [one for one in letters if not number or number_of(one.error) == number]
        else:
            found += [one for one in letters if int(one.id) in wanted]
        is_complete = not is_all and len(found) == len(wanted)
        if is_complete or len(found) > MAX_LETTERS or len(letters) < PART:
            break
        after = int(letters[-1].id)
    return found[:MAX_LETTERS], len(found) > MAX_LETTERS


async def later(
    client: Client, letters: Sequence[DeadLetter], delay: timedelta, per_s: int
) -> tuple[str, str, Tone]:
    """The broker replays letters at once only. So their originals are delivered again, so many each second, and then
    the letters dropped: two requests for each second and group. Says what became of each, with which commands, and
    where it stopped. A letter that is left between the two says, when it is replayed, that it is not dead."""
    known = [one for one in letters if one.group and one.original]
    steps: dict[tuple[str, timedelta], list[DeadLetter]] = {}
    for index, one in enumerate(known):
        due = delay + timedelta(seconds=index // per_s if per_s else 0)
        steps.setdefault((one.group or "", due), []).append(one)
    counts = Counter({"no_letter": len(letters) - len(known)})
    stopped = ""
    for (group, due), those in steps.items():
        try:
            originals = [int(one.original or 0) for one in those]
            results = await client.redeliver(ids=originals, group=group, delay=due)
            counts.update(map(str, results))
            done = [int(one.id) for one, result in zip(those, results, strict=True) if result in _GONE]
            if done:
                await client.cancel(ids=done, stop=True)
        except TickwheelError as error:
            stopped = (
                f" It stopped there: {detail_of(error)} Of group {group} up to {len(those)} letters may be left whose "
                "messages were delivered again. All others are as they were."
            )
            break
    text, tone = told(counts)
    told_how = "" if len(steps) < 2 else f" It took {len(steps)} parts; this is the first one:"
    line = _line(*next(iter(steps.items()))) if steps else ""
    return f"{text}.{stopped}{told_how}", line, "bad" if stopped else tone


def _line(how: tuple[str, timedelta], letters: Sequence[DeadLetter]) -> str:
    """What does the same with letters of one group, for a shell."""
    group, due = how
    again = [str(one.original) for one in letters] + ["--group", group, "--in", format_duration(due // _MS)]
    return f"{command('redeliver', *again)} && {command('cancel', *(one.id for one in letters), '--stop')}"
