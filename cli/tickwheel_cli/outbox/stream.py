"""`tickwheel outbox stream`: print a message table's messages as they become due, and ack them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import printable
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.times import format_moment
from tickwheel_cli.shared.waiting import Waiting, waiting_options

if TYPE_CHECKING:
    from tickwheel.outbox import MessageTable
    from tickwheel.outbox.messages.delivered import Batch, Message

_NS_A_MS = 1_000_000


@dataclass(frozen=True)
class Wish:
    """What is to be done with messages."""

    acks: bool
    nack_delay: timedelta | None
    as_json: bool


@click.command()
@click.argument("table")
@waiting_options
@click.option("--no-ack", is_flag=True, help="Leave the messages to come again after ack_wait.")
@click.option(
    "--nack", "nack_delay", type=DURATION, help="Give each message back, to be delivered again after so long."
)
@database_option
@json_option
def stream(
    table: str,
    count: int | None,
    timeout: timedelta | None,
    no_ack: bool,
    nack_delay: timedelta | None,
    database_url: str,
) -> None:
    """Print the messages of a message table as they become due, and ack them, until Ctrl-C.

    \b
    tickwheel outbox stream reminders
    tickwheel outbox stream reminders --count 10 --timeout 5s --json

    What Vitess writes as `stream * from reminders`: first a line with the names of the columns, then a line for each
    message: when it was due, its columns, separated by tabs. A message is acked after it is printed; if this stops in
    between, it is delivered again. Several streams of a table share its messages. The exit code is 3 when --timeout
    ended the wait before --count messages had come.
    """
    import anyio

    from tickwheel import outbox

    if nack_delay is not None and no_ack:
        raise click.UsageError("--nack and --no-ack exclude each other")
    wish = Wish(not no_ack and nack_delay is None, nack_delay, current_session().json)
    with open_database(database_url) as database:
        messages, waiting = outbox.MessageTable(database, table), Waiting(count, timeout)
        anyio.run(_stream, messages, waiting, wish, backend="trio")


async def _stream(table: MessageTable, waiting: Waiting, wish: Wish) -> None:
    batch_size = None if waiting.count is None else min(waiting.count, table.settings.batch_size)
    async with table.stream(batch_size) as source, waiting.signals():
        if not wish.as_json:
            click.echo("\t".join(["due", *source.fields]))
        while not waiting.fulfilled:
            batch = await waiting.next_batch(source.receive_batch)
            if batch is None:
                break
            wanted = batch[: waiting.wanted(len(batch))]
            await _show(batch, wanted, wish)
            waiting.received += len(wanted)
    waiting.check_count()


async def _show(batch: Batch, wanted: list[Message], wish: Wish) -> None:
    """Print what is wanted of a batch, and settle it."""
    for message in wanted:
        _print(message, wish)
    sys.stdout.flush()
    if wish.acks:
        await batch.settle(wanted)
    elif wish.nack_delay is not None:
        await batch.postpone(wanted, wish.nack_delay // timedelta(milliseconds=1))
    if len(wanted) < len(batch):
        await batch.postpone(batch[len(wanted) :], 0)


def _print(message: Message, wish: Wish) -> None:
    due = format_moment(-(-message.due_ns // _NS_A_MS))
    if not wish.as_json:
        click.echo("\t".join([due, *(_cell(value) for value in message.values())]))
        return
    import msgspec

    fields: dict[str, Any] = {"due": due, "epoch": message.epoch, "priority": message.priority, **message}
    sys.stdout.buffer.write(msgspec.json.encode(fields, enc_hook=str) + b"\n")


def _cell(value: Any) -> str:
    if isinstance(value, dict | list):
        import msgspec

        value = msgspec.json.encode(value, enc_hook=str)
    return "NULL" if value is None else printable(value if isinstance(value, bytes) else str(value).encode())
