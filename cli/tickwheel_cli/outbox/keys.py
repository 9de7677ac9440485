"""`tickwheel outbox keys`: keys with inboxes and outboxes, and the services that work for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.output import body_fields, print_json, printable
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.tables import print_table
from tickwheel_cli.shared.times import format_moment
from tickwheel_cli.shared.waiting import run_until_signal

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tickwheel.outbox import KeySpace

_SPACE = click.option(
    "--space", default="tickwheel_keys", show_default=True, metavar="NAME", help="The key space."
)


@click.group()
def keys() -> None:
    """Keys with values, inboxes and outboxes in your database.

    \b
    tickwheel outbox keys init
    tickwheel outbox keys put users/17 ada
    tickwheel outbox keys send users/17 "your parcel is here"
    tickwheel outbox keys run &                      dispatcher and executor
    tickwheel outbox keys reap users/17
    """


@contextmanager
def _space(name: str, database_url: str, *, may_create: bool = False) -> Iterator[KeySpace]:
    from tickwheel import outbox

    with open_database(database_url, may_create=may_create) as database:
        space = outbox.KeySpace(database, name)
        yield space if may_create else space.adopt()


def _in_transaction(name: str, database_url: str, work: Any) -> Any:
    """What ``work(space, connection)`` returns, committed."""
    with _space(name, database_url) as space:

        def run(connection: Connection) -> Any:
            return work(space, connection)

        return space.database.run(run)


def _say(fields: dict[str, Any], line: str) -> None:
    if current_session().json:
        print_json(fields)
    else:
        click.echo(line)


@keys.command()
@click.option(
    "--split", "splits", multiple=True, metavar="KEY", help="Begin a range at this key; may be repeated."
)
@_SPACE
@database_option
@json_option
def init(splits: tuple[str, ...], space: str, database_url: str) -> None:
    """Make a key space. Safe to repeat."""
    with _space(space, database_url, may_create=True) as opened:
        opened.create()
        for key in splits:
            opened.split(key)
        _say({"space": space, "ranges": len(splits) + 1}, f"key space {space} in {opened.database.name}")


@keys.command()
@click.argument("key")
@click.argument("value")
@_SPACE
@database_option
def put(key: str, value: str, space: str, database_url: str) -> None:
    """Give a key a value."""
    _in_transaction(space, database_url, lambda one, connection: one.put(connection, key, value.encode()))


@keys.command()
@click.argument("key")
@_SPACE
@database_option
@json_option
def get(key: str, space: str, database_url: str) -> None:
    """Print the value of a key; exit code 1 if there is none."""
    value = _in_transaction(space, database_url, lambda one, connection: one.get(connection, key))
    if value is None:
        from tickwheel_cli.shared.failures import CommandError

        raise CommandError(
            "no_such_key", f"There is no key {key} in {space}.", "`keys scan` lists those that there are."
        )
    _say({"key": key, **body_fields(value)}, printable(value))


@keys.command()
@click.argument("key")
@click.option("--by", type=int, default=1, show_default=True)
@_SPACE
@database_option
@json_option
def increment(key: str, by: int, space: str, database_url: str) -> None:
    """Add to a counter, and print the sum."""
    total = _in_transaction(space, database_url, lambda one, connection: one.increment(connection, key, by))
    _say({"key": key, "value": total}, str(total))


@keys.command()
@click.argument("key")
@_SPACE
@database_option
@json_option
def delete(key: str, space: str, database_url: str) -> None:
    """Delete a key; its inbox stays."""
    was_there = _in_transaction(space, database_url, lambda one, connection: one.delete(connection, key))
    _say({"key": key, "deleted": was_there}, "deleted" if was_there else "there was no such key")


@keys.command()
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True)
@_SPACE
@database_option
@json_option
def scan(prefix: str, limit: int, space: str, database_url: str) -> None:
    """List keys that begin with PREFIX, in bytewise order, with their values."""

    def work(one: KeySpace, connection: Connection) -> list[tuple[bytes, bytes]]:
        start, end = one.prefix_range(prefix) if prefix else (b"", None)
        found: list[tuple[bytes, bytes]] = one.scan(connection, start, end, limit)
        return found

    found = _in_transaction(space, database_url, work)
    if current_session().json:
        print_json([{"key": printable(key), **body_fields(value)} for key, value in found])
        return
    for key, value in found:
        click.echo(f"{printable(key)}\t{printable(value)}")


@keys.command()
@click.argument("key")
@click.argument("message")
@click.option("--sender", metavar="KEY", help="Through whose outbox.  [default: KEY]")
@_SPACE
@database_option
def send(key: str, message: str, sender: str | None, space: str, database_url: str) -> None:
    """Send a message to the inbox of a key, where the dispatcher puts it."""
    _in_transaction(
        space,
        database_url,
        lambda one, connection: one.send(connection, key, message.encode(), sender=sender),
    )


@keys.command()
@click.argument("key")
@click.option(
    "--count", type=click.IntRange(min=1), default=100, show_default=True, help="The most messages."
)
@_SPACE
@database_option
@json_option
def reap(key: str, count: int, space: str, database_url: str) -> None:
    """Print the messages of an inbox, and delete them once they are printed."""
    with _space(space, database_url) as opened, opened.database.begin() as connection:
        for message in opened.reap(connection, key, count):
            sent = format_moment(message.timestamp_ns // 1_000_000)
            fields = {"sender": printable(message.sender), "sent": sent, **body_fields(message.value)}
            _say(fields, f"{sent}  {printable(message.sender)}  {printable(message.value)}")


@keys.command()
@click.option("--dispatcher/--no-dispatcher", default=True, help="Bring messages to inboxes.")
@click.option("--executor/--no-executor", default=True, help="Execute operations.")
@_SPACE
@database_option
@json_option
def run(dispatcher: bool, executor: bool, space: str, database_url: str) -> None:
    """Run dispatcher and executor until Ctrl-C. Any number of them share the ranges of keys."""
    import anyio

    if not dispatcher and not executor:
        raise click.UsageError("--no-dispatcher and --no-executor leave nothing to run")
    with _space(space, database_url) as opened:
        services = [("moved", opened.dispatcher())] if dispatcher else []
        services += [("executed", opened.executor())] if executor else []
        anyio.run(run_until_signal, *(service.run for _, service in services), backend="trio")
        counts: dict[str, Any] = {name: service.processed for name, service in services}
        _say(counts, ", ".join(f"{name} {count:,}" for name, count in counts.items()))


@keys.command()
@click.option("--retry", is_flag=True, help="Put them back into their outboxes.")
@click.option("--drop", is_flag=True, help="Forget them.")
@_SPACE
@database_option
@json_option
def failed(retry: bool, drop: bool, space: str, database_url: str) -> None:
    """List operations that could not be executed, and why; or retry or drop all of them."""
    if retry and drop:
        raise click.UsageError("--retry and --drop exclude each other")
    if retry or drop:
        act = "retry_failed" if retry else "drop_failed"
        count = _in_transaction(space, database_url, lambda one, connection: getattr(one, act)(connection))
        _say({"retried" if retry else "dropped": count}, f"{'retried' if retry else 'dropped'} {count:,}")
        return
    found = _in_transaction(space, database_url, lambda one, connection: one.failed(connection))
    rows = [
        [
            str(one.sequence),
            format_moment(one.failed_ns // 1_000_000),
            one.error_code,
            repr(one.operation),
            one.error,
        ]
        for one in found
    ]
    columns = [
        ("number", "right"),
        ("failed", "left"),
        ("code", "left"),
        ("operation", "left"),
        ("error", "left"),
    ]
    if current_session().json:
        print_json([dict(zip([title for title, _ in columns], row, strict=True)) for row in rows])
    elif rows:
        print_table(columns, rows)
    else:
        click.echo("none")


@keys.command()
@_SPACE
@database_option
@json_option
def stats(space: str, database_url: str) -> None:
    """Show what waits where and for how long, and who works on it."""
    from dataclasses import asdict

    with _space(space, database_url) as opened:
        found = opened.stats()
    fields: dict[str, Any] = {name: value for name, value in asdict(found).items() if name != "ranges"}
    fields["ranges"] = len({one.start for one in found.ranges})
    if current_session().json:
        print_json(fields)
        return
    for name, value in fields.items():
        if name.endswith("_age_ns"):
            name, value = name.removesuffix("_age_ns"), "-" if value is None else f"{value / 1e9:,.1f} s"
        click.echo(f"{name.replace('_', ' '):<24} {value}")
