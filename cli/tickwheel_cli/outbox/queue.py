"""`tickwheel outbox queue`: a first-in first-out queue in the user's database."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.output import body_fields, print_json, print_result, printable
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.times import format_moment
from tickwheel_cli.shared.waiting import Waiting, waiting_options

if TYPE_CHECKING:
    from tickwheel.outbox import Queue, QueueBatch, QueueMessage


@click.group()
def queue() -> None:
    """A queue in your database: first in, first out, many producers and consumers.

    \b
    tickwheel outbox queue init jobs
    tickwheel outbox queue put jobs "resize photo 17" "resize photo 18"
    tickwheel outbox queue take jobs --count 2
    tickwheel outbox queue stats jobs
    """


@queue.command()
@click.argument("name")
@database_option
@json_option
def init(name: str, database_url: str) -> None:
    """Make a queue. Safe to repeat."""
    from tickwheel import outbox

    with open_database(database_url, may_create=True) as database:
        outbox.Queue(database, name).create()
        print_result({"queue": name}, f"queue {name} in {database.name}")


@queue.command()
@click.argument("name")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@database_option
@json_option
def put(name: str, bodies: tuple[str, ...], database_url: str) -> None:
    """Put messages, all of them or none; without BODY, a message for each line of standard input."""
    from tickwheel import outbox

    lines: list[str | bytes] = [*bodies] or [*sys.stdin.buffer.read().splitlines()]
    with open_database(database_url) as database:
        jobs = outbox.Queue(database, name)
        ids = database.run(lambda connection: jobs.put_many(connection, lines))
    print_result({"ids": ids}, "\n".join(map(str, ids)))


@queue.command()
@click.argument("name")
@waiting_options
@click.option("--no-ack", is_flag=True, help="Give every message back, at its place.")
@click.option("--raw", is_flag=True, help="Print bodies only, as they are, a newline after each.")
@database_option
@json_option
def take(
    name: str, count: int | None, timeout: timedelta | None, no_ack: bool, raw: bool, database_url: str
) -> None:
    """Print messages in their order, and delete each batch once it is printed, until Ctrl-C.

    Before that they are leased: if this dies, others get them. The exit code is 3 when --timeout ended the wait before
    --count messages had come.
    """
    import anyio

    from tickwheel import outbox

    if raw and current_session().json:
        raise click.UsageError("--raw and --json exclude each other")
    form = "raw" if raw else "json" if current_session().json else "line"
    with open_database(database_url) as database:
        jobs, waiting = outbox.Queue(database, name), Waiting(count, timeout)
        anyio.run(_take, jobs, waiting, form, not no_ack, backend="trio")


async def _take(jobs: Queue, waiting: Waiting, form: str, acks: bool) -> None:
    given_back: list[QueueBatch] = []
    async with jobs.consume(batch=waiting.wanted(100)) as consumer, waiting.signals():
        while not waiting.fulfilled:
            batch = await waiting.next_batch(consumer.receive)
            if batch is None:
                break
            wanted = list(batch)[: waiting.wanted(len(batch))]
            for message in wanted:
                _print(message, form)
            sys.stdout.flush()
            waiting.received += len(wanted)
            if acks and len(wanted) == len(batch):
                await batch.ack()
            elif acks:
                for message in wanted:
                    await message.ack()
            else:
                given_back.append(batch)  # at the end: at once they would come again
    waiting.check_count()


def _print(message: QueueMessage, form: str) -> None:
    if form == "raw":
        sys.stdout.buffer.write(message.body + b"\n")
    elif form == "json":
        put_at = format_moment(message.enqueued_ns // 1_000_000)
        print_json({"id": message.id, "epoch": message.epoch, "put": put_at, **body_fields(message.body)})
    else:
        again = f"  (delivery {message.epoch})" if message.epoch > 1 else ""
        click.echo(f"{message.id}  {printable(message.body)}{again}")


@queue.command()
@click.argument("name")
@database_option
@json_option
def stats(name: str, database_url: str) -> None:
    """Show how many messages are ready, leased, or wait for a retry."""
    from dataclasses import asdict

    from tickwheel import outbox

    with open_database(database_url) as database:
        found = asdict(outbox.Queue(database, name).stats())
    if current_session().json:
        print_json(found)
        return
    age_s = found.pop("oldest_age_s")
    for title, count in found.items():
        click.echo(f"{title:<8} {count:,}")
    click.echo(f"oldest   {'-' if age_s is None else f'{age_s:,.1f} s'}")
