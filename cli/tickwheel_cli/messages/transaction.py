"""`tickwheel transaction`: sends, cancels and reschedules from JSON lines, all or nothing. And prepared messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click
import msgspec

from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.messages import http_transaction
from tickwheel_cli.shared.failures import CommandError, CommandFailed
from tickwheel_cli.shared.options import DURATION, HEADER, time_arguments, time_options
from tickwheel_cli.shared.output import counted, print_result
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.times import parse_duration, parse_moment

if TYPE_CHECKING:
    from tickwheel import sync

_Command = TypeVar("_Command", bound=Callable[..., Any])

_WHICH = ("id", "ids", "topic", "key", "keys")
_TIME = ("in", "at")
_ACTIONS = {
    "send": ("topic", "body", "key", "order_key", "priority", "headers", "delay_level", *_TIME),
    "cancel": _WHICH,
    "reschedule": (*_WHICH, "priority", *_TIME),
}
"""What a line may say, and the fields of each."""


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

    FILE has one such JSON object a line; - is stdin. A send has "topic" and "body" and, as you like, "key",
    "order_key", "priority", "headers" and one of "in", "at" and "delay_level". The others name messages by
    "id", "ids", or "topic" with "key" or "keys"; a reschedule has "in" or "at", "priority", or both.

    Or FILE is one object as HTTP's POST /v1/transactions takes it, with "sends", "cancels", "reschedules" and "acks".
    """
    data = file.read()
    whole = http_transaction.read(data)
    with current_session().client(may_create=True) as client:
        if whole is not None:
            tx = client.transaction(id=whole.get("id"))
            problems = http_transaction.add(tx, whole)
        else:
            tx = client.transaction()
            problems = [
                f"line {number}: {problem}"
                for number, line in enumerate(data.splitlines(), 1)
                if line.strip() and (problem := _add(tx, line))
            ]
        if problems:
            raise CommandError(
                "bad_line",
                "\n".join(problems),
                advice="Nothing was done. See `tickwheel transaction --help`.",
            )
        result = tx.commit()
    ids = [list(one) for one in result.ids] if result is not None else []
    print_result(
        {"committed": True, "ids": ids},
        f"committed; {counted(len(ids), 'send')}" + "".join(f"\n{one[0]}" for one in ids),
    )


def _add(tx: sync.Transaction, line: bytes) -> str | None:
    """Put what a line says into the transaction, or return what is wrong with it."""
    try:
        parsed = msgspec.json.decode(line, type=dict[str, dict[str, Any]])
        if len(parsed) != 1 or next(iter(parsed)) not in _ACTIONS:
            raise ValueError('it must have exactly one of "send", "cancel" and "reschedule"')
        ((action, fields),) = parsed.items()
        _check_fields(action, fields)
        arguments = _arguments(fields)
        if action == "send":
            tx.send(arguments.pop("topic"), str(arguments.pop("body")).encode(), **arguments)
        elif action == "cancel":
            tx.cancel(arguments.pop("topic", None), **arguments)
        else:
            tx.reschedule(arguments.pop("topic", None), **arguments)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        return str(error)
    return None


def _check_fields(action: str, fields: dict[str, Any]) -> None:
    unknown = [name for name in fields if name not in _ACTIONS[action]]
    if unknown:
        raise ValueError(f'"{action}" has no field "{unknown[0]}"; it has {", ".join(_ACTIONS[action])}')
    missing = [name for name in ("topic", "body") if action == "send" and name not in fields]
    if missing:
        raise ValueError(f'"send" needs "{missing[0]}"')


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
    tickwheel prepared commit --topic orders --key order-17
    """


@prepared.command("send")
@click.argument("topic")
@click.argument("body")
@time_options
@click.option("--key", help="The key of the message that it becomes.")
@click.option("--header", "headers", multiple=True, type=HEADER, help="May be repeated.")
@click.option(
    "--check-after",
    type=DURATION,
    help="Ask after so long what became of it, instead of the broker's check_after.",
)
@shared_options
def send_prepared(
    topic: str,
    body: str,
    delay: timedelta | None,
    moment: datetime | None,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    check_after: timedelta | None,
) -> None:
    """Store a message that waits for commit or rollback; prints its id."""
    with current_session().client(may_create=True) as client:
        options = {"key": key, "headers": dict(headers) or None, **time_arguments(delay, moment)}
        message_id = client.prepare(topic, body.encode(), check_after=check_after, **options).id
    print_result({"topic": topic, "id": message_id}, str(message_id))


def _meant(command: _Command) -> _Command:
    """Ids, or --topic and --key."""
    command = click.option(
        "--key", "keys", multiple=True, help="With --topic, instead of ids; may be repeated."
    )(command)
    command = click.option("--topic", help="The topic that the messages are for.")(command)
    return click.argument("ids", nargs=-1, type=click.IntRange(1))(command)


def _targets(ids: tuple[int, ...], topic: str | None, keys: tuple[str, ...]) -> dict[str, Any]:
    if bool(ids) == bool(keys) or bool(keys) != (topic is not None):
        raise click.UsageError("give ids, or --topic with --key")
    return {"ids": list(ids)} if ids else {"topic": topic, "keys": list(keys)}


@prepared.command()
@_meant
@shared_options
def commit(ids: tuple[int, ...], topic: str | None, keys: tuple[str, ...]) -> None:
    """Let prepared messages be delivered at their time; prints the ids of what they become."""
    targets = _targets(ids, topic, keys)
    with current_session().client() as client:
        decided = client.commit_prepared(**targets)
    _report(ids or keys, [(result, became) for result, became in decided], "committed")


@prepared.command()
@_meant
@shared_options
def rollback(ids: tuple[int, ...], topic: str | None, keys: tuple[str, ...]) -> None:
    """Drop prepared messages."""
    targets = _targets(ids, topic, keys)
    with current_session().client() as client:
        decided = client.rollback_prepared(**targets)
    _report(ids or keys, [(result, 0) for result in decided], "rolled_back")


def _report(named: Sequence[int | str], decided: list[tuple[str, int]], decision: str) -> None:
    """The exit code is 1 when one of them was not decided so, now or before."""
    rows = [(one, *answer) for one, answer in zip(named, decided, strict=True)]
    print_result(
        [
            {"key" if isinstance(one, str) else "id": one, "result": result, "became": became or None}
            for one, result, became in rows
        ],
        *(f"{one}: {result.replace('_', ' ')}" + (f" as {new}" if new else "") for one, result, new in rows),
    )
    if any(result.removeprefix("already_") != decision for _, result, _ in rows):
        raise CommandFailed(ExitCode.FAILED)
