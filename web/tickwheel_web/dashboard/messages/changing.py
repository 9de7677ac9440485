"""Change many messages: those that were selected, or all that the filter means. First they are counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from tickwheel import ChangeResult, Client
from tickwheel.errors import BadArgument
from tickwheel_web import reading
from tickwheel_web.dashboard.acting import counted, counts
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.messages.calls import moment_option
from tickwheel_web.dashboard.messages.listing import ACTIONS, actions_of
from tickwheel_web.dashboard.messages.search import Asked, Wanted, moment_of, read
from tickwheel_web.dashboard.notices import command
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.problems import Refused
from tickwheel_web.shapes import MAX_PRIORITY

MAX_UNTYPED: Final = 100
"""Of more, the number must be typed."""


class Change(NamedTuple):
    """What is to be done."""

    action: str
    to: str
    """As it was typed: a time, a duration, a priority; or nothing."""
    arguments: Mapping[str, Any]
    options: list[str]
    """Of the command."""

    @property
    def command(self) -> str:
        """Which does the same."""
        return {"stop": "cancel", "priority": "reschedule"}.get(self.action, self.action)


async def change(viewed: Viewed) -> Response:
    """Asks whether it shall be; the answer to that does it."""
    now = datetime.now(UTC)
    fields = {name: viewed.field(name) for name in Asked.__struct_fields__}
    wanted = read(reading.converted(Asked, fields), now)
    if not wanted.topic:
        raise Refused(400, "bad_argument", "There is no topic.")
    action = viewed.field("action")
    if action not in dict(actions_of(viewed, wanted.topic)):
        raise Refused(403, "forbidden", "This token may not do that here, or there is no such action.")
    planned = change_of(action, viewed.field("to"), now)
    ids = _ids(viewed) if viewed.field("scope") != "filter" else None
    if ids == []:
        text = "No message is selected. Nothing was changed."
        return viewed.done("/messages", text, tone="warn", **wanted.fields)
    if wanted.key and ids is None:
        raise Refused(400, "bad_argument", "A key means one message: select it.")
    if viewed.field("sure"):
        return await _do(viewed, wanted, planned, ids)
    count = len(ids) if ids is not None else (await _where(viewed, wanted, planned, dry_run=True)).matched
    return _ask(viewed, wanted, planned, ids, count)


def _ask(
    viewed: Viewed, wanted: Wanted, planned: Change, ids: list[int] | None, count: int, wrong: str = ""
) -> Response:
    return viewed.page(
        "messages/sure.html",
        status=400 if wrong else 200,
        wanted=wanted,
        planned=planned,
        text=ACTIONS[planned.action][0],
        ids=ids,
        count=count,
        must_type=count > MAX_UNTYPED,
        wrong=wrong,
        command=command(*_words(wanted, planned, ids)),
    )


async def _do(viewed: Viewed, wanted: Wanted, planned: Change, ids: list[int] | None) -> Response:
    """Never more of them than were counted."""
    count = whole(viewed.field("count").replace(",", ""), "The count", least=1)
    if count > MAX_UNTYPED and viewed.field("typed").replace(",", "") != str(count):
        wrong = f"Type {count:,} to change so many. Nothing was changed."
        return _ask(viewed, wanted, planned, ids, count, wrong)
    if ids is None:
        results: Mapping[str, int] = (await _where(viewed, wanted, planned, limit=count)).results
    else:
        results = counts(await changed(viewed.client, planned, ids))
    return counted(viewed, "/messages", results, _words(wanted, planned, ids), **wanted.fields)


def change_of(action: str, to: str, now: datetime, *, acked: bool = False) -> Change:
    """``acked``: also where a group has acked it. Raises Refused, BadArgument."""
    if action in ("cancel", "stop"):
        is_stop = action == "stop"
        return Change(action, "", {"stop": is_stop}, ["--stop"] if is_stop else [])
    if action == "priority":
        return Change(
            action, to, {"priority": whole(to, "The priority", most=MAX_PRIORITY)}, ["--priority", to]
        )
    if action not in ("reschedule", "redeliver"):
        raise BadArgument("There is no such action.")
    moment = moment_of(to, now)
    if moment is None and action == "reschedule":
        raise BadArgument("There is no new time.", advice="Give one: 1h, or 2031-05-01T09:00+02:00.")
    arguments = {"acked": True} if acked else {}
    when = {} if moment is None else {"deliver_at": moment}
    return Change(action, to, arguments | when, moment_option(to) + (["--acked"] if acked else []))


def _ids(viewed: Viewed) -> list[int]:
    return sorted({whole(one, "One of the selected ids") for one in viewed.fields("message")})


async def _where(viewed: Viewed, wanted: Wanted, planned: Change, **how: Any) -> ChangeResult:
    client = viewed.client
    do: dict[str, Callable[..., Awaitable[ChangeResult]]] = {
        "cancel": client.cancel_where,
        "redeliver": client.redeliver_where,
        "reschedule": client.reschedule_where,
    }
    return await do[planned.command](wanted.topic, **planned.arguments, **wanted.where, **how)


async def changed(client: Client, planned: Change, ids: list[int]) -> list[str]:
    """The result of each."""
    do: dict[str, Callable[..., Awaitable[Sequence[object]]]] = {
        "cancel": client.cancel,
        "redeliver": client.redeliver,
        "reschedule": client.reschedule,
    }
    return list(map(str, await do[planned.command](ids=ids, **planned.arguments)))


def _words(wanted: Wanted, planned: Change, ids: list[int] | None) -> list[str]:
    """Of the command that does the same."""
    which = [wanted.topic, *(wanted.options or ["--all"])] if ids is None else map(str, ids)
    return [planned.command, *which, *planned.options]
