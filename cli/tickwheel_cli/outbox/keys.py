"""`tickwheel outbox keys`: keys with inboxes and outboxes, and the services that work for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.output import body_fields, print_json, print_result, printable
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.times import format_moment
from tickwheel_cli.shared.waiting import run_until_signal

if TYPE_CHECKING:
    from tickwheel.outbox import FailedOperation, KeySpace


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


def _space_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--space` and `--database`."""
    return click.option(
        "--space", default="tickwheel_keys", show_default=True, metavar="NAME", help="The key space."
    )(database_option(command))


@contextmanager
def _opened(name: str, database_url: str) -> Iterator[KeySpace]:
    from tickwheel import outbox

    with open_database(database_url) as database:
        yield outbox.KeySpace(database, name).adopt()


def _in_space(command: Callable[..., None]) -> Callable[..., None]:
    """`_space_options`, by which the command gets the key space."""

    @wraps(command)
    def run(space: str, database_url: str, **options: Any) -> None:
        with _opened(space, database_url) as opened:
            command(opened, **options)

    return _space_options(run)


@keys.command()
@click.option(
    "--split", "splits", multiple=True, metavar="KEY", help="Begin a range at this key; may be repeated."
)
@_space_options
@json_option
def init(splits: tuple[str, ...], space: str, database_url: str) -> None:
    """Make a key space. Safe to repeat."""
    from tickwheel import outbox

    with open_database(database_url, may_create=True) as database:
        opened = outbox.KeySpace(database, space).create()
        for key in splits:
            opened.split(key)
        print_result(
            {"space": space, "ranges": len(splits) + 1}, f"key space {space} in {opened.database.name}"
        )


@keys.command()
@click.argument("key")
@click.argument("value")
@_in_space
def put(space: KeySpace, key: str, value: str) -> None:
    """Give a key a value."""
    space.database.run(lambda connection: space.put(connection, key, value.encode()))


@keys.command()
@click.argument("key")
@_in_space
@json_option
def get(space: KeySpace, key: str) -> None:
    """Print the value of a key; exit code 1 if there is none."""
    value = space.database.run(lambda connection: space.get(connection, key))
    if value is None:
        from tickwheel_cli.shared.failures import CommandError

        raise CommandError(
            "no_such_key",
            f"There is no key {key} in {space.name}.",
            advice="`keys scan` lists those that there are.",
        )
    print_result({"key": key, **body_fields(value)}, printable(value))


@keys.command()
@click.argument("key")
@click.option("--by", type=int, default=1, show_default=True)
@_in_space
@json_option
def increment(space: KeySpace, key: str, by: int) -> None:
    """Add to a counter, and print the sum."""
    total = space.database.run(lambda connection: space.increment(connection, key, by))
    print_result({"key": key, "value": total}, str(total))


@keys.command()
@click.argument("key")
@_in_space
@json_option
def delete(space: KeySpace, key: str) -> None:
    """Delete a key; its inbox stays."""
    was_there = space.database.run(lambda connection: space.delete(connection, key))
    print_result({"key": key, "deleted": was_there}, "deleted" if was_there else "there was no such key")


@keys.command()
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True)
@_in_space
@json_option
def scan(space: KeySpace, prefix: str, limit: int) -> None:
    """List keys that begin with PREFIX, in bytewise order, with their values."""

    start, end = space.prefix_range(prefix) if prefix else (b"", None)
    found = space.database.run(lambda connection: space.scan(connection, start, end, limit + 1))
    more, found = len(found) > limit, found[:limit]
    print_result(
        [{"key": printable(key), **body_fields(value)} for key, value in found],
        *(f"{printable(key)}\t{printable(value)}" for key, value in found),
    )
    if more:
        click.echo(f"There are more keys than these {limit:,}: give a higher --limit, or a PREFIX.", err=True)


@keys.command()
@click.argument("key")
@click.argument("message")
@click.option("--sender", metavar="KEY", help="Through whose outbox.  [default: KEY]")
@_in_space
def send(space: KeySpace, key: str, message: str, sender: str | None) -> None:
    """Send a message to the inbox of a key, where the dispatcher puts it."""
    space.database.run(lambda connection: space.send(connection, key, message.encode(), sender=sender))


@keys.command()
@click.argument("key")
@click.option(
    "--count", type=click.IntRange(min=1), default=100, show_default=True, help="The most messages."
)
@_in_space
@json_option
def reap(space: KeySpace, key: str, count: int) -> None:
    """Print the messages of an inbox, and delete them once they are printed."""
    with space.database.begin() as connection:
        for message in space.reap(connection, key, count):
            sent = format_moment(message.timestamp_ns // 1_000_000)
            fields = {"sender": printable(message.sender), "sent": sent, **body_fields(message.value)}
            print_result(fields, f"{sent}  {printable(message.sender)}  {printable(message.value)}")


@keys.command()
@click.option("--dispatcher/--no-dispatcher", default=True, help="Bring messages to inboxes.")
@click.option("--executor/--no-executor", default=True, help="Execute operations.")
@_space_options
@json_option
def run(dispatcher: bool, executor: bool, space: str, database_url: str) -> None:
    """Run dispatcher and executor until Ctrl-C. Any number of them share the ranges of keys."""
    import anyio

    if not dispatcher and not executor:
        raise click.UsageError("--no-dispatcher and --no-executor leave nothing to run")
    with _opened(space, database_url) as opened:
        services = [("moved", opened.dispatcher())] if dispatcher else []
        services += [("executed", opened.executor())] if executor else []
        anyio.run(run_until_signal, *(service.run for _, service in services), backend="trio")
    counts: dict[str, Any] = {name: service.processed for name, service in services}
    print_result(counts, ", ".join(f"{name} {count:,}" for name, count in counts.items()))


@keys.command()
@click.option("--retry", is_flag=True, help="Put them back into their outboxes.")
@click.option("--drop", is_flag=True, help="Forget them.")
@_space_options
@json_option
def failed(retry: bool, drop: bool, space: str, database_url: str) -> None:
    """List operations that could not be executed, and why; or retry or drop all of them."""
    if retry and drop:
        raise click.UsageError("--retry and --drop exclude each other")
    with _opened(space, database_url) as opened:
        if not retry and not drop:
            _print_failed(opened.database.run(opened.failed))
            return
        act = opened.retry_failed if retry else opened.drop_failed
        count, done = opened.database.run(act), "retried" if retry else "dropped"
        print_result({done: count}, f"{done} {count:,}")


def _print_failed(found: Sequence[FailedOperation]) -> None:
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
    columns = (*right("number"), *left("failed", "code", "operation", "error"))
    fields = [{title: cell for (title, _), cell in zip(columns, row, strict=True)} for row in rows]
    print_found(fields, columns, rows, empty="none")


@keys.command()
@_in_space
@json_option
def stats(space: KeySpace) -> None:
    """Show what waits where and for how long, and who works on it."""
    from dataclasses import asdict

    found = space.stats()
    fields: dict[str, Any] = {name: value for name, value in asdict(found).items() if name != "ranges"}
    fields["ranges"] = len({one.start for one in found.ranges})
    if current_session().json:
        print_json(fields)
        return
    for name, value in fields.items():
        if name.endswith("_age_ns"):
            name, value = name.removesuffix("_age_ns"), "-" if value is None else f"{value / 1e9:,.1f} s"
        click.echo(f"{name.replace('_', ' '):<24} {value}")
