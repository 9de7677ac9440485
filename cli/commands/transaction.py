"""`tickwheel transaction`: sends, cancels and reschedules from JSON lines, all or nothing. And prepared messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from cli.failures import CommandError
from cli.options import parse_header, parsed_by, time_arguments, time_options
from cli.output import print_json
from cli.session import current_session, shared_options
from cli.times import parse_duration, parse_moment

if TYPE_CHECKING:
    from tickwheel import sync

_ACTIONS = ("send", "cancel", "reschedule")


@click.command()
@click.argument("file", type=click.File("rb"))
@shared_options
def transaction(file: BinaryIO) -> None:
    """Send, cancel and reschedule messages together: all of it happens, or nothing.

    \b
    tickwheel transaction changes.jsonl
    {"send": {"topic": "invoices", "body": "…", "key": "invoice-17", "in": "1h"}}
    {"cancel": {"topic": "reminders", "key": "order-17"}}
    {"reschedule": {"id": 1042, "at": "2031-05-01T09:00+02:00"}}

    FILE has one such JSON object a line; - is stdin.
    """
    with current_session().client() as client:
        tx = client.transaction()
        for number, line in enumerate(file, 1):
            if line.strip():
                _add(tx, number, line)
        result = tx.commit()
    ids = [list(one) for one in result.ids] if result is not None else []
    if current_session().json:
        print_json({"committed": True, "ids": ids})
    else:
        click.echo(f"committed; {len(ids)} sends" + "".join(f"\n{one[0]}" for one in ids))


def _add(tx: sync.Transaction, number: int, line: bytes) -> None:
    try:
        parsed = msgspec.json.decode(line, type=dict[str, dict[str, Any]])
        if len(parsed) != 1 or next(iter(parsed)) not in _ACTIONS:
            raise ValueError('it must have exactly one of "send", "cancel" and "reschedule"')
        ((action, fields),) = parsed.items()
        arguments = _arguments(fields)
        if action == "send":
            tx.send(arguments.pop("topic"), str(arguments.pop("body")).encode(), **arguments)
        elif action == "cancel":
            tx.cancel(arguments.pop("topic", None), **arguments)
        else:
            tx.reschedule(arguments.pop("topic", None), **arguments)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise CommandError(
            "bad_line", f"line {number}: {error}", "Nothing was done. See `tickwheel transaction --help`."
        ) from None


def _arguments(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line as arguments of the client: `in` and `at` become delay and deliver_at."""
    arguments = dict(fields)
    if "in" in arguments:
        arguments["delay"] = parse_duration(str(arguments.pop("in")))
    if "at" in arguments:
        arguments["deliver_at"] = parse_moment(str(arguments.pop("at")))
    return arguments


@click.group()
@shared_options
def prepared() -> None:
    """Prepared messages: stored at once, delivered only after `commit`.

    \b
    tickwheel prepared send orders "paid" --key order-17     prints its id
    tickwheel prepared commit 1042
    tickwheel prepared rollback 1043
    """


@prepared.command("send")
@click.argument("topic")
@click.argument("body")
@time_options
@click.option("--key", help="The key of the message that it becomes.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parsed_by(parse_header),
    help="May be repeated.",
)
@shared_options
def send_prepared(
    topic: str,
    body: str,
    delay: timedelta | None,
    moment: datetime | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
) -> None:
    """Store a message that waits for commit or rollback; prints its id."""
    with current_session().client() as client:
        options = {"key": key, "headers": dict(headers) or None, **time_arguments(delay, moment)}
        message_id = client.prepare(topic, body.encode(), **options).id
    if current_session().json:
        print_json({"topic": topic, "id": message_id})
    else:
        click.echo(str(message_id))


@prepared.command()
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(1))
@shared_options
def commit(ids: tuple[int, ...]) -> None:
    """Let prepared messages be delivered at their time; prints the ids of what they become."""
    with current_session().client() as client:
        decided = client.commit_prepared(list(ids))
    _report([(one, result, became) for one, (result, became) in zip(ids, decided, strict=True)])


@prepared.command()
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(1))
@shared_options
def rollback(ids: tuple[int, ...]) -> None:
    """Drop prepared messages."""
    with current_session().client() as client:
        decided = client.rollback_prepared(list(ids))
    _report([(one, result, 0) for one, result in zip(ids, decided, strict=True)])


def _report(rows: list[tuple[int, str, int]]) -> None:
    if current_session().json:
        print_json([{"id": one, "result": result, "became": became or None} for one, result, became in rows])
        return
    for one, result, became in rows:
        click.echo(f"{one}: {result.replace('_', ' ')}" + (f" as {became}" if became else ""))
