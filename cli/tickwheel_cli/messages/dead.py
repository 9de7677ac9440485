"""`tickwheel dead`: the dead letters of a topic. And `browse`: looking at messages without taking them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tickwheel.protocol.headers import readable_headers, shown_headers
from tickwheel.protocol.limits import dead_topic
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.filters import report_counts, where_arguments, where_options
from tickwheel_cli.shared.options import TIME, confirm
from tickwheel_cli.shared.output import body_fields, print_result, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel import BrowsedMessage, sync

_HEADER = "tickwheel-dead"
_NONE = "{topic} has no dead letters."
_NO_SUCH = "{topic} has no such dead letters."
_LETTER_COLUMNS = (
    *right("id"),
    *left("group"),
    *right("attempts"),
    *left("error"),
    *right("original"),
    *left("key", "body"),
)
_COLUMNS = (*left("due"), *right("id"), *left("state", "key", "body"))


@click.group()
@shared_options
def dead() -> None:
    """Dead letters: messages that a group was given as often as its topic allows.

    \b
    tickwheel dead list orders
    tickwheel dead replay orders
    tickwheel dead purge orders
    """


@dead.command("list")
@click.argument("topic")
@click.option("--from", "created_from", type=TIME, help="Given up at this time or later.")
@click.option("--until", "created_until", type=TIME, help="Given up before this time.")
@click.option("--after", "after_id", type=click.IntRange(0), default=0, help="Only ids above this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@shared_options
def list_dead(
    topic: str, created_from: datetime | None, created_until: datetime | None, after_id: int, limit: int
) -> None:
    """List the dead letters of TOPIC: id, group, attempts, the last error, and the body.

    \b
    tickwheel dead list orders --from 2031-05-01T00:00+02:00

    "original" is the id that the message has, or had, in TOPIC.
    """
    with current_session().client() as client:
        letters: list[BrowsedMessage] = []
        more = False
        if _has_letters(client, topic):
            letters = client.browse(
                dead_topic(topic),
                created_from=created_from,
                created_until=created_until,
                after_id=after_id,
                limit=limit,
            )
            more = _has_more(
                client, dead_topic(topic), letters, created_from=created_from, created_until=created_until
            )
    rows = [_letter_row(letter) for letter in letters]
    found = [_fields(letter) for letter in letters]
    none = (
        _NONE.format(topic=topic)
        if not (created_from or created_until or after_id)
        else _NO_SUCH.format(topic=topic)
    )
    print_found(found, _LETTER_COLUMNS, rows, empty=none, optional=("original", "key"))
    _tell_of_more(letters, more=more)


def _has_letters(client: sync.Client, topic: str) -> bool:
    """Whether the topic of dead letters exists. Raises UnknownTopic if `topic` itself does not."""
    from tickwheel.errors import UnknownTopic

    try:
        client.topic(dead_topic(topic))
    except UnknownTopic:
        client.topic(topic)
        return False
    return True


def _letter_row(letter: BrowsedMessage) -> list[str]:
    told = (readable_headers(letter) or {}).get(_HEADER)
    story = told if isinstance(told, dict) else {}
    key = _cell(story.get("key"))
    return [
        str(letter.id),
        _cell(story.get("group", "?")),
        _cell(story.get("attempts", "?")),
        _cell(story.get("error") or "no ack"),
        _cell(story.get("id", "?")),
        _key_cell(key),
        printable(letter.body),
    ]


def _cell(told: object) -> str:
    """What a header says: anybody may have written it."""
    return "" if told is None else printable(str(told).encode(errors="replace"))


@dead.command()
@click.argument("topic")
@click.argument("ids", nargs=-1, type=click.IntRange(1))
@click.option("--limit", type=click.IntRange(1, 100_000), default=10_000, show_default=True)
@shared_options
def replay(topic: str, ids: tuple[int, ...], limit: int) -> None:
    """Give dead letters of TOPIC back to the groups that gave them up: all, or those with these IDS.

    IDS are those that `dead list` shows first. The exit code is 1 when one of them is no dead letter of TOPIC.
    """
    with current_session().client() as client:
        counts = client.replay_dead(topic, ids=list(ids) or None, limit=limit)
        is_full = not ids and sum(counts.values()) >= limit
        left = is_full and client.browse(dead_topic(topic), limit=1, max_body_bytes=0)
    found = [f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items()]
    print_result(counts, ", ".join(found) or _NONE.format(topic=topic))
    if left:
        click.echo(f"There are more letters: replay {topic} again, or give a higher --limit.", err=True)
    if counts.get("not_found"):
        raise CommandFailed(ExitCode.FAILED)


@dead.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@shared_options
def purge(topic: str, yes: bool, dry_run: bool) -> None:
    """Drop all dead letters of TOPIC for good."""
    if not yes and not dry_run:
        confirm(f"Drop all dead letters of {topic}?")
    with current_session().client() as client:
        if _has_letters(client, topic):
            report_counts(client.cancel_where(dead_topic(topic), stop=True, dry_run=dry_run), dry_run=dry_run)
        else:
            print_result({"matched": 0, "results": {}}, _NONE.format(topic=topic))


@click.command()
@click.argument("topic")
@where_options
@click.option("--after", "after_id", type=click.IntRange(0), default=0, help="Only ids above this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@shared_options
def browse(topic: str, after_id: int, limit: int, **where: Any) -> None:
    """Look at messages of a topic, in order of their ids, without taking them.

    \b
    tickwheel browse reminders
    tickwheel browse orders --state waiting --json
    tickwheel browse orders --state dead --done-from 2031-05-01T00:00Z
    tickwheel browse reminders --due-from 2031-05-01T00:00Z --due-until 2031-05-02T00:00Z

    The number behind a group's state says how often the message was delivered to it.
    """
    which = where_arguments(where)
    with current_session().client() as client:
        found = client.browse(topic, after_id=after_id, limit=limit, **which)
        more = _has_more(client, topic, found, **which)
    empty = f"There are no such messages in {topic}." if which or after_id else f"{topic} is empty."
    rows = [_row(message) for message in found]
    print_found([_fields(message) for message in found], _COLUMNS, rows, empty=empty, optional=("due", "key"))
    _tell_of_more(found, more=more)


def _has_more(client: sync.Client, topic: str, found: Sequence[BrowsedMessage], **which: Any) -> bool:
    """Whether there are more than were found: more than were asked for, or than have room in one answer."""
    return bool(found) and bool(
        client.browse(topic, after_id=found[-1].id, limit=1, max_body_bytes=0, **which)
    )


def _tell_of_more(found: Sequence[BrowsedMessage], *, more: bool) -> None:
    if more:
        click.echo(f"There are more: --after {found[-1].id}, or a higher --limit.", err=True)


def _row(message: BrowsedMessage) -> list[str]:
    state = ", ".join(_group_states(message.groups)) or message.state
    due = format_moment(message.deliver_at_ms)
    return [due, str(message.id), state, _key_cell(message.key), printable(message.body)]


def _key_cell(key: str) -> str:
    """A key that starts with "~" was made by the sender's client for its own retries."""
    return "-" if not key or key[0] == "~" else printable(key.encode("utf-8", "replace"))


def _group_states(groups: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{one['group']}: {one['state']}" + (f" ({one['epoch']})" if one["epoch"] else "")
        for one in groups
        if one["state"] != "not_its_own"
    ]


def _fields(message: BrowsedMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "key": message.key or None,
        "order_key": message.order_key or None,
        "priority": message.priority,
        "state": message.state,
        "standing": message.standing,
        "groups": message.groups,
        "deliver_at": format_moment(message.deliver_at_ms),
        "deliver_at_ms": message.deliver_at_ms,
        "created_ms": message.created_ms,
        "headers": shown_headers(message),
        "body_bytes": message.body_bytes,
        **body_fields(message.body),
    }
